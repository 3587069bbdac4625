/* standard.h - contract of this folder: the standard ABI of MPI 5.0 (chapter 20). Linked into libmpi_abi.so.1.
 * front/shared/translate.h has what all fronts share.
 *
 * Invariants
 *  1. A handle of a predefined object is a small number, less than PREDEFINED_END.
 */
#ifndef MANAPY_STANDARD_H
#define MANAPY_STANDARD_H

#include <stdbool.h>

#include "front/shared/handle.h"
#include "front_constants.h"

#define FAMILY "the standard ABI"
#define LIBRARY "libmpi_abi.so.1"

/* 32 bytes. The last five integers are the library's. */
typedef struct {
    int source, tag, error, cancelled;
    size_t bytes;
    int unused[2];
} __attribute__((packed, aligned(4))) front_status_t;
_Static_assert(sizeof(front_status_t) == 8 * sizeof(int), "the standard's MPI_Status");

#define HANDLE_OF(NUMBER) ((front_handle_t)(NUMBER))
#define NULL_REQUEST HANDLE_OF(FRONT_REQUEST_NULL)
#define NULL_FILE HANDLE_OF(FRONT_FILE_NULL)
enum { CODES_HAVE_DETAILS = true }; /* as in MPICH's library of this ABI */

enum { PREDEFINED_END = 4096 };
extern const int standard_handles[PREDEFINED_END]; /* the core's; 0: none (predefined.c) */

static inline int core_handle(front_handle_t h) {
    if (LIKELY(h >> 32 == HANDLE_CREATED >> 32)) return (int)h;
    return LIKELY(h < PREDEFINED_END) ? standard_handles[h] : 0;
}

/* The core's numbers count from 1, and 0 is the null handle. */
static inline int front_file_number(int core) { return core == 0 ? FRONT_FILE_NULL : core + PREDEFINED_END; }
static inline int core_file_number(int number) { return number < PREDEFINED_END ? 0 : number - PREDEFINED_END; }

/* predefined.c */
mpy_opaque_function *front_copy_function(mpy_opaque_function *copy);

static inline bool front_has_no_value(int keyval) { return (void)keyval, false; }

#include "front/shared/translate.h"

#endif
