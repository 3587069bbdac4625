/* children.h - waits for child processes that are not saved with the rank: they prevent a checkpoint. And recreates
 * those that have ended (zombies.c).
 *
 * Lower half; libc allowed. May run while the program runs.
 */
#ifndef MANAPY_STATE_CHILDREN_H
#define MANAPY_STATE_CHILDREN_H

#include "process.h"
#include <stdbool.h>
#include <stddef.h>

typedef int mpy_child_visit_t(int pid, void *context);

/* Waits for child processes to end. Returns 0 as soon as no child process is left (zombies don't count). Returns -1
 * with a message that names a child in three cases: children still run after *grace_ms; a child is known to end only
 * with the program (then at once); `given_up`, which is called repeatedly, returns true. The unused part of the grace
 * time is left in *grace_ms. `which`: all children, or those that exist at the call (a program that starts one child
 * after another always has one). */
typedef enum { MPY_CHILDREN_ALL, MPY_CHILDREN_OF_NOW } mpy_children_t;
int mpy_children_wait(mpy_children_t which, int *grace_ms, bool (*given_up)(void), char *err, size_t n);
/* Children whose program has such a name (base/match.h; NULL: none) prevent nothing: a restart shows them as killed. */
void mpy_children_ignore(const char *patterns);
/* Is there such a child of this process or of those that are saved with it, for which `visit` returns other than 0? */
int mpy_children_ignored(mpy_child_visit_t *visit, void *context);
/* From now on these processes prevent nothing: they are saved together with this one, which is one of them. They are in
 * the order of their images. 0: this process is alone. */
void mpy_children_are_saved(const int *pids, size_t count);
/* The i-th of these processes; 0: there are no more. */
int mpy_children_saved(size_t i);
/* The i-th process of the rank, also if this process is alone; 0: there are no more. */
int mpy_rank_process(size_t i);
/* Visits the children of a process, and on old kernels all processes, until a visit returns other than 0. Returns the
 * id of that one, or 0. */
int mpy_children_each(int parent, mpy_child_visit_t *visit, void *context);
/* Is there a child that is not among those that are saved with this process, but will be? */
int mpy_children_may_join(void);
/* Is there a child that has ended but has not been waited for? */
int mpy_children_unreaped(void);

/* Children that have ended, and for which the program has not waited. */
void mpy_zombies_save(mpy_blob_t *b, mpy_tid_map_t *shown);
/* Loads them, and makes them again. Returns 0, or -1 with a line in `err`. */
int mpy_zombies_restore(mpy_reader_t *r, char *err, size_t n);
/* Each of them, after that: the id by which the program knows it, and the kernel's. */
void mpy_zombies_each(void (*visit)(int32_t shown, int32_t real));

#endif
