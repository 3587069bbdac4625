int PMPI_Alltoallw(const void *sendbuf, const int sendcounts[], const int sdispls[], const MPI_Datatype sendtypes[], void *recvbuf, const int recvcounts[], const int rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *c = mpy_comm(comm);
    int rc;
    if (MPY_UNLIKELY(c == NULL)) {
        mpy_cross_in(t);
        rc = MPY_REAL(Alltoallw)(sendbuf, sendcounts, sdispls, NULL, recvbuf, recvcounts, rdispls, NULL, mpy_real_comm(comm));
        mpy_cross_out(t);
        return mpy_error(NULL, rc, "MPI_Alltoallw");
    }
    int local_sendtypes[MPY_LOCAL_TYPES], *real_sendtypes, n_sendtypes = c->remote_size != 0 ? c->remote_size : c->size;
    int local_recvtypes[MPY_LOCAL_TYPES], *real_recvtypes, n_recvtypes = c->remote_size != 0 ? c->remote_size : c->size;
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_ALLTOALL, MPY_TRACE_ROOTED(c, MPI_UNDEFINED));
    mpy_collective_enter(t, c);
    mpy_cross_in_collective(t);
    real_sendtypes = mpy_real_datatypes(sendbuf == MPI_IN_PLACE ? NULL : sendtypes, n_sendtypes, local_sendtypes);
    real_recvtypes = recvtypes == sendtypes && n_recvtypes == n_sendtypes && real_sendtypes != NULL ? real_sendtypes : mpy_real_datatypes(recvtypes, n_recvtypes, local_recvtypes);
    rc = MPY_REAL(Alltoallw)(sendbuf, sendcounts, sdispls, real_sendtypes, recvbuf, recvcounts, rdispls, real_recvtypes, c->obj.real);
    mpy_real_datatypes_free(real_sendtypes, n_sendtypes, local_sendtypes);
    if (real_recvtypes != real_sendtypes) mpy_real_datatypes_free(real_recvtypes, n_recvtypes, local_recvtypes);
    mpy_collective_leave(t, mpy_row(c->row), rc);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(c, rc, "MPI_Alltoallw");
}
