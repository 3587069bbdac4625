static int back_Testsome(int incount, MPI_Request array_of_requests[], int *outcount, int array_of_indices[], MPI_Status *array_of_statuses) {
    mpy_arrays_t arrays;
    mpy_arrays_begin(&arrays, false);
    long n_array_of_requests = incount;
    void **o_array_of_requests = mpy_handles_in(&arrays, MPY_KIND_REQUEST, array_of_requests, n_array_of_requests);
    mpy_status_t *o_array_of_statuses = mpy_statuses_for(&arrays, array_of_statuses, incount);
    int rc = ((int (*)(int, void **, int *, int[], mpy_status_t *))mpy_theirs[MPY_FN_Testsome])(incount, o_array_of_requests, outcount, array_of_indices, o_array_of_statuses);
    mpy_handles_back(MPY_KIND_REQUEST, array_of_requests, o_array_of_requests, n_array_of_requests);
    if ((rc == 0) || mpy_failed_as(rc, BACK_ERR_IN_STATUS)) mpy_statuses_out(array_of_statuses, o_array_of_statuses, *outcount, rc);
    mpy_arrays_end(&arrays);
    return mpy_code_out(rc);
}
