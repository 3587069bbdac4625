static int back_Recv_init_c(void *buf, MPI_Count count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm, MPI_Request *request) {
    bool fits = true;
    fits &= mpy_fits(count);
    void *o_request = mpy_null[MPY_KIND_REQUEST];
    int rc = !fits ? MPY_TOO_LARGE : ((int (*)(void *, int, void *, int, int, void *, void **))mpy_theirs[MPY_FN_Recv_init])(buf, (int)count, mpy_in(MPY_KIND_DATATYPE, datatype), mpy_rank_in(source), tag, mpy_in(MPY_KIND_COMM, comm), request != NULL ? &o_request : NULL);
    if (rc == 0 && request != NULL) *request = mpy_out(MPY_KIND_REQUEST, o_request);
    return mpy_code_out(rc);
}
