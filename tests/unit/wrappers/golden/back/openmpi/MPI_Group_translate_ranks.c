static int back_Group_translate_ranks(MPI_Group group1, int n, const int ranks1[], MPI_Group group2, int ranks2[]) {
    mpy_arrays_t arrays;
    mpy_arrays_begin(&arrays, false);
    int *o_ranks1 = mpy_ranks_in(&arrays, ranks1, n);
    int rc = ((int (*)(void *, int, const int[], void *, int[]))mpy_theirs[MPY_FN_Group_translate_ranks])(mpy_in(MPY_KIND_GROUP, group1), n, o_ranks1, mpy_in(MPY_KIND_GROUP, group2), ranks2);
    for (int i = 0; rc == 0 && i < n; i++) ranks2[i] = mpy_rank_out(ranks2[i]);
    mpy_arrays_end(&arrays);
    return mpy_code_out(rc);
}
