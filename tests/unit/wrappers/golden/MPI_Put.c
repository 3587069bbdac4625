int PMPI_Put(const void *origin_addr, int origin_count, MPI_Datatype origin_datatype, int target_rank, MPI_Aint target_disp, int target_count, MPI_Datatype target_datatype, MPI_Win win) {
    mpy_thread_t *t = mpy_self();
    mpy_win_t *w = mpy_win(win);
    int rc = mpy_win_access(w, target_rank);
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "MPI_Put");
    if (mpy_win_put(t, w, origin_addr, origin_count, origin_datatype, target_rank, target_disp, target_count, target_datatype)) return MPI_SUCCESS;
    mpy_cross_in(t);
    rc = MPY_REAL(Put)(origin_addr, origin_count, mpy_real_datatype(origin_datatype), target_rank, target_disp, target_count, mpy_real_datatype(target_datatype), w->obj.real);
    mpy_win_issued(w, target_rank);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_win_error(w, rc, "MPI_Put");
}
