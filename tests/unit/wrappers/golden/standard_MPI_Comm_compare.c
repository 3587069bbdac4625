int front_Comm_compare(front_handle_t comm1, front_handle_t comm2, int *result) {
    int rc = MPY_CORE(Comm_compare)(core_handle(comm1), core_handle(comm2), result);
    if (rc == MPI_SUCCESS && result != NULL) *result = front_compare(*result);
    return front_error(rc);
}
