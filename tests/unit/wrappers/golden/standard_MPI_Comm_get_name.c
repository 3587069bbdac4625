int front_Comm_get_name(front_handle_t comm, char *comm_name, int *resultlen) {
    return front_error(MPY_CORE(Comm_get_name)(core_handle(comm), comm_name, resultlen));
}
