/* checkpoint.h - see checkpoint.c. (control/engine.h declares the operations.) */
#ifndef MANAPY_CHECKPOINT_H
#define MANAPY_CHECKPOINT_H
#include "control/engine.h"
extern const mpy_engine_ops_t mpy_engine;
/* CHECK and the drain poll this to end early: mpy_control_cancelled, unless the process has more to look at. */
extern bool (*mpy_checkpoint_given_up)(void);
/* svc->meet */
int mpy_checkpoint_meet(int comm, char *error, uint64_t n);
/* reap.c */
void mpy_reap_for_halted(void);
#endif
