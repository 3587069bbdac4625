/* mpich.h - the types and constants of MPICH's binary interface (libmpi.so.12), which is what the program sees in this
 * version. Written down here because the package is built without any mpi.h.
 *
 * Invariants
 *  1. Types and constants are those of MPICH's mpi.h; tests/unit/wrappers compares all of them with the real header.
 *  2. Handles are int, as in MPICH, except MPI_File. Bits 30-31: 1 predefined, 2 created; bits 26-29: kind of object.
 */
#ifndef MANAPY_MPICH_H
#define MANAPY_MPICH_H

#include <stdint.h>

typedef int MPI_Comm, MPI_Datatype, MPI_Group, MPI_Op, MPI_Errhandler, MPI_Request, MPI_Message, MPI_Info, MPI_Win,
    MPI_Session, MPIX_Stream;
typedef struct mpy_file *MPI_File;
typedef long MPI_Aint;
typedef long long MPI_Count, MPI_Offset;
typedef int MPI_Fint;

typedef struct MPI_Status {
    int count_lo; /* bytes received, low 32 bits */
    int count_hi_and_cancelled; /* bit 0: cancelled; the others: bytes received, bits 32 to 62 */
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
} MPI_Status;
typedef MPI_Status MPI_F08_status;

typedef void(MPI_User_function)(void *, void *, int *, MPI_Datatype *);
typedef void(MPI_User_function_c)(void *, void *, MPI_Count *, MPI_Datatype *);
typedef int(MPI_Comm_copy_attr_function)(MPI_Comm, int, void *, void *, void *, int *);
typedef int(MPI_Comm_delete_attr_function)(MPI_Comm, int, void *, void *);
typedef MPI_Comm_copy_attr_function MPI_Copy_function, MPI_Type_copy_attr_function, MPI_Win_copy_attr_function;
typedef MPI_Comm_delete_attr_function MPI_Delete_function, MPI_Type_delete_attr_function, MPI_Win_delete_attr_function;
typedef void(MPI_Comm_errhandler_function)(MPI_Comm *, int *, ...);
typedef void(MPI_File_errhandler_function)(MPI_File *, int *, ...);
typedef MPI_Comm_errhandler_function MPI_Win_errhandler_function, MPI_Session_errhandler_function;
typedef int(MPI_Grequest_query_function)(void *, MPI_Status *);
typedef int(MPI_Grequest_free_function)(void *);
typedef int(MPI_Grequest_cancel_function)(void *, int);
typedef void(mpy_opaque_function)(void); /* callbacks that are passed through */

#include "mpich_constants.h" /* generated from table/abi.txt */

/* ---- contents of handles and statuses ---- */

/* A predefined type whose handle contains its size. The size is 0 for MPI_LB and MPI_UB. */
static inline int mpy_is_basic(int datatype) { return (uint32_t)datatype >> 24 == 0x4c; }
static inline uint32_t mpy_basic_size(int datatype) { return (uint32_t)datatype >> 8 & 0xff; }

static inline uint64_t mpy_status_bytes(const MPI_Status *s) {
    return (uint64_t)(uint32_t)s->count_lo | (uint64_t)((uint32_t)s->count_hi_and_cancelled >> 1) << 32;
}

#endif
