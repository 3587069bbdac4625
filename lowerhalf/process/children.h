/* children.h - child processes, which prevent a checkpoint: they cannot be saved with the rank.
 *
 * Lower half; libc allowed. May run while the program runs.
 */
#ifndef MANAPY_STATE_CHILDREN_H
#define MANAPY_STATE_CHILDREN_H

#include <stdbool.h>
#include <stddef.h>

/* 0 as soon as no child process is left (zombies don't count); -1, naming one, when some are still there after
 * *grace_ms, or at once when it is one of those known never to end before the program does. What has not been needed is
 * left in *grace_ms. `which`: all, or those that there are at the call; a program that starts one after the other is
 * never without. `given_up` is asked on the way: when it says so there is nothing to wait for any more (-1). */
typedef enum { MPY_CHILDREN_ALL, MPY_CHILDREN_OF_NOW } mpy_children_t;
int mpy_children_wait(mpy_children_t which, int *grace_ms, bool (*given_up)(void), char *err, size_t n);
/* Is there one that has ended and not been waited for? */
int mpy_children_unreaped(void);

#endif
