int PMPI_Allreduce_c(const void *sendbuf, void *recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *c = mpy_comm(comm);
    int rc;
    if (MPY_UNLIKELY(c == NULL)) {
        mpy_cross_in(t);
        rc = MPY_REAL(Allreduce_c)(sendbuf, recvbuf, count, mpy_real_datatype(datatype), mpy_real_op(op), mpy_real_comm(comm));
        mpy_cross_out(t);
        return mpy_error(NULL, rc, "MPI_Allreduce_c");
    }
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_ALLREDUCE, MPY_TRACE_ROOTED(c, MPI_UNDEFINED), .bytes = mpy_trace_bytes(count, datatype));
    mpy_collective_enter(t, c);
    c->had[MPY_AGING_ALLREDUCE]++;
    mpy_cross_in_collective(t);
    rc = MPY_REAL(Allreduce_c)(sendbuf, recvbuf, count, mpy_real_datatype(datatype), mpy_real_op(op), c->obj.real);
    mpy_collective_leave(t, mpy_row(c->row), rc);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(c, rc, "MPI_Allreduce_c");
}
