int front_Wait(front_handle_t *request, front_status_t *status) {
    int request_core = request != NULL ? core_handle(*request) : 0, request_given = request_core;
    MPI_Status status_core = CORE_STATUS_EMPTY;
    int rc = MPY_CORE(Wait)(request != NULL ? &request_core : NULL, status != NULL ? &status_core : MPI_STATUS_IGNORE);
    if (LIKELY(request_core != request_given)) *request = front_handle(FRONT_REQUEST, request_core);
    if (status != NULL && LIKELY((rc == MPI_SUCCESS) || status_core.MPI_SOURCE != STATUS_UNWRITTEN)) front_status_put(status, &status_core);
    return front_error(rc);
}

void fortran_Wait(MPI_Fint *request, MPI_Fint *status, MPI_Fint *ierror) {
    front_handle_t request_front = front_of_fortran(FRONT_REQUEST, *request), request_given = request_front;
    int rc = front_Wait(&request_front, fortran_status(status));
    if (request_front != request_given) *request = front_fortran(FRONT_REQUEST, request_front);
    *ierror = rc;
}
