static int back_Win_lock(int lock_type, int rank, int assert, MPI_Win win) {
    int rc = ((int (*)(int, int, int, void *))mpy_theirs[MPY_FN_Win_lock])(mpy_number_in(MPY_GROUP_LOCK, lock_type), mpy_rank_in(rank), mpy_bits_in(MPY_GROUP_ASSERT, assert), mpy_in(MPY_KIND_WIN, win));
    return mpy_code_out(rc);
}
