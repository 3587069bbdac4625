int front_Irecv(void *buf, int count, front_handle_t datatype, int source, int tag, front_handle_t comm, front_handle_t *request) {
    int request_core = 0;
    int rc = MPY_CORE(Irecv)(buf, count, core_handle(datatype), core_rank(source), tag, core_handle(comm), request != NULL ? &request_core : NULL);
    if (LIKELY(request_core != 0)) *request = front_handle(FRONT_REQUEST, request_core);
    return front_error(rc);
}

void fortran_Irecv(void *buf, const int *count, const MPI_Fint *datatype, const int *source, const int *tag, const MPI_Fint *comm, MPI_Fint *request, MPI_Fint *ierror) {
    front_handle_t request_front = 0;
    int rc = front_Irecv(fortran_buffer(buf), *count, front_of_fortran(FRONT_DATATYPE, *datatype), *source, *tag, front_of_fortran(FRONT_COMM, *comm), &request_front);
    if (request_front != 0) *request = front_fortran(FRONT_REQUEST, request_front);
    *ierror = rc;
}
