static int back_Ialltoallw_c(const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint sdispls[], const MPI_Datatype sendtypes[], void *recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[], const MPI_Datatype recvtypes[], MPI_Comm comm, MPI_Request *request) {
    mpy_arrays_t arrays;
    mpy_arrays_begin(&arrays, true);
    bool fits = true;
    int *o_sendcounts = mpy_ints_of_counts(&arrays, sendcounts, sendcounts == NULL ? 0 : sendbuf == MPI_IN_PLACE ? 0 : mpy_length(comm, MPY_OF_PEERS), &fits);
    int *o_sdispls = mpy_ints_of_aints(&arrays, sdispls, sdispls == NULL ? 0 : sendbuf == MPI_IN_PLACE ? 0 : mpy_length(comm, MPY_OF_PEERS), &fits);
    long n_sendtypes = sendtypes == NULL ? 0 : sendbuf == MPI_IN_PLACE ? 0 : mpy_length(comm, MPY_OF_PEERS);
    void **o_sendtypes = mpy_handles_in(&arrays, MPY_KIND_DATATYPE, sendtypes, n_sendtypes);
    int *o_recvcounts = mpy_ints_of_counts(&arrays, recvcounts, recvcounts == NULL ? 0 : mpy_length(comm, MPY_OF_PEERS), &fits);
    int *o_rdispls = mpy_ints_of_aints(&arrays, rdispls, rdispls == NULL ? 0 : mpy_length(comm, MPY_OF_PEERS), &fits);
    long n_recvtypes = recvtypes == NULL ? 0 : mpy_length(comm, MPY_OF_PEERS);
    void **o_recvtypes = recvtypes == sendtypes && o_sendtypes != NULL ? o_sendtypes : mpy_handles_in(&arrays, MPY_KIND_DATATYPE, recvtypes, n_recvtypes);
    void *o_request = mpy_null[MPY_KIND_REQUEST];
    int rc = !fits ? MPY_TOO_LARGE : ((int (*)(const void *, const int[], const int[], void **, void *, const int[], const int[], void **, void *, void **))mpy_theirs[MPY_FN_Ialltoallw])(mpy_buffer_in(sendbuf), o_sendcounts, o_sdispls, o_sendtypes, mpy_buffer_in(recvbuf), o_recvcounts, o_rdispls, o_recvtypes, mpy_in(MPY_KIND_COMM, comm), request != NULL ? &o_request : NULL);
    if (rc == 0 && request != NULL) *request = mpy_out(MPY_KIND_REQUEST, o_request);
    if (rc == 0 && *request != MPI_REQUEST_NULL) mpy_request_keep(*request, arrays.blocks);
    else mpy_arrays_end(&arrays);
    return mpy_code_out(rc);
}
