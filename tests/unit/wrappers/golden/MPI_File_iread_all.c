int PMPI_File_iread_all(MPI_File fh, void *buf, int count, MPI_Datatype datatype, MPI_Request *request) {
    int real_request;
    mpy_file_call_t call = mpy_file_enter(fh);
    mpy_file_t *f = call.f;
    if (f != NULL) mpy_lock(&f->lock);
    int rc = mpy_file_sequential(f) ? MPI_ERR_UNSUPPORTED_OPERATION : MPY_REAL(File_iread_all)(mpy_real_file(f), buf, count, mpy_real_datatype(datatype), request != NULL ? &real_request : NULL);
    if (f != NULL) mpy_unlock(&f->lock);
    if (rc == 0) *request = mpy_file_request(call.t, f, real_request, buf, count, datatype);
    mpy_file_leave(call, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(f, rc, "MPI_File_iread_all");
}
