/* callbacks.h - see callbacks.c; for the other files of libdmtcp.so. manapy.h declares the functions of programs. */
#ifndef MANAPY_CALLBACKS_H
#define MANAPY_CALLBACKS_H

enum { MANAPY_BEFORE_CHECKPOINT, MANAPY_AFTER_CHECKPOINT, MANAPY_AFTER_RESTART, MANAPY_MOMENTS };
enum { MANAPY_REGISTERED = 1, MANAPY_ABSENT = 0, MANAPY_FULL = -1 };

/* False in a process that manapy-launch did not start, and in a forked child. */
int manapy_present(void);

/* As in manapy.h. */
int manapy_register(int moment, int (*function)(void *), void *data, const char *name);

/* In a callback: whether it has given a reason for an answer that is not 0. */
int manapy_reason_given(void);

/* A safe point: if the lower half has asked for callbacks and this is the main thread, calls them, and returns after
 * the checkpoint. */
void manapy_run_callbacks(void);

#endif
