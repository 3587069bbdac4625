int front_Comm_split_type(front_handle_t comm, int split_type, int key, front_handle_t info, front_handle_t *newcomm) {
    int newcomm_core = 0;
    int rc = MPY_CORE(Comm_split_type)(core_handle(comm), core_split(split_type), key, core_handle(info), newcomm != NULL ? &newcomm_core : NULL);
    if (LIKELY(newcomm_core != 0)) *newcomm = front_handle(FRONT_COMM, newcomm_core);
    return front_error(rc);
}

void fortran_Comm_split_type(const MPI_Fint *comm, const int *split_type, const int *key, const MPI_Fint *info, MPI_Fint *newcomm, MPI_Fint *ierror) {
    front_handle_t newcomm_front = 0;
    int rc = front_Comm_split_type(front_of_fortran(FRONT_COMM, *comm), *split_type, *key, front_of_fortran(FRONT_INFO, *info), &newcomm_front);
    if (newcomm_front != 0) *newcomm = front_fortran(FRONT_COMM, newcomm_front);
    *ierror = rc;
}
