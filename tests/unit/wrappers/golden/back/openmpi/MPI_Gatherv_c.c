static int back_Gatherv_c(const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint displs[], MPI_Datatype recvtype, int root, MPI_Comm comm) {
    mpy_arrays_t arrays;
    mpy_arrays_begin(&arrays, false);
    bool fits = true;
    fits &= mpy_fits(sendcount) || sendbuf == MPI_IN_PLACE || root < 0;
    int *o_recvcounts = mpy_ints_of_counts(&arrays, recvcounts, recvcounts == NULL ? 0 : mpy_length_at_root(comm, root), &fits);
    int *o_displs = mpy_ints_of_aints(&arrays, displs, displs == NULL ? 0 : mpy_length_at_root(comm, root), &fits);
    int rc = !fits ? MPY_TOO_LARGE : ((int (*)(const void *, int, void *, void *, const int[], const int[], void *, int, void *))mpy_theirs[MPY_FN_Gatherv])(mpy_buffer_in(sendbuf), (int)sendcount, mpy_in(MPY_KIND_DATATYPE, sendtype), mpy_buffer_in(recvbuf), o_recvcounts, o_displs, mpy_in(MPY_KIND_DATATYPE, recvtype), mpy_root_in(root), mpy_in(MPY_KIND_COMM, comm));
    mpy_arrays_end(&arrays);
    return mpy_code_out(rc);
}
