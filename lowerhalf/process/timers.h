/* timers.h - interval timers and POSIX timers. Private to lowerhalf/process; see process.h. */
#ifndef MANAPY_STATE_TIMERS_H
#define MANAPY_STATE_TIMERS_H

#include "blob.h"
#include "process.h"

int mpy_timers_check(char *err, size_t n);
int mpy_timers_save(mpy_blob_t *b, mpy_tid_map_t *virtual_tid, char *err, size_t n);
/* Reads the saved state; mpy_timers_start applies it. */
int mpy_timers_load(mpy_reader_t *r, char *err, size_t n);
int mpy_timers_start(mpy_tid_map_t *real_tid, char *err, size_t n);

#endif
