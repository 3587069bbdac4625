/* errors.h - errors of the program's calls, and error handlers. See errors.c and errhandler.c. */
#ifndef MANAPY_ERRORS_H
#define MANAPY_ERRORS_H

#include "core/objects.h"

/* Calls the communicator's virtual error handler; returns the code that the call must return. */
MPY_HIDDEN int mpy_error(const mpy_comm_t *comm_or_null, int code, const char *function);
/* The same for a window, file or session: `handle` points to its handle, `errhandler` is its handler. */
MPY_HIDDEN int mpy_error_of(void *handle, int errhandler, int code, const char *function);

/* ---- error handlers ---- */
typedef enum {
    MPY_ERRHANDLER_COMM,
    MPY_ERRHANDLER_FILE,
    MPY_ERRHANDLER_WIN,
    MPY_ERRHANDLER_SESSION
} mpy_errhandler_kind_t;
typedef void mpy_errhandler_proxy_t(int kind, void *handle, int *code, void *function);
typedef struct mpy_errhandler {
    mpy_object_t obj;   /* refs: handles included */
    mpy_errhandler_kind_t kind;
    void *function;
    /* MPICH's C++ library's proxy, as for operations; its numbers of kinds are the same as ours */
    mpy_errhandler_proxy_t *proxy;
    int32_t handles;    /* references that the program has */
} mpy_errhandler_t;
/* MPICH's MPI::ERRORS_THROW_EXCEPTIONS. The call returns its code, as with MPI_ERRORS_RETURN; the C++ library
 * throws. */
enum { MPY_ERRORS_THROW_EXCEPTIONS = 0x54000002 };
/* put: stores `handle` in *slot as an object's handler. Returns MPI_SUCCESS or MPI_ERR_ERRHANDLER. get: the answer to
 * X_get_errhandler. */
MPY_HIDDEN int mpy_errhandler_put(int *slot, int handle, mpy_errhandler_kind_t kind);
MPY_HIDDEN int mpy_errhandler_get(int slot, MPI_Errhandler *handle);
MPY_HIDDEN bool mpy_errhandler_valid(int handle, mpy_errhandler_kind_t kind);
MPY_HIDDEN void mpy_errhandler_ref(int handle);
MPY_HIDDEN void mpy_errhandler_unref(int handle);
MPY_HIDDEN int mpy_error_virtual(int real); /* the program's value of an error class or code */
MPY_HIDDEN int mpy_errors_rebuild(char *error, uint64_t n); /* error classes and codes that the program has added */

#endif
