int front_Send(const void *buf, int count, front_handle_t datatype, int dest, int tag, front_handle_t comm) {
    return front_error(MPY_CORE(Send)(buf, count, core_handle(datatype), core_rank(dest), tag, core_handle(comm)));
}

void fortran_Send(const void *buf, const int *count, const MPI_Fint *datatype, const int *dest, const int *tag, const MPI_Fint *comm, MPI_Fint *ierror) {
    *ierror = front_Send(fortran_buffer(buf), *count, front_of_fortran(FRONT_DATATYPE, *datatype), *dest, *tag, front_of_fortran(FRONT_COMM, *comm));
}
