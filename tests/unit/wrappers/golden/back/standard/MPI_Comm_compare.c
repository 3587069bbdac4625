static int back_Comm_compare(MPI_Comm comm1, MPI_Comm comm2, int *result) {
    int rc = ((int (*)(void *, void *, int *))mpy_theirs[MPY_FN_Comm_compare])(mpy_in(MPY_KIND_COMM, comm1), mpy_in(MPY_KIND_COMM, comm2), result);
    if (rc == 0 && result != NULL) *result = mpy_number_out(MPY_GROUP_COMPARE, *result);
    return mpy_code_out(rc);
}
