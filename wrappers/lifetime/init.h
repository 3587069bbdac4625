/* init.h - initialization of MPI. See init.c. */
#ifndef MANAPY_INIT_H
#define MANAPY_INIT_H

#include "core/runtime.h"

/* Initializes the real MPI, unless that has been done. Returns an MPI error code. */
MPY_HIDDEN int mpy_init_for_sessions(int thread_level);

#endif
