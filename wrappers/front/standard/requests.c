/* requests.c - calls on arrays of requests that came with MPI 4.1. They change no request. */
#include "standard.h"

int front_Request_get_status_all(int count, const front_handle_t requests[], int *flag, front_status_t *statuses) {
    front_arrays_t a;
    front_arrays_open(&a, count, requests, statuses);
    int rc = MPY_CORE(Request_get_status_all)(count, a.requests, flag, a.statuses);
    if (rc != MPI_SUCCESS || *flag) front_arrays_statuses(&a, count, statuses, rc);
    front_arrays_close(&a, count, NULL);
    return front_error(rc);
}

int front_Request_get_status_any(int count, const front_handle_t requests[], int *index, int *flag,
                                 front_status_t *status) {
    front_arrays_t a;
    MPI_Status core = CORE_STATUS_EMPTY;
    front_arrays_open(&a, count, requests, NULL);
    int rc = MPY_CORE(Request_get_status_any)(count, a.requests, index, flag,
                                              status != NULL ? &core : MPI_STATUS_IGNORE);
    if (status != NULL && rc == MPI_SUCCESS && *flag) front_status_put(status, &core);
    front_arrays_close(&a, count, NULL);
    return front_error(rc);
}

int front_Request_get_status_some(int incount, const front_handle_t requests[], int *outcount, int indices[],
                                  front_status_t *statuses) {
    front_arrays_t a;
    front_arrays_open(&a, incount, requests, statuses);
    int rc = MPY_CORE(Request_get_status_some)(incount, a.requests, outcount, indices, a.statuses);
    if (outcount != NULL && *outcount != MPI_UNDEFINED) front_arrays_statuses(&a, *outcount, statuses, rc);
    front_arrays_close(&a, incount, NULL);
    return front_error(rc);
}
