int front_Status_set_elements(front_status_t *status, front_handle_t datatype, int count) {
    MPI_Status status_core = status != NULL ? core_status(status) : CORE_STATUS_EMPTY;
    int rc = MPY_CORE(Status_set_elements)(status != NULL ? &status_core : NULL, core_handle(datatype), count);
    if (rc == MPI_SUCCESS && status != NULL) front_status_count(status, &status_core);
    return front_error(rc);
}
