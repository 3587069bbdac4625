int PMPI_Barrier(MPI_Comm comm) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *c = mpy_comm(comm);
    int rc;
    if (MPY_UNLIKELY(c == NULL)) {
        mpy_cross_in(t);
        rc = MPY_REAL(Barrier)(mpy_real_comm(comm));
        mpy_cross_out(t);
        return mpy_error(NULL, rc, "MPI_Barrier");
    }
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_BARRIER, MPY_TRACE_ROOTED(c, MPI_UNDEFINED));
    mpy_collective_enter(t, c);
    c->had[MPY_AGING_BARRIER]++;
    mpy_cross_in_collective(t);
    rc = MPY_REAL(Barrier)(c->obj.real);
    mpy_collective_leave(t, mpy_row(c->row), rc);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(c, rc, "MPI_Barrier");
}
