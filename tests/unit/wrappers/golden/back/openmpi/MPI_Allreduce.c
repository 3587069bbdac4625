static int back_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
    int rc = ((int (*)(const void *, void *, int, void *, void *, void *))mpy_theirs[MPY_FN_Allreduce])(mpy_buffer_in(sendbuf), mpy_buffer_in(recvbuf), count, mpy_in(MPY_KIND_DATATYPE, datatype), mpy_in(MPY_KIND_OP, op), mpy_in(MPY_KIND_COMM, comm));
    return mpy_code_out(rc);
}
