/* signals.h - pending signals. Private to lowerhalf/process; see process.h. */
#ifndef MANAPY_STATE_SIGNALS_H
#define MANAPY_STATE_SIGNALS_H

#include "blob.h"
#include "process.h"

int mpy_signals_save(mpy_blob_t *b, mpy_tid_map_t *virtual_tid, const mpy_halted_t *halted, char *err, size_t n);
/* Reads what was saved; mpy_signals_start applies it, on the process's first thread. */
int mpy_signals_load(mpy_reader_t *r, char *err, size_t n);
int mpy_signals_start(mpy_tid_map_t *real_tid, char *err, size_t n);

#endif
