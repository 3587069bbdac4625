/* openmpi.h - contract of this folder: Open MPI's binary interface towards the program, MPICH's towards the core.
 * Upper half, upper TLS; linked into libmpi.so.40.
 *
 * A function MPI_X of the interface is front_X here: generated, or written in one of these files. The linker gives it
 * its two names (front_aliases.ld).
 *
 * Invariants
 *  1. A handle of a predefined object is the address of an object of that name (objects.c), which holds the core's
 *     handle. A program linked without -fPIC has the object in its own memory, with a copy of the content: so the
 *     address is taken through the GOT, and the object is never written.
 *  2. A handle of a created object is HANDLE_CREATED and the core's int. No memory belongs to it, and no program has an
 *     object at these addresses.
 *  3. An MPI_File is a pointer in the core, too: the same one, except for the null handle.
 *  4. Between two calls of the core nothing is kept here, except what callbacks need. So a checkpoint and a restart
 *     need no hook in this library.
 *  5. Nothing is allocated in the path of a message: arrays up to LOCAL_ITEMS long are translated on the stack.
 */
#ifndef MANAPY_OPENMPI_H
#define MANAPY_OPENMPI_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "front/front.h"
#include "openmpi_constants.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EXPORTED __attribute__((visibility("default")))

typedef uintptr_t front_handle_t;
typedef struct {
    int source, tag, error, cancelled;
    size_t bytes;
} front_status_t;
/* Smaller than Open MPI's objects of any version: the loader copies the size of the library's object into the
 * program's, and complains if it is the larger one. */
typedef struct {
    int core;    /* the core's handle, MPICH's predefined one */
    int fortran; /* Open MPI's handle in Fortran */
} front_object_t;

typedef enum {
    FRONT_COMM, FRONT_GROUP, FRONT_DATATYPE, FRONT_OP, FRONT_ERRHANDLER, FRONT_INFO, FRONT_REQUEST, FRONT_MESSAGE,
    FRONT_WIN, FRONT_SESSION, FRONT_FILE,
} front_kind_t;

#include "front_functions.h" /* generated: prototypes of front_X, and of the constants' translations */

extern EXPORTED front_object_t ompi_request_null, ompi_mpi_file_null;

/* ---- handles ---- */
enum { LOCAL_ITEMS = 64, FIRST_PAGE = 4096 };
#define HANDLE_CREATED (1ul << 32)

static inline int core_handle(front_handle_t h) {
    if (LIKELY(h >> 32 == HANDLE_CREATED >> 32)) return (int)h;
    return LIKELY(h >= FIRST_PAGE) ? ((const front_object_t *)h)->core : 0; /* NULL: no handle of the core either */
}
/* objects.c: any handle, also a predefined one */
front_handle_t front_handle_slow(front_kind_t kind, int core);
static inline front_handle_t front_handle(front_kind_t kind, int core) {
    /* bits 30-31: created. Five predefined types of pairs look like created ones. */
    if (LIKELY((unsigned)core >> 30 == 2 && kind != FRONT_DATATYPE)) return HANDLE_CREATED | (unsigned)core;
    if (kind == FRONT_REQUEST && core == MPI_REQUEST_NULL) return (front_handle_t)&ompi_request_null;
    return front_handle_slow(kind, core);
}
/* The handle in Fortran (MPI_X_c2f), and back. */
MPI_Fint front_fortran(front_kind_t kind, front_handle_t h);
front_handle_t front_of_fortran(front_kind_t kind, MPI_Fint number);
static inline MPI_File core_file(front_handle_t h) {
    return h == (front_handle_t)&ompi_mpi_file_null ? MPI_FILE_NULL : (MPI_File)h;
}
static inline front_handle_t front_file(MPI_File file) {
    return file == MPI_FILE_NULL ? (front_handle_t)&ompi_mpi_file_null : (front_handle_t)file;
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
int core_assert(int assert);
int core_keyval(int keyval);
static inline int front_keyval(int core) { return core == MPI_KEYVAL_INVALID ? OPENMPI_KEYVAL_INVALID : core; }

static inline void *core_buffer(const void *buffer) {
    return UNLIKELY(buffer == (const void *)OPENMPI_IN_PLACE) ? MPI_IN_PLACE : (void *)buffer;
}
static inline int *core_weights(const int *weights) {
    if (weights == (const int *)OPENMPI_UNWEIGHTED) return MPI_UNWEIGHTED;
    if (weights == (const int *)OPENMPI_WEIGHTS_EMPTY) return MPI_WEIGHTS_EMPTY;
    return (int *)weights;
}
/* attributes.c: a keyval without an attribute; the value of an attribute, which may be a constant. */
bool front_keyval_unknown(int keyval);
intptr_t front_attribute(int keyval, intptr_t core);
/* callbacks.c: what an error handler's proxy is called for: an object of the core, of a kind of the core. */
front_handle_t front_failed_object(int of, void *object, front_kind_t *kind);
/* Copies a text of the core, which may be longer than the program's array; *length is that of the copy. */
void front_text(char *text, size_t size, const char *core, int *length);

/* ---- statuses ---- */
/* fortran/constants.c: the addresses of these constants of Fortran */
extern EXPORTED MPI_Fint *MPI_F_STATUS_IGNORE, *MPI_F_STATUSES_IGNORE;
extern EXPORTED front_status_t *MPI_F08_STATUS_IGNORE, *MPI_F08_STATUSES_IGNORE;
/* Left in the fields of a status that a call doesn't write: in all if the request of MPI_Test isn't complete, and in
 * MPI_ERROR by most calls (MPI-4 3.2.5). */
enum { STATUS_UNWRITTEN = INT_MIN };
#define CORE_STATUS_EMPTY ((MPI_Status){0, 0, STATUS_UNWRITTEN, 0, STATUS_UNWRITTEN})

static inline void front_status_put(front_status_t *status, const MPI_Status *core) {
    if (LIKELY(core->MPI_SOURCE != STATUS_UNWRITTEN)) {
        status->source = LIKELY(core->MPI_SOURCE >= 0) ? core->MPI_SOURCE : front_rank(core->MPI_SOURCE);
        status->tag = core->MPI_TAG;
    }
    if (core->MPI_ERROR != STATUS_UNWRITTEN) status->error = front_error(core->MPI_ERROR);
    status->cancelled = core->count_hi_and_cancelled & 1;
    status->bytes = mpy_status_bytes(core);
}
static inline MPI_Status core_status(const front_status_t *status) {
    return (MPI_Status){(int)(unsigned)status->bytes,
                        (int)((unsigned)(status->bytes >> 32) << 1 | (status->cancelled != 0)),
                        core_rank(status->source), status->tag, core_error(status->error)};
}

#endif
