int front_Buffer_attach(void *buffer, int size) {
    return front_error(MPY_CORE(Buffer_attach)(buffer == (void *)FRONT_BUFFER_AUTOMATIC ? MPI_BUFFER_AUTOMATIC : buffer, size));
}
