static int back_Pack_c(const void *inbuf, MPI_Count incount, MPI_Datatype datatype, void *outbuf, MPI_Count outsize, MPI_Count *position, MPI_Comm comm) {
    bool fits = true;
    fits &= mpy_fits(incount);
    fits &= mpy_fits(outsize);
    fits &= mpy_fits(*position);
    int o_position = position != NULL && fits ? (int)*position : 0;
    int rc = !fits ? MPY_TOO_LARGE : ((int (*)(const void *, int, void *, void *, int, int *, void *))mpy_theirs[MPY_FN_Pack])(inbuf, (int)incount, mpy_in(MPY_KIND_DATATYPE, datatype), outbuf, (int)outsize, position != NULL ? &o_position : NULL, mpy_in(MPY_KIND_COMM, comm));
    if (rc == 0 && position != NULL) *position = o_position;
    return mpy_code_out(rc);
}
