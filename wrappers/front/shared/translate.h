/* translate.h - what all fronts share: a library with the binary interface of another MPI towards the program, and
 * MPICH's towards the core. Upper half, upper TLS.
 *
 * The files of this folder are compiled once for each front. They include front_interface.h, which includes the front's
 * own header (front/<family>/<family>.h). That header defines the following, and includes this one at its end:
 *
 *   core_handle()                  the core's handle for one of the program
 *   HANDLE_OF(X)                   the handle of a predefined object, as front_objects.h has it
 *   NULL_REQUEST, NULL_FILE        handles that are null
 *   front_status_t                 source, tag, error, cancelled and bytes of a status, at their places
 *   CODES_HAVE_DETAILS             is a code more than its class?
 *   front_predefined_number()      the number of a handle that isn't created, and not of a file (MPI_X_c2f,
 *                                  MPI_X_toint)
 *   front_predefined()             the predefined handle of a number, or 0
 *   front_file_number(), core_file_number()  numbers of files
 *   front_copy_function()          a predefined function that copies attributes is a function
 *   front_has_no_value()           a predefined attribute that is never set
 *   FAMILY, LIBRARY                names
 *
 * A function MPI_X of the interface is front_X here: generated, or written in one of these files or the front's. The
 * linker gives it its two names (front_aliases.ld). FRONT_X is the interface's number for MPI_X.
 *
 * Invariants
 *  1. A handle of a created object is HANDLE_CREATED and the core's int. No memory belongs to it, and no program has an
 *     object at these addresses.
 *  2. An MPI_File is a pointer in the core, too: the same one, except for the null handle.
 *  3. Between two calls of the core nothing is kept here, except what callbacks need. So a checkpoint and a restart
 *     need no hook in this library.
 *  4. Nothing is allocated in the path of a message: arrays up to LOCAL_ITEMS long are translated on the stack.
 */
#ifndef MANAPY_TRANSLATE_H
#define MANAPY_TRANSLATE_H

#include <limits.h>
#include <stdbool.h>

typedef enum {
    FRONT_COMM, FRONT_GROUP, FRONT_DATATYPE, FRONT_OP, FRONT_ERRHANDLER, FRONT_INFO, FRONT_REQUEST, FRONT_MESSAGE,
    FRONT_WIN, FRONT_SESSION, FRONT_FILE,
} front_kind_t;

#include "front_functions.h" /* generated: prototypes of front_X, and of the constants' translations */

/* ---- handles ---- */
enum { LOCAL_ITEMS = 64 };

/* handles.c: any handle, also a predefined one */
front_handle_t front_handle_slow(front_kind_t kind, int core);
static inline front_handle_t front_handle(front_kind_t kind, int core) {
    /* bits 30-31: created. Five predefined types of pairs look like created ones. */
    if (LIKELY((unsigned)core >> 30 == 2 && kind != FRONT_DATATYPE)) return HANDLE_CREATED | (unsigned)core;
    if (kind == FRONT_REQUEST && core == MPI_REQUEST_NULL) return NULL_REQUEST;
    return front_handle_slow(kind, core);
}
/* The handle as a number (MPI_X_c2f, MPI_X_toint), and back. */
MPI_Fint front_fortran(front_kind_t kind, front_handle_t h);
front_handle_t front_of_fortran(front_kind_t kind, MPI_Fint number);
MPI_Fint front_predefined_number(front_handle_t h);
front_handle_t front_predefined(front_kind_t kind, MPI_Fint number);
static inline MPI_File core_file(front_handle_t h) { return h == NULL_FILE ? MPI_FILE_NULL : (MPI_File)h; }
static inline front_handle_t front_file(MPI_File file) {
    return file == MPI_FILE_NULL ? NULL_FILE : (front_handle_t)file;
}
/* Translates an array into `local` if that is long enough, otherwise into allocated memory. NULL stays NULL. */
int *core_handles(const front_handle_t *handles, int64_t n, int local[LOCAL_ITEMS]);
static inline void core_handles_free(int *core, int *local) {
    if (UNLIKELY(core != local)) __builtin_free(core);
}

/* ---- constants. core_X and front_X of most groups are generated. ---- */
enum { UNKNOWN_CONSTANT = -987654 }; /* no constant of any interface */
int front_error_slow(int core);
static inline int front_error(int core) { return LIKELY(core == MPI_SUCCESS) ? core : front_error_slow(core); }
int core_error(int error);
int core_rank_slow(int rank);
static inline int core_rank(int rank) { return LIKELY(rank >= 0) ? rank : core_rank_slow(rank); }
int front_rank(int core);
static inline int core_tag(int tag) {
    return LIKELY(tag >= 0) ? tag : tag == FRONT_ANY_TAG ? MPI_ANY_TAG : UNKNOWN_CONSTANT;
}
static inline int front_tag(int core) { return LIKELY(core >= 0) || core != MPI_ANY_TAG ? core : FRONT_ANY_TAG; }
static inline int front_keyval(int core) { return core == MPI_KEYVAL_INVALID ? FRONT_KEYVAL_INVALID : core; }

