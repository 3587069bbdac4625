static int make_Scatterv_init_c(const mpy_argument_t *a, int comm, int info, int *request) {
    return MPY_REAL(Scatterv_init_c)(a[0].pointer, a[1].pointer, a[2].pointer, a[3].value, a[4].pointer, a[5].value, a[6].value, a[7].value, comm, info, request);
}
const mpy_persistent_call_t mpy_persistent_Scatterv_init_c = {"MPI_Scatterv_init_c", MPY_OP_SCATTER, make_Scatterv_init_c, 8, {{MPY_ARG_PLAIN, MPY_LENGTH_ONE}, {MPY_ARG_COUNTS, MPY_LENGTH_ROOT}, {MPY_ARG_COUNTS, MPY_LENGTH_ROOT}, {MPY_ARG_TYPE, MPY_LENGTH_ONE}, {MPY_ARG_PLAIN, MPY_LENGTH_ONE}, {MPY_ARG_PLAIN, MPY_LENGTH_ONE}, {MPY_ARG_TYPE, MPY_LENGTH_ONE}, {MPY_ARG_ROOT, MPY_LENGTH_ONE}}};
int PMPI_Scatterv_init_c(const void *sendbuf, const MPI_Count sendcounts[], const MPI_Aint displs[], MPI_Datatype sendtype, void *recvbuf, MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request *request) {
    if (MPY_UNLIKELY(request == NULL)) return mpy_error(mpy_comm(comm), MPI_ERR_ARG, "MPI_Scatterv_init_c");
    const mpy_argument_t a[] = {{.pointer = (void *)sendbuf}, {.pointer = (void *)sendcounts}, {.pointer = (void *)displs}, {.value = sendtype}, {.pointer = (void *)recvbuf}, {.value = recvcount}, {.value = recvtype}, {.value = root}};
    return mpy_persistent_init(&mpy_persistent_Scatterv_init_c, a, comm, info, NULL, "MPI_Scatterv_init_c", request);
}
