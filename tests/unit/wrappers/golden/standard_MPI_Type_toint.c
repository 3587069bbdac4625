int front_Type_toint(front_handle_t datatype) {
    return front_fortran(FRONT_DATATYPE, datatype);
}