static inline void *core_buffer(const void *buffer) {
    return UNLIKELY(buffer == (const void *)FRONT_IN_PLACE) ? MPI_IN_PLACE : (void *)buffer;
}
static inline int *core_weights(const int *weights) {
    if (weights == (const int *)FRONT_UNWEIGHTED) return MPI_UNWEIGHTED;
    if (weights == (const int *)FRONT_WEIGHTS_EMPTY) return MPI_WEIGHTS_EMPTY;
    return (int *)weights;
}

/* attributes.c: the value of an attribute, which may be a constant */
intptr_t front_attribute(int keyval, intptr_t core);

/* ---- statuses ---- */
/* The addresses of these constants of Fortran; each front has them in one of its files. */
extern EXPORTED MPI_Fint *MPI_F_STATUS_IGNORE, *MPI_F_STATUSES_IGNORE;
extern EXPORTED front_status_t *MPI_F08_STATUS_IGNORE, *MPI_F08_STATUSES_IGNORE;
/* Left in the fields of a status that a call doesn't write: in all if the request of MPI_Test isn't complete, and in
 * MPI_ERROR by most calls (MPI-4 3.2.5). */
enum { STATUS_UNWRITTEN = INT_MIN };
#define CORE_STATUS_EMPTY ((MPI_Status){0, 0, STATUS_UNWRITTEN, 0, STATUS_UNWRITTEN})

static inline void front_status_count(front_status_t *status, const MPI_Status *core) {
    status->cancelled = core->count_hi_and_cancelled & 1;
    status->bytes = mpy_status_bytes(core);
}
static inline void front_status_put(front_status_t *status, const MPI_Status *core) {
    if (LIKELY(core->MPI_SOURCE != STATUS_UNWRITTEN)) {
        status->source = LIKELY(core->MPI_SOURCE >= 0) ? core->MPI_SOURCE : front_rank(core->MPI_SOURCE);
        status->tag = front_tag(core->MPI_TAG);
    }
    if (core->MPI_ERROR != STATUS_UNWRITTEN) status->error = front_error(core->MPI_ERROR);
    front_status_count(status, core);
}
static inline MPI_Status core_status(const front_status_t *status) {
    return (MPI_Status){(int)(unsigned)status->bytes,
                        (int)((unsigned)(status->bytes >> 32) << 1 | (status->cancelled != 0)),
                        core_rank(status->source), core_tag(status->tag), core_error(status->error)};
}

/* Arrays of requests and statuses that a call gets (completion.c). */
typedef struct {
    int local[LOCAL_ITEMS], *requests;
    MPI_Status local_statuses[LOCAL_ITEMS], *statuses;
} front_arrays_t;
void front_arrays_open(front_arrays_t *a, int n, const front_handle_t *requests, const front_status_t *statuses);
/* requests: of which handles may have changed; NULL: none */
void front_arrays_close(front_arrays_t *a, int n, front_handle_t *requests);
/* The first n statuses, after a call that returned rc. */
void front_arrays_statuses(const front_arrays_t *a, int n, front_status_t *statuses, int rc);

/* ---- what several forms of a call share: with int, with MPI_Count, and in Fortran ---- */

/* What the proxy of an error handler is called for: an object of the core, of a kind of the core (callbacks.c). */
front_handle_t front_failed_object(int of, void *object, front_kind_t *kind);

/* After MPI_Op_create or MPI_Op_create_c, with the function that the core calls for the program's (callbacks.c). */
typedef void (*front_function_t)(void); /* any function, between two casts */
int front_op_created(int rc, int core, front_function_t proxy, front_handle_t *op);

/* The constants that MPI_Type_create_darray gets in arrays (datatypes.c). False: no memory. */
typedef struct { int *memory, *distribs, *dargs; } front_distribution_t;
bool front_distribution_open(front_distribution_t *d, int ndims, const int distribs[], const int dargs[]);
int front_distribution_close(front_distribution_t *d, int rc, int core, front_handle_t *newtype);

/* The types that MPI_Type_get_contents gives (datatypes.c). NULL: no memory. */
typedef struct { int local[LOCAL_ITEMS], *core; } front_contents_t;
int *front_contents_open(front_contents_t *c, int64_t max_datatypes);
int front_contents_close(front_contents_t *c, int rc, front_handle_t datatype, int integers[],
                         front_handle_t datatypes[]);

/* Where the core reads the object that a variable of MPI_T is bound to (tools.c). */
typedef union {
    int handle;
    MPI_File file;
} front_bound_t;
void *front_bind(front_bound_t *bound, int core_bind, void *object);

#endif
