int front_File_set_view(front_handle_t fh, MPI_Offset disp, front_handle_t etype, front_handle_t filetype, const char *datarep, front_handle_t info) {
    return front_error(MPY_CORE(File_set_view)(core_file(fh), disp == FRONT_DISPLACEMENT_CURRENT ? MPI_DISPLACEMENT_CURRENT : disp, core_handle(etype), core_handle(filetype), datarep, core_handle(info)));
}
