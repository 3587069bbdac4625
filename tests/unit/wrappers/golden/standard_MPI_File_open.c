int front_File_open(front_handle_t comm, const char *filename, int amode, front_handle_t info, front_handle_t *fh) {
    MPI_File fh_core = (MPI_File)-1;
    int rc = MPY_CORE(File_open)(core_handle(comm), filename, core_amode(amode), core_handle(info), fh != NULL ? &fh_core : NULL);
    if (LIKELY(fh_core != (MPI_File)-1)) *fh = front_file(fh_core);
    return front_error(rc);
}
