/* epoch.h - private to this folder: the checkpoint in progress on this rank. See epoch.c. Only the control thread calls
 * these functions, except init, which comes before it starts. */
#ifndef MANAPY_CONTROL_EPOCH_H
#define MANAPY_CONTROL_EPOCH_H
#include <stdbool.h>
#include <stdint.h>

#include "engine.h"
#include "wire/wire.h"

/* `out`: where lines for the coordinator are added. before_exit sends them, and the last words of this rank: it is
 * called before a step that does not return. */
void mpy_epoch_init(const mpy_engine_ops_t *engine, mpy_text_t *out, void (*before_exit)(void));
/* A message that has an epoch; `line` is behind the kind. Others than those of a checkpoint are ignored. */
void mpy_epoch_message(const char *kind, char *line);
/* Handles the result of the step that has ended, if any, and starts a CHECK that has waited for it. */
void mpy_epoch_take_step(void);
/* Is an image written beside the program? */
bool mpy_epoch_persisting(void);
/* Another process is to speak for the rank. True: nothing of a checkpoint is in progress. A CHECK that waits for the
 * program, which may wait for that process, is dropped: the coordinator sends it to whoever speaks next. */
bool mpy_epoch_leave(void);
/* The coordinator is lost: gives up the checkpoint in progress. */
void mpy_epoch_lost(void);
#endif
