/* callbacks.c - functions of the program that the core calls. They expect handles, statuses and errors of the
 * front's interface.
 *
 * The core keeps the program's function, as in its own interface, and a proxy of this file that calls it
 * (front/front.h). So an operation or a keyval needs nothing here. A generalized request has no such place in the core:
 * it keeps its functions in memory that is freed with the request.
 *
 * Proxies are called on the upper TLS.
 */
#include "front_interface.h"

#include <stdlib.h>

/* ---- operations ---- */

typedef void user_function_t(void *, void *, int *, front_handle_t *);

static void op_proxy(const void *in, void *inout, MPI_Count count, MPI_Datatype datatype, void *function) {
    front_handle_t type = front_handle(FRONT_DATATYPE, datatype);
    int n = (int)count;
    ((user_function_t *)function)((void *)in, inout, &n, &type);
}

int front_Op_create(mpy_opaque_function *function, int commute, front_handle_t *op) {
    int core = 0;
    int rc = MPY_CORE(Op_create)((MPI_User_function *)function, commute, op != NULL ? &core : NULL);
    return front_op_created(rc, core, (front_function_t)op_proxy, op);
}

int front_op_created(int rc, int core, front_function_t proxy, front_handle_t *op) {
    if (rc == MPI_SUCCESS) MPII_Op_set_cxx(core, proxy);
    if (core != 0) *op = front_handle(FRONT_OP, core);
    return front_error(rc);
}

/* ---- error handlers ---- */

typedef void errhandler_function_t(front_handle_t *, int *, ...);
enum { OF_COMM, OF_FILE, OF_WIN, OF_SESSION }; /* mpy_errhandler_kind_t of the core */

front_handle_t front_failed_object(int of, void *object, front_kind_t *kind) {
    static const front_kind_t kinds[] = {
        [OF_COMM] = FRONT_COMM, [OF_FILE] = FRONT_FILE, [OF_WIN] = FRONT_WIN, [OF_SESSION] = FRONT_SESSION};
    *kind = kinds[of];
    if (of == OF_FILE) return front_file(object != NULL ? *(MPI_File *)object : MPI_FILE_NULL);
    return front_handle(*kind, object != NULL ? *(int *)object : 0);
}

static void errhandler_proxy(int of, void *object, int *code, void *function) {
    front_kind_t kind;
    front_handle_t h = front_failed_object(of, object, &kind);
    int error = front_error(*code);
    ((errhandler_function_t *)function)(&h, &error, "manapy", (char *)NULL);
}

#define CREATE_ERRHANDLER(NAME, TYPE) \
    int front_##NAME(mpy_opaque_function *function, front_handle_t *errhandler) { \
        int core = 0; \
        int rc = MPY_CORE(NAME)((TYPE *)function, errhandler != NULL ? &core : NULL); \
        if (rc == MPI_SUCCESS) MPII_Errhandler_set_cxx(core, (front_function_t)errhandler_proxy); \
        if (core != 0) *errhandler = front_handle(FRONT_ERRHANDLER, core); \
        return front_error(rc); \
    }
CREATE_ERRHANDLER(Comm_create_errhandler, MPI_Comm_errhandler_function)
CREATE_ERRHANDLER(Errhandler_create, MPI_Comm_errhandler_function)
CREATE_ERRHANDLER(Win_create_errhandler, MPI_Win_errhandler_function)
CREATE_ERRHANDLER(File_create_errhandler, MPI_File_errhandler_function)
CREATE_ERRHANDLER(Session_create_errhandler, MPI_Session_errhandler_function)

/* ---- attributes ---- */

typedef int copy_function_t(front_handle_t, int, void *, void *, void *, int *);
typedef int delete_function_t(front_handle_t, int, void *, void *);

/* A function of C gets the address of a value that Fortran has set (MPI-4 19.3.7): its type is odd. If the function's
 * copy is that address, the copy is the same value. */
#define KEYVAL_PROXIES(KIND) \
    static int copy_##KIND(MPI_Comm_copy_attr_function *function, int object, int keyval, void *extra, int type, \
                           void *value, void **copy, int *flag) { \
        front_handle_t h = front_handle(FRONT_##KIND, object); \
        void *seen = type & 1 ? &value : value; \
        int rc = ((copy_function_t *)(front_function_t)function)(h, keyval, extra, seen, copy, flag); \
        if (*copy == (void *)&value) *copy = value; \
        return core_error(rc); \
    } \
    static int delete_##KIND(MPI_Comm_delete_attr_function *function, int object, int keyval, int type, void *value, \
                             void *extra) { \
        front_handle_t h = front_handle(FRONT_##KIND, object); \
        void *seen = type & 1 ? &value : value; \
        return core_error(((delete_function_t *)(front_function_t)function)(h, keyval, seen, extra)); \
    }
KEYVAL_PROXIES(COMM)
KEYVAL_PROXIES(DATATYPE)
KEYVAL_PROXIES(WIN)

#define CREATE_KEYVAL(NAME, KIND) \
    int front_##NAME(mpy_opaque_function *copy, mpy_opaque_function *delete, int *keyval, void *extra) { \
        int rc = MPY_CORE(NAME)((MPI_Comm_copy_attr_function *)front_copy_function(copy), \
                                (MPI_Comm_delete_attr_function *)delete, keyval, extra); \
        if (rc == MPI_SUCCESS) MPII_Keyval_set_proxy(*keyval, copy_##KIND, delete_##KIND); \
        return front_error(rc); \
    }
CREATE_KEYVAL(Comm_create_keyval, COMM)
CREATE_KEYVAL(Keyval_create, COMM)
CREATE_KEYVAL(Type_create_keyval, DATATYPE)
CREATE_KEYVAL(Win_create_keyval, WIN)

/* ---- generalized requests ---- */

typedef struct {
    int (*query)(void *, front_status_t *);
    MPI_Grequest_free_function *free;
    MPI_Grequest_cancel_function *cancel;
    void *extra;
} grequest_t;

/* The program fills in the status with MPI_Status_set_elements and others, or writes its fields. */
static int query_grequest(void *extra, MPI_Status *status) {
    const grequest_t *g = extra;
    front_status_t own = {.source = FRONT_ANY_SOURCE, .tag = FRONT_ANY_TAG};
    int rc = core_error(g->query(g->extra, &own));
    int error = status->MPI_ERROR;
    *status = core_status(&own);
    status->MPI_ERROR = error;
    return rc;
}

static int free_grequest(void *extra) {
    grequest_t *g = extra;
    int rc = core_error(g->free(g->extra));
    free(g);
    return rc;
}

static int cancel_grequest(void *extra, int complete) {
    const grequest_t *g = extra;
    return core_error(g->cancel(g->extra, complete));
}

int front_Grequest_start(mpy_opaque_function *query, mpy_opaque_function *release, mpy_opaque_function *cancel,
                         void *extra, front_handle_t *request) {
    grequest_t *g = malloc(sizeof *g);
    if (g == NULL) return FRONT_ERR_NO_MEM;
    *g = (grequest_t){(int (*)(void *, front_status_t *))query, (MPI_Grequest_free_function *)release,
                      (MPI_Grequest_cancel_function *)cancel, extra};
    int core = 0;
    int rc = MPY_CORE(Grequest_start)(query_grequest, free_grequest, cancel_grequest, g,
                                      request != NULL ? &core : NULL);
    if (rc == MPI_SUCCESS)
        *request = front_handle(FRONT_REQUEST, core);
    else
        free(g);
    return front_error(rc);
}
