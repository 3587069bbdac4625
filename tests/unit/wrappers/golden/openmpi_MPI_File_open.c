int front_File_open(front_handle_t comm, const char *filename, int amode, front_handle_t info, front_handle_t *fh) {
    MPI_File fh_core = (MPI_File)-1;
    int rc = MPY_CORE(File_open)(core_handle(comm), filename, amode, core_handle(info), fh != NULL ? &fh_core : NULL);
    if (LIKELY(fh_core != (MPI_File)-1)) *fh = front_file(fh_core);
    return front_error(rc);
}

void fortran_File_open(const MPI_Fint *comm, const char *filename, const int *amode, const MPI_Fint *info, MPI_Fint *fh, MPI_Fint *ierror, int filename_length) {
    char *filename_c = fortran_text(filename, filename_length);
    front_handle_t fh_front = 0;
    int rc = front_File_open(front_of_fortran(FRONT_COMM, *comm), filename_c, *amode, front_of_fortran(FRONT_INFO, *info), &fh_front);
    free(filename_c);
    if (fh_front != 0) *fh = front_fortran(FRONT_FILE, fh_front);
    *ierror = rc;
}
