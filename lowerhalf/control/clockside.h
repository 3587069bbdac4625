/* clockside.h - see clockside.c. The control thread calls these functions, except init and after_restart, which the
 * main thread calls. */
#ifndef MANAPY_CLOCKSIDE_H
#define MANAPY_CLOCKSIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/wire.h"

/* Registers for membarrier; once per process. */
bool mpy_clockside_init(int size, char *error, unsigned long n);
void mpy_clockside_after_restart(void);

/* Each function handles one message of the clock protocol. It appends the lines to send to `out`, each with its
 * newline. */
void mpy_clockside_intent(uint64_t epoch, mpy_text_t *out);
/* `rows`: "cid:seq cid:seq ..." or NULL. `more`: another line of the same message follows. */
void mpy_clockside_targets(bool more, char *rows, mpy_text_t *out);
void mpy_clockside_target(uint64_t cid, uint64_t seq, mpy_text_t *out);
/* Orders a store here before a later load, against threads of the program that store and load in the opposite order. */
void mpy_clockside_barrier(void);
void mpy_clockside_needed(bool needed, mpy_text_t *out); /* ADVANCE, WITHDRAW */
void mpy_clockside_freeze(uint32_t version, mpy_text_t *out);
void mpy_clockside_thaw(mpy_text_t *out);

/* True while a FREEZE has no answer yet because a thread is in the lower half: call freeze_poll again soon. */
bool mpy_clockside_freezing(void);
void mpy_clockside_freeze_poll(mpy_text_t *out);

/* Report what has changed since the last call (after notify). Does nothing in phases NONE and FROZEN. */
void mpy_clockside_report(mpy_text_t *out);

/* Wakes threads that sleep at the border, so that they look at the upper block again. */
void mpy_clockside_wake(void);

/* The epoch ends: return to phase NONE. Takes no lock, because upper threads may be stopped while they hold it. */
void mpy_clockside_end(void);

#endif
