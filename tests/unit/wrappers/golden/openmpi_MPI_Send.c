int front_Send(const void *buf, int count, front_handle_t datatype, int dest, int tag, front_handle_t comm) {
    return front_error(MPY_CORE(Send)(buf, count, core_handle(datatype), core_rank(dest), tag, core_handle(comm)));
}
