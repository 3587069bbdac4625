int front_Status_get_source(const front_status_t *status, int *source) {
    MPI_Status status_core = status != NULL ? core_status(status) : CORE_STATUS_EMPTY;
    int rc = MPY_CORE(Status_get_source)(status != NULL ? &status_core : NULL, source);
    if (rc == MPI_SUCCESS && source != NULL) *source = front_rank(*source);
    return front_error(rc);
}
