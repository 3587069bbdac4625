int front_Buffer_detach(void *buffer_addr, int *size) {
    int rc = MPY_CORE(Buffer_detach)(buffer_addr, size);
    if (rc == MPI_SUCCESS && buffer_addr != NULL && *(void **)buffer_addr == MPI_BUFFER_AUTOMATIC) *(void **)buffer_addr = (void *)FRONT_BUFFER_AUTOMATIC;
    return front_error(rc);
}
