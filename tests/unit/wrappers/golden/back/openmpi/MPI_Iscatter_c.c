static int back_Iscatter_c(const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Request *request) {
    bool fits = true;
    fits &= mpy_fits(sendcount) || mpy_length_at_root(comm, root) == 0;
    fits &= mpy_fits(recvcount) || recvbuf == MPI_IN_PLACE || root < 0;
    void *o_request = mpy_null[MPY_KIND_REQUEST];
    int rc = !fits ? MPY_TOO_LARGE : ((int (*)(const void *, int, void *, void *, int, void *, int, void *, void **))mpy_theirs[MPY_FN_Iscatter])(mpy_buffer_in(sendbuf), (int)sendcount, mpy_in(MPY_KIND_DATATYPE, sendtype), mpy_buffer_in(recvbuf), (int)recvcount, mpy_in(MPY_KIND_DATATYPE, recvtype), mpy_root_in(root), mpy_in(MPY_KIND_COMM, comm), request != NULL ? &o_request : NULL);
    if (rc == 0 && request != NULL) *request = mpy_out(MPY_KIND_REQUEST, o_request);
    return mpy_code_out(rc);
}
