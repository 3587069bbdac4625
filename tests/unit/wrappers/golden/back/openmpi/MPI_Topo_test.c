static int back_Topo_test(MPI_Comm comm, int *status) {
    int rc = ((int (*)(void *, int *))mpy_theirs[MPY_FN_Topo_test])(mpy_in(MPY_KIND_COMM, comm), status);
    if (rc == 0 && status != NULL) *status = mpy_number_out(MPY_GROUP_TOPOLOGY, *status);
    return mpy_code_out(rc);
}
