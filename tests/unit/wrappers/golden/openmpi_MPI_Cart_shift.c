int front_Cart_shift(front_handle_t comm, int direction, int disp, int *rank_source, int *rank_dest) {
    int rc = MPY_CORE(Cart_shift)(core_handle(comm), direction, disp, rank_source, rank_dest);
    if (rc == MPI_SUCCESS && rank_source != NULL) *rank_source = front_rank(*rank_source);
    if (rc == MPI_SUCCESS && rank_dest != NULL) *rank_dest = front_rank(*rank_dest);
    return front_error(rc);
}

void fortran_Cart_shift(const MPI_Fint *comm, const int *direction, const int *disp, int *rank_source, int *rank_dest, MPI_Fint *ierror) {
    *ierror = front_Cart_shift(front_of_fortran(FRONT_COMM, *comm), *direction, *disp, rank_source, rank_dest);
}
