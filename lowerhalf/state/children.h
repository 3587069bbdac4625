/* children.h - child processes stand in the way of a checkpoint: they can't be saved with the rank.
 *
 * Lower half; libc allowed. May run while the program runs.
 */
#ifndef MANAPY_STATE_CHILDREN_H
#define MANAPY_STATE_CHILDREN_H

#include <stddef.h>

/* 0 as soon as no child process is left (zombies don't count); -1, naming one, when some are still there after grace_ms, or at
 * once when it is one of those known never to end before the program does. */
int mpy_children_wait(int grace_ms, char *err, size_t n);

#endif
