int PMPI_Ialltoallw(const void *sendbuf, const int sendcounts[], const int sdispls[], const MPI_Datatype sendtypes[], void *recvbuf, const int recvcounts[], const int rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm, MPI_Request *request) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *c = mpy_comm(comm);
    int real_request;
    int rc;
    if (MPY_UNLIKELY(c == NULL)) {
        mpy_cross_in(t);
        rc = MPY_REAL(Ialltoallw)(sendbuf, sendcounts, sdispls, NULL, recvbuf, recvcounts, rdispls, NULL, mpy_real_comm(comm), request != NULL ? &real_request : NULL);
        mpy_cross_out(t);
        return mpy_error(NULL, rc, "MPI_Ialltoallw");
    }
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int n_sendtypes = c->remote_size != 0 ? c->remote_size : c->size;
    int n_recvtypes = c->remote_size != 0 ? c->remote_size : c->size;
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_ALLTOALL, .flags = MPY_TRACE_NONBLOCKING, MPY_TRACE_POST, MPY_TRACE_ROOTED(c, MPI_UNDEFINED));
    mpy_clock_start(t, mpy_row(c->row), "MPI_Ialltoallw");
    mpy_cross_in_collective(t);
    size_t bytes = (size_t)(n_sendtypes + n_recvtypes + 1) * sizeof(int);
    int *types = mpy_alloc(bytes);
    int *real_sendtypes = mpy_real_datatypes_to(sendbuf == MPI_IN_PLACE ? NULL : sendtypes, n_sendtypes, types);
    int *real_recvtypes = recvtypes == sendtypes && n_recvtypes == n_sendtypes && real_sendtypes != NULL ? real_sendtypes : mpy_real_datatypes_to(recvtypes, n_recvtypes, types + n_sendtypes);
    rc = MPY_REAL(Ialltoallw)(sendbuf, sendcounts, sdispls, real_sendtypes, recvbuf, recvcounts, rdispls, real_recvtypes, c->obj.real, request != NULL ? &real_request : NULL);
    if (MPY_LIKELY(rc == 0)) {
        mpy_request_t *r = mpy_request_other(th, real_request, c);
        mpy_trace_posted(t, record, r);
        *request = mpy_request_keep(r, types, bytes);
    }
    if (MPY_UNLIKELY(rc != 0)) mpy_free(types, bytes);
    mpy_collective_leave(t, mpy_row(c->row), rc);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(c, rc, "MPI_Ialltoallw");
}
