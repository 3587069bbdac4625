/* callbacks.h - see callbacks.c. The control thread calls expect, expected and missed; the worker thread the others. At
 * a restart the main thread calls `after`. Functions return 0, or fill `error` with one line and return -1. */
#ifndef MANAPY_CALLBACKS_H
#define MANAPY_CALLBACKS_H

#include <stdbool.h>
#include <stddef.h>

#include <manapy/boundary.h>

/* A checkpoint begins. Notes whether callbacks will be called in it: if they `may` be, and there are some. If the
 * program has a `gpu`, there is one that saves what is on it. */
void mpy_callbacks_expect(bool may, bool gpu);
bool mpy_callbacks_expected(void);
/* Some were registered after that. They have not been called, so this checkpoint must not be taken. */
bool mpy_callbacks_missed(void);

/* Waits at most `ms` until those of the last checkpoint, or restart, have returned. */
int mpy_callbacks_idle(int ms, char *error, size_t n);
/* Has the main thread call those of before_checkpoint. Returns when it is held, or after `ms`. */
int mpy_callbacks_before(int ms, char *error, size_t n);
/* The checkpoint has ended so, or was given up (CONTINUED). If the main thread has called any callback, it calls those
 * of after_checkpoint, or after_restart, and goes on. Does not wait for that. */
void mpy_callbacks_after(mpy_call_end_t end);

#endif
