static int back_Bcast_c(void *buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm) {
    bool fits = true;
    fits &= mpy_fits(count) || root == MPI_PROC_NULL;
    int rc = !fits ? MPY_TOO_LARGE : ((int (*)(void *, int, void *, int, void *))mpy_theirs[MPY_FN_Bcast])(mpy_buffer_in(buffer), (int)count, mpy_in(MPY_KIND_DATATYPE, datatype), mpy_root_in(root), mpy_in(MPY_KIND_COMM, comm));
    return mpy_code_out(rc);
}
