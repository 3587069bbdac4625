int front_Recv(void *buf, int count, front_handle_t datatype, int source, int tag, front_handle_t comm, front_status_t *status) {
    MPI_Status status_core = CORE_STATUS_EMPTY;
    int rc = MPY_CORE(Recv)(buf, count, core_handle(datatype), core_rank(source), core_tag(tag), core_handle(comm), status != NULL ? &status_core : MPI_STATUS_IGNORE);
    if (status != NULL && LIKELY((rc == MPI_SUCCESS) || status_core.MPI_SOURCE != STATUS_UNWRITTEN)) front_status_put(status, &status_core);
    return front_error(rc);
}
