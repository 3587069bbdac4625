/* manapy.h - what a C or C++ program can tell manapy: functions to be called at checkpoints.
 *
 * The functions that are declared here are weak symbols, which bind when manapy-launch runs the program. Nothing
 * has to be linked, and without manapy everything here does nothing. docs/callbacks.md has the rules; in short:
 *
 *   - Callbacks run on the program's main thread, when it is in a call of MPI, or calls manapy_poll().
 *     The program is paused from the first callback before a checkpoint to the last one after it.
 *   - Those before a checkpoint run in reverse order of their registration, the others in its order.
 *   - A callback returns 0. If one before a checkpoint returns another value, this checkpoint is refused; `manapy
 *     checkpoint` names the callback, and the program goes on, after its callbacks of after_checkpoint.
 *   - Callbacks must not call MPI.
 */
#ifndef MANAPY_H
#define MANAPY_H

#ifdef __cplusplus
extern "C" {
#endif

typedef int (*manapy_callback_t)(void *data);
typedef enum manapy_moment {
    MANAPY_BEFORE_CHECKPOINT = 0,
    MANAPY_AFTER_CHECKPOINT = 1, /* the program goes on; also after a checkpoint that was refused */
    MANAPY_AFTER_RESTART = 2
} manapy_moment_t;

/* What the functions below return. */
enum { MANAPY_REGISTERED = 1, MANAPY_ABSENT = 0, MANAPY_FULL = -1 };

__attribute__((weak)) int manapy_register(manapy_moment_t moment, manapy_callback_t callback, void *data,
                                          const char *name);
__attribute__((weak)) int manapy_unregister(manapy_callback_t callback, void *data);
__attribute__((weak)) void manapy_run_callbacks(void);
__attribute__((weak)) void manapy_give_reason(const char *reason);

/* Call `callback(data)` at this moment of each checkpoint from now on. Returns MANAPY_REGISTERED, MANAPY_ABSENT without
 * manapy, or MANAPY_FULL if there are 256 callbacks already. */
#define manapy_before_checkpoint(callback, data) manapy_on(MANAPY_BEFORE_CHECKPOINT, callback, data, #callback)
#define manapy_after_checkpoint(callback, data) manapy_on(MANAPY_AFTER_CHECKPOINT, callback, data, #callback)
#define manapy_after_restart(callback, data) manapy_on(MANAPY_AFTER_RESTART, callback, data, #callback)

/* The same; `name` is for messages. */
static inline int manapy_on(manapy_moment_t moment, manapy_callback_t callback, void *data, const char *name) {
    return manapy_register ? manapy_register(moment, callback, data, name) : MANAPY_ABSENT;
}

/* Call it no more, at no moment. Returns how many registrations that were. */
static inline int manapy_forget(manapy_callback_t callback, void *data) {
    return manapy_unregister ? manapy_unregister(callback, data) : 0;
}

/* A moment at which callbacks may run, for a main thread that seldom calls MPI. Costs 4 ns. */
static inline void manapy_poll(void) {
    if (manapy_run_callbacks) manapy_run_callbacks();
}

/* In a callback that returns another value than 0: why; one line. In a hook of DMTCP it also refuses the checkpoint. */
static inline void manapy_refuse(const char *reason) {
    if (manapy_give_reason) manapy_give_reason(reason);
}

#ifdef __cplusplus
}
#endif
#endif
