static int back_Recv(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm, MPI_Status *status) {
    mpy_status_t o_status = MPY_STATUS_EMPTY;
    int rc = ((int (*)(void *, int, void *, int, int, void *, mpy_status_t *))mpy_theirs[MPY_FN_Recv])(buf, count, mpy_in(MPY_KIND_DATATYPE, datatype), mpy_rank_in(source), mpy_tag_in(tag), mpy_in(MPY_KIND_COMM, comm), status == MPI_STATUS_IGNORE ? NULL : &o_status);
    if (status != MPI_STATUS_IGNORE && (rc == 0 || mpy_failed_as(rc, BACK_ERR_TRUNCATE))) mpy_status_out(status, &o_status);
    return mpy_code_out(rc);
}
