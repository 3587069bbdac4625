/* fortran.h - contract of this folder: MPI in Fortran as Open MPI's compilers call it. Upper half, upper TLS; linked
 * into libmpi.so.40.
 *
 * A function MPI_X of the interface is fortran_X here: generated, or written in one of these files. The linker gives it
 * its names, mpi_x_ and others (fortran_aliases.ld). A program asks for them in libmpi_mpifh.so.40, which is empty here
 * and needs libmpi.so.40. Open MPI's own libraries of the modules mpi and mpi_f08 run on top.
 *
 * Invariants
 *  1. INTEGER is int, and a LOGICAL is true if it isn't 0. So integers and logicals stay where they are. (Compilers
 *     that write another number for .true. look only at its lowest bit, or at whether it is 0.)
 *  2. A status is Open MPI's status of C, as six integers. The program's array may lie at a multiple of 4, which is no
 *     address for a size_t in C. This code is for x86-64, where that makes no difference.
 *  3. The constants that are no numbers are common blocks (constants.c). Only their addresses count. The program has
 *     them in its own memory, so the address is taken through the GOT.
 *  4. A handle is Open MPI's number if the object is predefined, and the core's number otherwise
 *     (front/shared/handles.c). Both are the same after a restart.
 *  5. A text ends with blanks. The compiler passes its length by value behind all other arguments.
 */
#ifndef MANAPY_OPENMPI_FORTRAN_H
#define MANAPY_OPENMPI_FORTRAN_H

#include "front/openmpi/openmpi.h"
#include "front/shared/handle.h"
#include "fortran_functions.h" /* generated */

/* ---- constants ---- */

extern EXPORTED int mpi_fortran_bottom_, mpi_fortran_in_place_, mpi_fortran_unweighted_, mpi_fortran_weights_empty_;
extern EXPORTED int mpi_fortran_errcodes_ignore_;
extern EXPORTED char mpi_fortran_argv_null_, mpi_fortran_argvs_null_;
extern EXPORTED double mpi_fortran_status_ignore_, mpi_fortran_statuses_ignore_;

static inline bool is_in_place(const void *buffer) { return buffer == (const void *)&mpi_fortran_in_place_; }

static inline void *fortran_buffer(const void *buffer) {
    if (UNLIKELY(is_in_place(buffer))) return (void *)FRONT_IN_PLACE;
    return LIKELY(buffer != (const void *)&mpi_fortran_bottom_) ? (void *)buffer : MPI_BOTTOM;
}

static inline int *fortran_weights(const int *weights) {
    if (weights == &mpi_fortran_unweighted_) return (int *)FRONT_UNWEIGHTED;
    return weights != &mpi_fortran_weights_empty_ ? (int *)weights : (int *)FRONT_WEIGHTS_EMPTY;
}

/* Also for an array of statuses. */
static inline front_status_t *fortran_status(const MPI_Fint *status) {
    const void *address = status;
    if (address == &mpi_fortran_status_ignore_ || address == &mpi_fortran_statuses_ignore_) return NULL;
    return (front_status_t *)(uintptr_t)address;
}

/* ---- arrays (arrays.c) ---- */

/* Translates an array into `local` if that is long enough, otherwise into allocated memory. */
front_handle_t *fortran_handles(front_kind_t kind, const MPI_Fint *handles, int n, front_handle_t local[LOCAL_ITEMS]);
static inline void fortran_handles_free(front_handle_t *handles, front_handle_t *local) {
    if (UNLIKELY(handles != local)) __builtin_free(handles);
}
/* Writes the program's array where a handle has changed. */
void fortran_handles_put(front_kind_t kind, MPI_Fint *handles, int n, const front_handle_t *changed);
/* Addresses that are INTEGER, in allocated memory. */
MPI_Aint *fortran_addresses(const MPI_Fint *addresses, int n);
int fortran_members(const MPI_Fint *comm, mpy_members_t which);
/* An index that a call has written (not: UNKNOWN_CONSTANT), and an array of them. */
void fortran_index(MPI_Fint *index, int written);
void fortran_indices(int rc, int outcount, MPI_Fint *indices);

/* ---- texts (texts.c) ---- */

enum { TEXT_SIZE = FRONT_MAX_PORT_NAME + 1 }; /* no text of MPI is longer, apart from the value of an info */
_Static_assert(TEXT_SIZE > MPI_MAX_INFO_VAL && TEXT_SIZE > MPI_MAX_PSET_NAME_LEN, "texts of the core");
/* The value of an info is at most as long as the core's. */
static inline int fortran_value_length(int length) { return length < TEXT_SIZE ? length : TEXT_SIZE - 1; }
/* A text without the blanks around it, in allocated memory. */
char *fortran_text(const char *text, int length);
void fortran_text_put(char *text, int length, const char *c);
/* Texts that stand `advance` bytes apart: `count` of them, or up to a blank one (count < 0). Ends with NULL. */
char **fortran_texts(const char *texts, int count, int length, ptrdiff_t advance);
void fortran_texts_free(char **texts);

#endif
