int front_File_seek(front_handle_t fh, MPI_Offset offset, int whence) {
    return front_error(MPY_CORE(File_seek)(core_file(fh), offset, core_seek(whence)));
}
