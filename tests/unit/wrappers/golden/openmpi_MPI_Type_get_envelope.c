int front_Type_get_envelope(front_handle_t datatype, int *num_integers, int *num_addresses, int *num_datatypes, int *combiner) {
    int rc = MPY_CORE(Type_get_envelope)(core_handle(datatype), num_integers, num_addresses, num_datatypes, combiner);
    if (rc == MPI_SUCCESS && combiner != NULL) *combiner = front_combiner(*combiner);
    return front_error(rc);
}

void fortran_Type_get_envelope(const MPI_Fint *datatype, int *num_integers, int *num_addresses, int *num_datatypes, int *combiner, MPI_Fint *ierror) {
    *ierror = front_Type_get_envelope(front_of_fortran(FRONT_DATATYPE, *datatype), num_integers, num_addresses, num_datatypes, combiner);
}
