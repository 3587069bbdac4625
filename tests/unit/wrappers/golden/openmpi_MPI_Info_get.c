int front_Info_get(front_handle_t info, const char *key, int valuelen, char *value, int *flag) {
    return front_error(MPY_CORE(Info_get)(core_handle(info), key, valuelen, value, flag));
}

void fortran_Info_get(const MPI_Fint *info, const char *key, const int *valuelen, char *value, int *flag, MPI_Fint *ierror, int key_length, int value_length) {
    char *key_c = fortran_text(key, key_length);
    char value_c[TEXT_SIZE];
    int rc = front_Info_get(front_of_fortran(FRONT_INFO, *info), key_c, fortran_value_length(*valuelen), value_c, flag);
    free(key_c);
    if (rc == MPI_SUCCESS && *flag) fortran_text_put(value, value_length, value_c);
    *ierror = rc;
}
