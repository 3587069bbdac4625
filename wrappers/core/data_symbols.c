/* data_symbols.c - the data symbols of the MPICH ABI. They are ours and have addresses in the upper half. If a
 * supported function takes one as an argument, the wrapper translates it. */
#include "runtime.h"

#define PUBLIC __attribute__((visibility("default")))

typedef struct { int unused[5]; } status_object_t;

extern PUBLIC status_object_t MPIR_F08_MPI_STATUS_IGNORE_OBJ, MPIR_F08_MPI_STATUSES_IGNORE_OBJ;
extern PUBLIC int MPIR_fortran_true, MPIR_fortran_false;
extern PUBLIC void *MPI_F08_STATUS_IGNORE, *MPI_F08_STATUSES_IGNORE;
extern PUBLIC int *MPI_F_STATUS_IGNORE, *MPI_F_STATUSES_IGNORE;
extern PUBLIC void *const MPI_T_PVAR_ALL_HANDLES;
extern PUBLIC int *const MPI_UNWEIGHTED, *const MPI_WEIGHTS_EMPTY;
extern PUBLIC int *MPIR_C_MPI_UNWEIGHTED, *MPIR_C_MPI_WEIGHTS_EMPTY;

status_object_t MPIR_F08_MPI_STATUS_IGNORE_OBJ, MPIR_F08_MPI_STATUSES_IGNORE_OBJ;
int MPIR_fortran_true = 1, MPIR_fortran_false = 0;
void *MPI_F08_STATUS_IGNORE = &MPIR_F08_MPI_STATUS_IGNORE_OBJ;
void *MPI_F08_STATUSES_IGNORE = &MPIR_F08_MPI_STATUSES_IGNORE_OBJ;
int *MPI_F_STATUS_IGNORE, *MPI_F_STATUSES_IGNORE; /* the Fortran library sets these */

static int pvar_all, unweighted, weights_empty;
void *const MPI_T_PVAR_ALL_HANDLES = &pvar_all;
int *const MPI_UNWEIGHTED = &unweighted;
int *const MPI_WEIGHTS_EMPTY = &weights_empty;

/* What mpi_f08 passes for its MPI_UNWEIGHTED and MPI_WEIGHTS_EMPTY. The Fortran library of some versions of MPICH (4.0)
 * has variables of these names, which the loader finds first; it relies on the MPI library to set them. */
int *MPIR_C_MPI_UNWEIGHTED = &unweighted;
int *MPIR_C_MPI_WEIGHTS_EMPTY = &weights_empty;

__attribute__((constructor)) static void set_for_fortran(void) {
    MPIR_C_MPI_UNWEIGHTED = MPI_UNWEIGHTED;
    MPIR_C_MPI_WEIGHTS_EMPTY = MPI_WEIGHTS_EMPTY;
}
