int front_Irecv(void *buf, int count, front_handle_t datatype, int source, int tag, front_handle_t comm, front_handle_t *request) {
    int request_core = 0;
    int rc = MPY_CORE(Irecv)(buf, count, core_handle(datatype), core_rank(source), tag, core_handle(comm), request != NULL ? &request_core : NULL);
    if (LIKELY(request_core != 0)) *request = front_handle(FRONT_REQUEST, request_core);
    return front_error(rc);
}
