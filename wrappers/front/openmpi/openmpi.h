/* openmpi.h - contract of this folder: Open MPI's binary interface. Linked into libmpi.so.40. front/shared/translate.h
 * has what all fronts share.
 *
 * Invariants
 *  1. A handle of a predefined object is the address of an object of that name (objects.c), which holds the core's
 *     handle. A program linked without -fPIC has the object in its own memory, with a copy of the content: so the
 *     address is taken through the GOT, and the object is never written.
 */
#ifndef MANAPY_OPENMPI_H
#define MANAPY_OPENMPI_H

#include <stdbool.h>

#include "front/shared/handle.h"
#include "front_constants.h"

#define FAMILY "Open MPI"
#define LIBRARY "libmpi.so.40"

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

/* One object for each row of the table of constants. */
#define FRONT_OBJECT(SYMBOL, KIND, CORE, FORTRAN) extern EXPORTED front_object_t SYMBOL;
#include "front_objects.h"
#undef FRONT_OBJECT

#define HANDLE_OF(OBJECT) ((front_handle_t)&OBJECT)
#define NULL_REQUEST HANDLE_OF(ompi_request_null)
#define NULL_FILE HANDLE_OF(ompi_mpi_file_null)
enum { CODES_HAVE_DETAILS = false }; /* programs compare a code with a class */

enum { FIRST_PAGE = 4096 }; /* no object is there */

static inline int core_handle(front_handle_t h) {
    if (LIKELY(h >> 32 == HANDLE_CREATED >> 32)) return (int)h;
    return LIKELY(h >= FIRST_PAGE) ? ((const front_object_t *)h)->core : 0; /* NULL: no handle of the core either */
}

/* The core's numbers count from 1, and 0 is the null handle. */
static inline int front_file_number(int core) { return core; }
static inline int core_file_number(int number) { return number; }

/* Open MPI's predefined functions are functions (predefined.c). */
static inline mpy_opaque_function *front_copy_function(mpy_opaque_function *copy) { return copy; }

/* Kept for interoperable MPI; the core has no such attributes. */
static inline bool front_has_no_value(int keyval) {
    enum { IMPI_CLIENT_SIZE = FRONT_WIN_MODEL + 1, IMPI_HOST_COLOR = IMPI_CLIENT_SIZE + 3 };
    return keyval >= IMPI_CLIENT_SIZE && keyval <= IMPI_HOST_COLOR;
}

#include "front/shared/translate.h"

/* Copies a text of the core, which may be longer than the program's array; *length is that of the copy (texts.c). */
void front_text(char *text, size_t size, const char *core, int *length);

#endif
