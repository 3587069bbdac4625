int PMPI_File_seek(MPI_File fh, MPI_Offset offset, int whence) {
    mpy_thread_t *t = mpy_self();
    mpy_file_t *f = mpy_file(fh);
    mpy_cross_in(t);
    if (f != NULL) mpy_lock(&f->lock);
    int rc = mpy_file_sequential(f) ? MPI_ERR_UNSUPPORTED_OPERATION : MPY_REAL(File_seek)(mpy_real_file(f), offset, whence);
    if (f != NULL) mpy_unlock(&f->lock);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(f, rc, "MPI_File_seek");
}
