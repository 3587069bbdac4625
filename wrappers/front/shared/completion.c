/* completion.c - calls on arrays of requests and of statuses.
 *
 * The core gets arrays of its own. They are on the stack up to LOCAL_ITEMS requests, so that no call for a few requests
 * allocates. The program's array of requests changes only where the core has changed a handle: another thread may look
 * at the others meanwhile, and an error handler that leaves by longjmp finds them as they were.
 */
#include "front_interface.h"

#include <stdlib.h>

void front_arrays_open(front_arrays_t *a, int n, const front_handle_t *requests, const front_status_t *statuses) {
    a->requests = requests != NULL && n > 0 ? core_handles(requests, n, a->local) : requests != NULL ? a->local : NULL;
    a->statuses = MPI_STATUSES_IGNORE;
    if (statuses == NULL) return;
    a->statuses = n <= LOCAL_ITEMS ? a->local_statuses : malloc((size_t)n * sizeof *a->statuses);
    if (a->statuses == NULL) abort();
    for (int i = 0; i < n; i++) a->statuses[i] = CORE_STATUS_EMPTY;
}

void front_arrays_close(front_arrays_t *a, int n, front_handle_t *requests) {
    for (int i = 0; i < n && requests != NULL; i++)
        if (a->requests[i] != core_handle(requests[i])) requests[i] = front_handle(FRONT_REQUEST, a->requests[i]);
    if (a->requests != NULL) core_handles_free(a->requests, a->local);
    if (a->statuses != a->local_statuses && a->statuses != MPI_STATUSES_IGNORE) free(a->statuses);
}

void front_arrays_statuses(const front_arrays_t *a, int n, front_status_t *statuses, int rc) {
    bool in_status = rc != MPI_SUCCESS && front_error(rc) == FRONT_ERR_IN_STATUS;
    if (statuses == NULL || (rc != MPI_SUCCESS && !in_status)) return;
    for (int i = 0; i < n; i++) {
        if (!in_status) a->statuses[i].MPI_ERROR = MPI_SUCCESS; /* the core writes none */
        front_status_put(&statuses[i], &a->statuses[i]);
    }
}

int front_Waitall(int count, front_handle_t requests[], front_status_t *statuses) {
    front_arrays_t a;
    front_arrays_open(&a, count, requests, statuses);
    int rc = MPY_CORE(Waitall)(count, a.requests, a.statuses);
    front_arrays_statuses(&a, count, statuses, rc);
    front_arrays_close(&a, count, requests);
    return front_error(rc);
}

int front_Testall(int count, front_handle_t requests[], int *flag, front_status_t *statuses) {
    front_arrays_t a;
    front_arrays_open(&a, count, requests, statuses);
    int rc = MPY_CORE(Testall)(count, a.requests, flag, a.statuses);
    if (rc != MPI_SUCCESS || *flag) front_arrays_statuses(&a, count, statuses, rc);
    front_arrays_close(&a, count, requests);
    return front_error(rc);
}

int front_Waitany(int count, front_handle_t requests[], int *index, front_status_t *status) {
    front_arrays_t a;
    MPI_Status core = CORE_STATUS_EMPTY;
    front_arrays_open(&a, count, requests, NULL);
    int rc = MPY_CORE(Waitany)(count, a.requests, index, status != NULL ? &core : MPI_STATUS_IGNORE);
    if (status != NULL && (rc == MPI_SUCCESS || core.MPI_SOURCE != STATUS_UNWRITTEN)) front_status_put(status, &core);
    front_arrays_close(&a, count, requests);
    return front_error(rc);
}

int front_Testany(int count, front_handle_t requests[], int *index, int *flag, front_status_t *status) {
    front_arrays_t a;
    MPI_Status core = CORE_STATUS_EMPTY;
    front_arrays_open(&a, count, requests, NULL);
    int rc = MPY_CORE(Testany)(count, a.requests, index, flag, status != NULL ? &core : MPI_STATUS_IGNORE);
    if (status != NULL && ((rc == MPI_SUCCESS && *flag) || core.MPI_SOURCE != STATUS_UNWRITTEN))
        front_status_put(status, &core);
    front_arrays_close(&a, count, requests);
    return front_error(rc);
}

int front_Waitsome(int incount, front_handle_t requests[], int *outcount, int indices[], front_status_t *statuses) {
    front_arrays_t a;
    front_arrays_open(&a, incount, requests, statuses);
    int rc = MPY_CORE(Waitsome)(incount, a.requests, outcount, indices, a.statuses);
    if (outcount != NULL && *outcount != MPI_UNDEFINED) front_arrays_statuses(&a, *outcount, statuses, rc);
    front_arrays_close(&a, incount, requests);
    return front_error(rc);
}

int front_Testsome(int incount, front_handle_t requests[], int *outcount, int indices[], front_status_t *statuses) {
    front_arrays_t a;
    front_arrays_open(&a, incount, requests, statuses);
    int rc = MPY_CORE(Testsome)(incount, a.requests, outcount, indices, a.statuses);
    if (outcount != NULL && *outcount != MPI_UNDEFINED) front_arrays_statuses(&a, *outcount, statuses, rc);
    front_arrays_close(&a, incount, requests);
    return front_error(rc);
}

int front_Startall(int count, front_handle_t requests[]) {
    front_arrays_t a;
    front_arrays_open(&a, count, requests, NULL);
    int rc = MPY_CORE(Startall)(count, a.requests);
    front_arrays_close(&a, count, requests);
    return front_error(rc);
}
