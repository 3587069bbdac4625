int front_Alltoallw(const void *sendbuf, const int sendcounts[], const int sdispls[], const front_handle_t sendtypes[], void *recvbuf, const int recvcounts[], const int rdispls[], const front_handle_t recvtypes[], front_handle_t comm) {
    int sendtypes_local[LOCAL_ITEMS], *sendtypes_core = core_handles(sendbuf == (const void *)FRONT_IN_PLACE ? NULL : sendtypes, mpy_core_members(core_handle(comm), MPY_PEERS), sendtypes_local);
    int recvtypes_local[LOCAL_ITEMS], *recvtypes_core = recvtypes == sendtypes && sendtypes_core != NULL ? sendtypes_core : core_handles(recvtypes, mpy_core_members(core_handle(comm), MPY_PEERS), recvtypes_local);
    int rc = MPY_CORE(Alltoallw)(core_buffer(sendbuf), sendcounts, sdispls, sendtypes_core, core_buffer(recvbuf), recvcounts, rdispls, recvtypes_core, core_handle(comm));
    core_handles_free(sendtypes_core, sendtypes_local);
    if (recvtypes_core != sendtypes_core) core_handles_free(recvtypes_core, recvtypes_local);
    return front_error(rc);
}
