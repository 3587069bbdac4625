MPI_Fint front_Group_c2f(front_handle_t group) {
    return front_fortran(FRONT_GROUP, group);
}
