/* start.c - MPI_Start and MPI_Startall: persistent requests of every family begin an operation.
 *
 * Upper half, no libc. Invariants: those of p2p.h and request.c.
 */
#include "p2p.h"

/* The inactive persistent request of a handle, or NULL. */
static mpy_request_t *startable(int handle) {
    mpy_request_t *r = handle != MPI_REQUEST_NULL ? mpy_request_valid(handle) : NULL;
    return r != NULL && r->flags & MPY_RF_INACTIVE ? r : NULL;
}

static int start_all(int n, const int *handles, const char *name) {
    for (int i = 0; i < n; i++)
        if (startable(handles[i]) == NULL) return mpy_error(NULL, MPI_ERR_REQUEST, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    for (int i = 0; i < n; i++) {
        mpy_request_t *r = startable(handles[i]);
        int rc = r != NULL ? r->family->start(t, th, r) : MPI_ERR_REQUEST; /* NULL: named twice */
        if (MPY_UNLIKELY(rc != MPI_SUCCESS)) return mpy_error(r != NULL ? mpy_request_comm(r) : NULL, rc, name);
    }
    mpy_p2p_done(t, th);
    return MPI_SUCCESS;
}

MPY_API int PMPI_Start(MPI_Request *request) { return start_all(1, request, "MPI_Start"); }
MPY_EXPORT(Start)

MPY_API int PMPI_Startall(int count, MPI_Request array_of_requests[]) {
    if (count < 0) return mpy_error(NULL, MPI_ERR_COUNT, "MPI_Startall");
    return start_all(count, array_of_requests, "MPI_Startall");
}
MPY_EXPORT(Startall)
