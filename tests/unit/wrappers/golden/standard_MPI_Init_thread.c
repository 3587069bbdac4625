int front_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int rc = MPY_CORE(Init_thread)(argc, argv, core_thread(required), provided);
    if (rc == MPI_SUCCESS && provided != NULL) *provided = front_thread(*provided);
    return front_error(rc);
}
