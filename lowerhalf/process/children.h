/* children.h - waits for child processes that are not saved with the rank: they prevent a checkpoint.
 *
 * Lower half; libc allowed. May run while the program runs.
 */
#ifndef MANAPY_STATE_CHILDREN_H
#define MANAPY_STATE_CHILDREN_H

#include <stdbool.h>
#include <stddef.h>

/* Waits for child processes to end. Returns 0 as soon as no child process is left (zombies don't count). Returns -1
 * with a message that names a child in three cases: children still run after *grace_ms; a child is known to end only
 * with the program (then at once); `given_up`, which is called repeatedly, returns true. The unused part of the grace
 * time is left in *grace_ms. `which`: all children, or those that exist at the call (a program that starts one child
 * after another always has one). */
typedef enum { MPY_CHILDREN_ALL, MPY_CHILDREN_OF_NOW } mpy_children_t;
int mpy_children_wait(mpy_children_t which, int *grace_ms, bool (*given_up)(void), char *err, size_t n);
/* From now on these processes prevent nothing: they are saved, too. */
void mpy_children_are_saved(const int *pids, size_t count);
/* Is there a child that has ended but has not been waited for? */
int mpy_children_unreaped(void);

#endif
