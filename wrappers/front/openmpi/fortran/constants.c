/* constants.c - the constants of Fortran that are common blocks (invariant 3 of fortran.h); the types are those of
 * mpif.h. C has two of them as pointers.
 */
#include "fortran.h"

int mpi_fortran_bottom_, mpi_fortran_in_place_, mpi_fortran_unweighted_, mpi_fortran_weights_empty_;
int mpi_fortran_errcodes_ignore_;
char mpi_fortran_argv_null_, mpi_fortran_argvs_null_;
double mpi_fortran_status_ignore_, mpi_fortran_statuses_ignore_;

MPI_Fint *MPI_F_STATUS_IGNORE = (MPI_Fint *)&mpi_fortran_status_ignore_;
MPI_Fint *MPI_F_STATUSES_IGNORE = (MPI_Fint *)&mpi_fortran_statuses_ignore_;
front_status_t *MPI_F08_STATUS_IGNORE = (front_status_t *)&mpi_fortran_status_ignore_;
front_status_t *MPI_F08_STATUSES_IGNORE = (front_status_t *)&mpi_fortran_statuses_ignore_;
