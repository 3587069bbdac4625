/* pmix.h - see pmix.c. */
#ifndef MANAPY_PMIX_H
#define MANAPY_PMIX_H

#include "pmi.h"

/* Have Open MPI's mpirun or `srun --mpi=pmix` started this rank? */
bool mpy_pmix_is_there(void);
/* Which of the two: for people. */
const char *mpy_pmix_launcher(void);

/* Fills `p`, its rank also if it fails. Its fd then takes the lines of PMI-1, until cmd=finalize. False with one line
 * in `error`. */
bool mpy_pmix_open(mpy_pmi_t *p, char *error, size_t n);

/* Before the MPI library is loaded, which begins a conversation of its own. */
void mpy_pmix_make_way(void);

#endif
