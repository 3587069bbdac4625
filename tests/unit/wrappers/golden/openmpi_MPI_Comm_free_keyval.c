int front_Comm_free_keyval(int *comm_keyval) {
    int comm_keyval_core = comm_keyval != NULL ? core_keyval(*comm_keyval) : 0;
    int rc = MPY_CORE(Comm_free_keyval)(comm_keyval != NULL ? &comm_keyval_core : NULL);
    if (rc == MPI_SUCCESS && comm_keyval != NULL) *comm_keyval = front_keyval(comm_keyval_core);
    return front_error(rc);
}

void fortran_Comm_free_keyval(int *comm_keyval, MPI_Fint *ierror) {
    *ierror = front_Comm_free_keyval(comm_keyval);
}
