static int back_Comm_split_type(MPI_Comm comm, int split_type, int key, MPI_Info info, MPI_Comm *newcomm) {
    void *o_newcomm = mpy_null[MPY_KIND_COMM];
    int rc = ((int (*)(void *, int, int, void *, void **))mpy_theirs[MPY_FN_Comm_split_type])(mpy_in(MPY_KIND_COMM, comm), mpy_number_in(MPY_GROUP_SPLIT, split_type), key, mpy_in(MPY_KIND_INFO, info), newcomm != NULL ? &o_newcomm : NULL);
    if (rc == 0 && newcomm != NULL) *newcomm = mpy_out(MPY_KIND_COMM, o_newcomm);
    return mpy_code_out(rc);
}
