static int back_Win_shared_query_c(MPI_Win win, int rank, MPI_Aint *size, MPI_Aint *disp_unit, void *baseptr) {
    int o_disp_unit = 0;
    int rc = ((int (*)(void *, int, MPI_Aint *, int *, void *))mpy_theirs[MPY_FN_Win_shared_query])(mpy_in(MPY_KIND_WIN, win), mpy_rank_in(rank), size, disp_unit != NULL ? &o_disp_unit : NULL, baseptr);
    if (rc == 0 && disp_unit != NULL) *disp_unit = o_disp_unit;
    return mpy_code_out(rc);
}
