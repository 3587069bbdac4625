int front_Comm_get_name(front_handle_t comm, char *comm_name, int *resultlen) {
    char comm_name_core[MPI_MAX_OBJECT_NAME + 1];
    int rc = MPY_CORE(Comm_get_name)(core_handle(comm), comm_name != NULL ? comm_name_core : NULL, resultlen);
    if (rc == MPI_SUCCESS) front_text(comm_name, FRONT_MAX_OBJECT_NAME, comm_name_core, resultlen);
    return front_error(rc);
}
