static int back_Info_dup(MPI_Info info, MPI_Info *newinfo) {
    void *o_newinfo = mpy_null[MPY_KIND_INFO];
    int rc = ((int (*)(void *, void **))mpy_theirs[MPY_FN_Info_dup])(mpy_in(MPY_KIND_INFO, info), newinfo != NULL ? &o_newinfo : NULL);
    if (rc == 0 && newinfo != NULL) *newinfo = mpy_out(MPY_KIND_INFO, o_newinfo);
    return mpy_code_out(rc);
}
