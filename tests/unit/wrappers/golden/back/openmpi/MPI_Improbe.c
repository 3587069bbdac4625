static int back_Improbe(int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status) {
    void *o_message = mpy_null[MPY_KIND_MESSAGE];
    mpy_status_t o_status = MPY_STATUS_EMPTY;
    int rc = ((int (*)(int, int, void *, int *, void **, mpy_status_t *))mpy_theirs[MPY_FN_Improbe])(mpy_rank_in(source), tag, mpy_in(MPY_KIND_COMM, comm), flag, message != NULL ? &o_message : NULL, status == MPI_STATUS_IGNORE ? NULL : &o_status);
    if (rc == 0 && message != NULL) *message = mpy_out(MPY_KIND_MESSAGE, o_message);
    if (status != MPI_STATUS_IGNORE && (rc == 0 || mpy_failed_as(rc, BACK_ERR_TRUNCATE)) && *flag) mpy_status_out(status, &o_status);
    return mpy_code_out(rc);
}
