int front_Alltoallw(const void *sendbuf, const int sendcounts[], const int sdispls[], const front_handle_t sendtypes[], void *recvbuf, const int recvcounts[], const int rdispls[], const front_handle_t recvtypes[], front_handle_t comm) {
    int sendtypes_local[LOCAL_ITEMS], *sendtypes_core = core_handles(sendbuf == (const void *)FRONT_IN_PLACE ? NULL : sendtypes, mpy_core_members(core_handle(comm), MPY_PEERS), sendtypes_local);
    int recvtypes_local[LOCAL_ITEMS], *recvtypes_core = recvtypes == sendtypes && sendtypes_core != NULL ? sendtypes_core : core_handles(recvtypes, mpy_core_members(core_handle(comm), MPY_PEERS), recvtypes_local);
    int rc = MPY_CORE(Alltoallw)(core_buffer(sendbuf), sendcounts, sdispls, sendtypes_core, core_buffer(recvbuf), recvcounts, rdispls, recvtypes_core, core_handle(comm));
    core_handles_free(sendtypes_core, sendtypes_local);
    if (recvtypes_core != sendtypes_core) core_handles_free(recvtypes_core, recvtypes_local);
    return front_error(rc);
}

void fortran_Alltoallw(const void *sendbuf, const int sendcounts[], const int sdispls[], const MPI_Fint *sendtypes, void *recvbuf, const int recvcounts[], const int rdispls[], const MPI_Fint *recvtypes, const MPI_Fint *comm, MPI_Fint *ierror) {
    int sendtypes_count = is_in_place(sendbuf) ? 0 : fortran_members(comm, MPY_PEERS);
    front_handle_t sendtypes_local[LOCAL_ITEMS], *sendtypes_front = fortran_handles(FRONT_DATATYPE, sendtypes, sendtypes_count, sendtypes_local);
    int recvtypes_count = fortran_members(comm, MPY_PEERS);
    front_handle_t recvtypes_local[LOCAL_ITEMS], *recvtypes_front = fortran_handles(FRONT_DATATYPE, recvtypes, recvtypes_count, recvtypes_local);
    int rc = front_Alltoallw(fortran_buffer(sendbuf), sendcounts, sdispls, sendtypes_front, fortran_buffer(recvbuf), recvcounts, rdispls, recvtypes_front, front_of_fortran(FRONT_COMM, *comm));
    fortran_handles_free(sendtypes_front, sendtypes_local);
    fortran_handles_free(recvtypes_front, recvtypes_local);
    *ierror = rc;
}
