static int back_Gather_c(const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm) {
    bool fits = true;
    fits &= mpy_fits(sendcount) || sendbuf == MPI_IN_PLACE || root < 0;
    fits &= mpy_fits(recvcount) || mpy_length_at_root(comm, root) == 0;
    int rc = !fits ? MPY_TOO_LARGE : ((int (*)(const void *, int, void *, void *, int, void *, int, void *))mpy_theirs[MPY_FN_Gather])(mpy_buffer_in(sendbuf), (int)sendcount, mpy_in(MPY_KIND_DATATYPE, sendtype), mpy_buffer_in(recvbuf), (int)recvcount, mpy_in(MPY_KIND_DATATYPE, recvtype), mpy_root_in(root), mpy_in(MPY_KIND_COMM, comm));
    return mpy_code_out(rc);
}
