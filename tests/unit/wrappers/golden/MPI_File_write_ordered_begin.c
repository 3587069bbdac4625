int PMPI_File_write_ordered_begin(MPI_File fh, const void *buf, int count, MPI_Datatype datatype) {
    if (mpy_file_between(fh)) return mpy_file_error(mpy_file(fh), MPI_ERR_IO, "MPI_File_write_ordered_begin");
    mpy_file_call_t call = mpy_file_enter(fh);
    mpy_file_t *f = call.f;
    int rc = MPY_REAL(File_write_ordered_begin)(mpy_real_file(f), buf, count, mpy_real_datatype(datatype));
    if (f != NULL) f->shared = true;
    if (f != NULL) f->split = MPY_REAL(File_write_ordered_end)(f->real, buf, &f->split_status) == 0;
    mpy_file_leave(call, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(f, rc, "MPI_File_write_ordered_begin");
}
