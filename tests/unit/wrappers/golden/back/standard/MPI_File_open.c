static int back_File_open(MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *fh) {
    void *o_fh = mpy_file_null;
    int rc = ((int (*)(void *, const char *, int, void *, void **))mpy_theirs[MPY_FN_File_open])(mpy_in(MPY_KIND_COMM, comm), filename, mpy_bits_in(MPY_GROUP_AMODE, amode), mpy_in(MPY_KIND_INFO, info), fh != NULL ? &o_fh : NULL);
    if (rc == 0) *fh = mpy_file_out(o_fh);
    return mpy_code_out(rc);
}
