/* pmix_library.h - see pmix_library.c. */
#ifndef MANAPY_PMIX_LIBRARY_H
#define MANAPY_PMIX_LIBRARY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "pmix_abi.h"

typedef struct mpy_pmix_library {
    char path[PATH_MAX]; /* what was opened: a path, or the soname */
    pmix_init_t *init;
    pmix_finalize_t *finalize;
    pmix_put_t *put;
    pmix_commit_t *commit;
    pmix_fence_t *fence;
    pmix_get_t *get;
    pmix_abort_t *abort;
    pmix_error_string_t *error_string;
} mpy_pmix_library_t;

/* Find and open libpmix. False with one line in `error`. */
bool mpy_pmix_library_open(mpy_pmix_library_t *library, char *error, size_t n);

#endif
