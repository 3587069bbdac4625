/* callbacks.c - subroutines of the program that the core calls: operations, error handlers and generalized requests.
 *
 * As in front/shared/callbacks.c, a proxy stands between the core and the program. It passes everything by its
 * address, and handles as numbers.
 */
#include "fortran.h"

#include <stdlib.h>

/* ---- operations ---- */

typedef void user_function_t(void *, void *, int *, MPI_Fint *);

static void op_proxy(const void *in, void *inout, MPI_Count count, MPI_Datatype datatype, void *function) {
    MPI_Fint type = front_fortran(FRONT_DATATYPE, front_handle(FRONT_DATATYPE, datatype));
    int n = (int)count;
    ((user_function_t *)function)((void *)in, inout, &n, &type);
}

void fortran_Op_create(mpy_opaque_function *function, MPI_Fint *commute, MPI_Fint *op, MPI_Fint *ierror) {
    front_handle_t own = 0;
    *ierror = front_Op_create(function, *commute, &own);
    if (own == 0) return;
    if (*ierror == MPI_SUCCESS) MPII_Op_set_cxx(core_handle(own), (front_function_t)op_proxy);
    *op = front_fortran(FRONT_OP, own);
}

/* ---- error handlers ---- */

typedef void errhandler_function_t(MPI_Fint *, int *);

static void errhandler_proxy(int of, void *object, int *code, void *function) {
    front_kind_t kind;
    front_handle_t h = front_failed_object(of, object, &kind);
    MPI_Fint number = front_fortran(kind, h);
    int error = front_error(*code);
    ((errhandler_function_t *)function)(&number, &error);
}

#define CREATE_ERRHANDLER(NAME) \
    void fortran_##NAME(mpy_opaque_function *function, MPI_Fint *errhandler, MPI_Fint *ierror) { \
        front_handle_t own = 0; \
        *ierror = front_##NAME(function, &own); \
        if (own == 0) return; \
        if (*ierror == MPI_SUCCESS) MPII_Errhandler_set_cxx(core_handle(own), (front_function_t)errhandler_proxy); \
        *errhandler = front_fortran(FRONT_ERRHANDLER, own); \
    }
CREATE_ERRHANDLER(Errhandler_create)
CREATE_ERRHANDLER(Comm_create_errhandler)
CREATE_ERRHANDLER(Win_create_errhandler)
CREATE_ERRHANDLER(File_create_errhandler)
CREATE_ERRHANDLER(Session_create_errhandler)

/* ---- generalized requests: their functions are kept in memory that is freed with the request. They get the program's
 * variable for the extra state, as in Open MPI and MPICH, and may change it. ---- */

typedef struct {
    void (*query)(MPI_Aint *, MPI_Fint *, int *);
    void (*free)(MPI_Aint *, int *);
    void (*cancel)(MPI_Aint *, int *, int *);
    MPI_Aint *extra;
} grequest_t;

static int query_grequest(void *extra, front_status_t *status) {
    grequest_t *g = extra;
    int rc = MPI_SUCCESS;
    g->query(g->extra, (MPI_Fint *)status, &rc);
    return rc;
}

static int free_grequest(void *extra) {
    grequest_t *g = extra;
    int rc = MPI_SUCCESS;
    g->free(g->extra, &rc);
    free(g);
    return rc;
}

static int cancel_grequest(void *extra, int complete) {
    grequest_t *g = extra;
    int rc = MPI_SUCCESS;
    g->cancel(g->extra, &complete, &rc);
    return rc;
}

void fortran_Grequest_start(mpy_opaque_function *query, mpy_opaque_function *release, mpy_opaque_function *cancel,
                            MPI_Aint *extra, MPI_Fint *request, MPI_Fint *ierror) {
    grequest_t *g = malloc(sizeof *g);
    if (g == NULL) abort();
    *g = (grequest_t){(void (*)(MPI_Aint *, MPI_Fint *, int *))query, (void (*)(MPI_Aint *, int *))release,
                      (void (*)(MPI_Aint *, int *, int *))cancel, extra};
    front_handle_t own = 0;
    *ierror = front_Grequest_start((mpy_opaque_function *)(front_function_t)query_grequest,
                                   (mpy_opaque_function *)(front_function_t)free_grequest,
                                   (mpy_opaque_function *)(front_function_t)cancel_grequest, g, &own);
    if (*ierror == MPI_SUCCESS)
        *request = front_fortran(FRONT_REQUEST, own);
    else
        free(g);
}

/* ---- data representations ---- */

/* Never called: its address says that a data representation has no conversion. */
EXPORTED void fortran_conversion_fn_null(void);
void fortran_conversion_fn_null(void) {}

/* ROMIO and Open MPI accept no conversion functions and never call the extent function: none gets a proxy. */
void fortran_Register_datarep(const char *name, mpy_opaque_function *read, mpy_opaque_function *write,
                              mpy_opaque_function *extent, MPI_Aint *extra, MPI_Fint *ierror, int length) {
    front_function_t none = (front_function_t)fortran_conversion_fn_null;
    char *own = fortran_text(name, length);
    *ierror = front_Register_datarep(own, (front_function_t)read != none ? read : NULL,
                                     (front_function_t)write != none ? write : NULL, extent, (void *)*extra);
    free(own);
}
