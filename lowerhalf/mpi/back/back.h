/* back.h - a back: a library of the lower half that makes an MPI of another family look like MPICH. load.c opens it
 * when the real library is of that family, and fills the function table from it. See shared/translate.h.
 */
#ifndef MANAPY_BACK_H
#define MANAPY_BACK_H

#include <stdbool.h>
#include <stddef.h>

/* The name of the function below in a back's library. */
#define MPY_BACK_OPEN "mpy_back_open"

/* Fills the tables of functions and data symbols for the MPI that is opened as `library`; `missing` stands for what it
 * lacks. False: the library can't be used, and `error` says why. */
typedef bool mpy_back_open_t(void *library, void **functions, void **data, void *missing, char *error, size_t n);

#endif
