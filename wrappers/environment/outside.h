/* outside.h - calls before MPI_Init and after MPI_Finalize. See outside.c. */
#ifndef MANAPY_OUTSIDE_H
#define MANAPY_OUTSIDE_H

#include "core/objects.h"

/* generated, like mpy_names; NULL for functions that may be called at any time */
extern MPY_HIDDEN void (*const mpy_outside[MPY_FN_COUNT])(void);
extern MPY_HIDDEN const char *const mpy_names[MPY_FN_COUNT];
MPY_HIDDEN void mpy_table_close(void); /* the real library isn't up; with in_lower set */
MPY_HIDDEN void mpy_table_open(void);
MPY_HIDDEN void mpy_called_outside(const char *function); /* lower TLS */
MPY_HIDDEN void mpy_end_outside(mpy_thread_t *t, const char *function) __attribute__((noreturn));
MPY_HIDDEN bool mpy_needs_mpi(const char *function);
/* For functions that are answered here without checking whether MPI is initialized. */
static inline void mpy_require_mpi(const char *function) {
    if (MPY_UNLIKELY(!mpy_mpi_is_up(MPY_UPPER)) && mpy_above) mpy_end_outside(mpy_self(), function);
}

#endif
