/* completion.c - calls on arrays of requests and of statuses.
 *
 * The core gets arrays of its own. They are on the stack up to LOCAL_ITEMS requests, so that no call for a few requests
 * allocates. The program's array of requests changes only where the core has changed a handle: another thread may look
 * at the others meanwhile, and an error handler that leaves by longjmp finds them as they were.
 */
#include "openmpi.h"

#include <stdlib.h>

typedef struct {
    int local[LOCAL_ITEMS], *requests;
    MPI_Status local_statuses[LOCAL_ITEMS], *statuses;
} arrays_t;

static void open_arrays(arrays_t *a, int n, const front_handle_t *requests, const front_status_t *statuses) {
    a->requests = requests != NULL && n > 0 ? core_handles(requests, n, a->local) : requests != NULL ? a->local : NULL;
    a->statuses = MPI_STATUSES_IGNORE;
    if (statuses == NULL) return;
    a->statuses = n <= LOCAL_ITEMS ? a->local_statuses : malloc((size_t)n * sizeof *a->statuses);
    if (a->statuses == NULL) abort();
}

static void close_arrays(arrays_t *a, int n, front_handle_t *requests) {
    for (int i = 0; i < n && requests != NULL; i++)
        if (a->requests[i] != core_handle(requests[i])) requests[i] = front_handle(FRONT_REQUEST, a->requests[i]);
    if (a->requests != NULL) core_handles_free(a->requests, a->local);
    if (a->statuses != a->local_statuses && a->statuses != MPI_STATUSES_IGNORE) free(a->statuses);
}

/* The first n statuses, after a call that returned rc. */
static void give_statuses(const arrays_t *a, int n, front_status_t *statuses, int rc) {
    bool in_status = rc != MPI_SUCCESS && front_error(rc) == OPENMPI_ERR_IN_STATUS;
    if (statuses == NULL || (rc != MPI_SUCCESS && !in_status)) return;
    for (int i = 0; i < n; i++) {
        if (!in_status) a->statuses[i].MPI_ERROR = MPI_SUCCESS; /* as in Open MPI; the core writes none */
        front_status_put(&statuses[i], &a->statuses[i]);
    }
}

int front_Waitall(int count, front_handle_t requests[], front_status_t *statuses) {
    arrays_t a;
    open_arrays(&a, count, requests, statuses);
    int rc = MPY_CORE(Waitall)(count, a.requests, a.statuses);
    give_statuses(&a, count, statuses, rc);
    close_arrays(&a, count, requests);
    return front_error(rc);
}

int front_Testall(int count, front_handle_t requests[], int *flag, front_status_t *statuses) {
    arrays_t a;
    open_arrays(&a, count, requests, statuses);
    int rc = MPY_CORE(Testall)(count, a.requests, flag, a.statuses);
    if (rc != MPI_SUCCESS || *flag) give_statuses(&a, count, statuses, rc);
    close_arrays(&a, count, requests);
    return front_error(rc);
}

int front_Waitany(int count, front_handle_t requests[], int *index, front_status_t *status) {
    arrays_t a;
    MPI_Status core = CORE_STATUS_EMPTY;
    open_arrays(&a, count, requests, NULL);
    int rc = MPY_CORE(Waitany)(count, a.requests, index, status != NULL ? &core : MPI_STATUS_IGNORE);
    if (status != NULL && (rc == MPI_SUCCESS || core.MPI_SOURCE != STATUS_UNWRITTEN)) front_status_put(status, &core);
    close_arrays(&a, count, requests);
    return front_error(rc);
}

int front_Testany(int count, front_handle_t requests[], int *index, int *flag, front_status_t *status) {
    arrays_t a;
    MPI_Status core = CORE_STATUS_EMPTY;
    open_arrays(&a, count, requests, NULL);
    int rc = MPY_CORE(Testany)(count, a.requests, index, flag, status != NULL ? &core : MPI_STATUS_IGNORE);
    if (status != NULL && ((rc == MPI_SUCCESS && *flag) || core.MPI_SOURCE != STATUS_UNWRITTEN))
        front_status_put(status, &core);
    close_arrays(&a, count, requests);
    return front_error(rc);
}

int front_Waitsome(int incount, front_handle_t requests[], int *outcount, int indices[], front_status_t *statuses) {
    arrays_t a;
    open_arrays(&a, incount, requests, statuses);
    int rc = MPY_CORE(Waitsome)(incount, a.requests, outcount, indices, a.statuses);
    if (outcount != NULL && *outcount != MPI_UNDEFINED) give_statuses(&a, *outcount, statuses, rc);
    close_arrays(&a, incount, requests);
    return front_error(rc);
}

int front_Testsome(int incount, front_handle_t requests[], int *outcount, int indices[], front_status_t *statuses) {
    arrays_t a;
    open_arrays(&a, incount, requests, statuses);
    int rc = MPY_CORE(Testsome)(incount, a.requests, outcount, indices, a.statuses);
    if (outcount != NULL && *outcount != MPI_UNDEFINED) give_statuses(&a, *outcount, statuses, rc);
    close_arrays(&a, incount, requests);
    return front_error(rc);
}

int front_Startall(int count, front_handle_t requests[]) {
    arrays_t a;
    open_arrays(&a, count, requests, NULL);
    int rc = MPY_CORE(Startall)(count, a.requests);
    close_arrays(&a, count, requests);
    return front_error(rc);
}
