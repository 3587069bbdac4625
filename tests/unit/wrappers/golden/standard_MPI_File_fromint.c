front_handle_t front_File_fromint(int file) {
    return front_of_fortran(FRONT_FILE, file);
}
