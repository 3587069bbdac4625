static int back_Put(const void *origin_addr, int origin_count, MPI_Datatype origin_datatype, int target_rank, MPI_Aint target_disp, int target_count, MPI_Datatype target_datatype, MPI_Win win) {
    int rc = ((int (*)(const void *, int, void *, int, MPI_Aint, int, void *, void *))mpy_theirs[MPY_FN_Put])(origin_addr, origin_count, mpy_in(MPY_KIND_DATATYPE, origin_datatype), mpy_rank_in(target_rank), target_disp, target_count, mpy_in(MPY_KIND_DATATYPE, target_datatype), mpy_in(MPY_KIND_WIN, win));
    return mpy_code_out(rc);
}
