int PMPI_Iallreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, MPI_Request *request) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *c = mpy_comm(comm);
    int real_request;
    int rc;
    if (MPY_UNLIKELY(c == NULL)) {
        mpy_cross_in(t);
        rc = MPY_REAL(Iallreduce)(sendbuf, recvbuf, count, mpy_real_datatype(datatype), mpy_real_op(op), mpy_real_comm(comm), request != NULL ? &real_request : NULL);
        mpy_cross_out(t);
        return mpy_error(NULL, rc, "MPI_Iallreduce");
    }
    if (MPY_UNLIKELY(mpy_folds(comm, op)) && request != NULL) return mpy_fold(&(mpy_reduction_t){.name = "MPI_Iallreduce", .kind = MPY_FOLD_ALLREDUCE, .persistent = false, .sendbuf = sendbuf, .recvbuf = recvbuf, .count = count, .datatype = datatype, .op = op, .comm = comm}, request);
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_ALLREDUCE, .flags = MPY_TRACE_NONBLOCKING, MPY_TRACE_POST, MPY_TRACE_ROOTED(c, MPI_UNDEFINED), .bytes = mpy_trace_bytes(count, datatype));
    mpy_clock_start(t, mpy_row(c->row), "MPI_Iallreduce");
    mpy_cross_in_collective(t);
    rc = MPY_REAL(Iallreduce)(sendbuf, recvbuf, count, mpy_real_datatype(datatype), mpy_real_op(op), c->obj.real, request != NULL ? &real_request : NULL);
    if (MPY_LIKELY(rc == 0)) {
        mpy_request_t *r = mpy_reduction_request(th, real_request, c, op);
        mpy_trace_posted(t, record, r);
        *request = r->handle;
    }
    mpy_collective_leave(t, mpy_row(c->row), rc);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(c, rc, "MPI_Iallreduce");
}
