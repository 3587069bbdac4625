/* mpi_t.h - MPI_T. See mpi_t.c. */
#ifndef MANAPY_MPI_T_H
#define MANAPY_MPI_T_H

#include "core/runtime.h"

MPY_HIDDEN int mpy_tools_rebuild(char *error, uint64_t n); /* MPI_T handles */

#endif
