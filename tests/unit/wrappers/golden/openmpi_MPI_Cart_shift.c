int front_Cart_shift(front_handle_t comm, int direction, int disp, int *rank_source, int *rank_dest) {
    int rc = MPY_CORE(Cart_shift)(core_handle(comm), direction, disp, rank_source, rank_dest);
    if (rc == MPI_SUCCESS && rank_source != NULL) *rank_source = front_rank(*rank_source);
    if (rc == MPI_SUCCESS && rank_dest != NULL) *rank_dest = front_rank(*rank_dest);
    return front_error(rc);
}
