int PMPI_Comm_compare(MPI_Comm comm1, MPI_Comm comm2, int *result) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_compare)(mpy_real_comm(comm1), mpy_real_comm(comm2), result);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(mpy_comm(comm1), rc, "MPI_Comm_compare");
}
