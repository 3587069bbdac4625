front_handle_t front_File_fromint(int file) {
    return front_file(MPY_CORE(File_fromint)(core_file_number(file)));
}
