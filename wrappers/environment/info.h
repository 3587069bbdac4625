/* info.h - infos. See info.c. */
#ifndef MANAPY_INFO_H
#define MANAPY_INFO_H

#include "core/objects.h"

typedef struct mpy_pair { struct mpy_pair *next; char *key, *value; } mpy_pair_t;
typedef struct mpy_info {
    mpy_object_t obj;
    mpy_pair_t *first; /* in order of insertion; with mpy_objects_lock */
} mpy_info_t;
MPY_HIDDEN int mpy_info_adopt(int real);
/* Copies the value of a key, with in_lower set. False: there is no such key. */
MPY_HIDDEN bool mpy_info_value(mpy_info_t *info, const char *key, char value[MPI_MAX_INFO_VAL + 1]);
MPY_HIDDEN void mpy_info_drop(int handle);              /* in the lower half */
MPY_HIDDEN void mpy_info_reread(int handle);            /* in the lower half: the real library has changed it */
MPY_HIDDEN void mpy_info_merge(int *into, int handle); /* in the lower half; creates *into if it is null */

/* The real objects of all infos, in the lower half. Returns an MPI error code. */
MPY_HIDDEN int mpy_info_make_again(void);
MPY_HIDDEN int mpy_info_rebuild(char *error, uint64_t n);

#endif
