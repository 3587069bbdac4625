int PMPI_Pack(const void *inbuf, int incount, MPI_Datatype datatype, void *outbuf, int outsize, int *position, MPI_Comm comm) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Pack)(inbuf, incount, mpy_real_datatype(datatype), outbuf, outsize, position, mpy_real_comm(comm));
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(mpy_comm(comm), rc, "MPI_Pack");
}
