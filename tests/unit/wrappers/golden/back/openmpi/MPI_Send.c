static int back_Send(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm) {
    int rc = ((int (*)(const void *, int, void *, int, int, void *))mpy_theirs[MPY_FN_Send])(buf, count, mpy_in(MPY_KIND_DATATYPE, datatype), mpy_rank_in(dest), tag, mpy_in(MPY_KIND_COMM, comm));
    return mpy_code_out(rc);
}
