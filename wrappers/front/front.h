/* front.h - what libmpi.so.12 offers to a front: a library that stands between the program and this one, with the
 * binary interface of another MPI (front/<family>). Upper half, upper TLS.
 *
 * Invariants
 *  1. A front calls the functions of this table, never a function by its name: it exports the same names itself, and
 *     the loader finds these first. For the same reason this library binds its own calls when it is linked
 *     (-Bsymbolic-functions).
 *  2. Handles and constants in arguments are MPICH's, as those of any program of this library.
 */
#ifndef MANAPY_FRONT_H
#define MANAPY_FRONT_H

#include "mpich.h"
#include "functions.h"

#define MPY_OFFERED __attribute__((visibility("default")))

/* PMPI_X, by the slots of function_index.h */
extern MPY_OFFERED void (*const mpy_core_functions[MPY_FN_COUNT])(void);
#define MPY_CORE(NAME) ((mpy_fn_##NAME##_t)mpy_core_functions[MPY_FN_##NAME])

/* The lengths of arguments of collectives, 0 for a bad communicator. No error handler is called. */
typedef enum { MPY_PEERS, MPY_SOURCES, MPY_DESTINATIONS } mpy_members_t;
MPY_OFFERED int mpy_core_members(MPI_Comm comm, mpy_members_t which);

/* Ends the job with one line. _unsupported: the line names a function that this version of manapy does not support. */
MPY_OFFERED void mpy_core_unsupported(const char *function) __attribute__((noreturn));
MPY_OFFERED void mpy_core_end(const char *line) __attribute__((noreturn));
/* Is this process a rank under manapy-launch? */
MPY_OFFERED int mpy_core_above(void);

/* How this library calls a function of the program whose arguments look different. MPICH's C++ and Fortran libraries
 * use these, too: a front sets its own function right after MPI_Op_create, MPI_X_create_errhandler or
 * MPI_X_create_keyval. */
MPY_OFFERED void MPII_Op_set_cxx(MPI_Op op, void (*proxy)(void));
MPY_OFFERED void MPII_Errhandler_set_cxx(MPI_Errhandler errhandler, void (*proxy)(void));
MPY_OFFERED void MPII_Keyval_set_proxy(int keyval,
                                       int (*copy)(MPI_Comm_copy_attr_function *, int, int, void *, int, void *,
                                                   void **, int *),
                                       int (*remove)(MPI_Comm_delete_attr_function *, int, int, int, void *, void *));

/* Attributes in Fortran; `type`: mpy_attr_type_t of comm/attr.c. */
MPY_OFFERED int MPII_Comm_set_attr(MPI_Comm comm, int keyval, void *value, int type);
MPY_OFFERED int MPII_Comm_get_attr(MPI_Comm comm, int keyval, void *value, int *flag, int type);
MPY_OFFERED int MPII_Type_set_attr(MPI_Datatype datatype, int keyval, void *value, int type);
MPY_OFFERED int MPII_Type_get_attr(MPI_Datatype datatype, int keyval, void *value, int *flag, int type);
MPY_OFFERED int MPII_Win_set_attr(MPI_Win win, int keyval, void *value, int type);
MPY_OFFERED int MPII_Win_get_attr(MPI_Win win, int keyval, void *value, int *flag, int type);

extern MPY_OFFERED int *const MPI_UNWEIGHTED, *const MPI_WEIGHTS_EMPTY;
extern MPY_OFFERED void *const MPI_T_PVAR_ALL_HANDLES;

#endif
