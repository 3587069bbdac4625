/* process.h - process-wide state: working directory, umask, limits, timers, pending signals, and the settings of
 * prctl(2).
 *
 * Lower half; libc allowed.
 *
 * Order of calls: check while the program runs. save with every thread of the program stopped. restore in the new
 * process, before or after memory and threads (it depends on neither). start_timers last, when every thread of the
 * program is created and its signal handlers are installed: from then on signals may arrive. It needs the process's
 * first thread.
 */
#ifndef MANAPY_STATE_PROCESS_H
#define MANAPY_STATE_PROCESS_H

#include "blob.h"
#include <signal.h>

/* Translates between kernel tids of this process and the tids that the program knows. NULL: they are the same. Returns
 * 0 for an unknown tid. */
typedef int mpy_tid_map_t(int tid);

/* The program's halted threads, by the kernel's tids. NULL: there are none; the calling thread is the first one. */
typedef struct mpy_halted {
    /* The thread makes a system call. Returns the kernel's result. */
    long (*call)(int32_t tid, long nr, long a, long b, long c, long d);
    const int32_t *tids;
    size_t count;
} mpy_halted_t;

/* A pending signal. */
typedef struct mpy_pending {
    int32_t tid; /* as the program knows it; 0: it is pending for the process as a whole */
    siginfo_t info;
} mpy_pending_t;

/* Bit n-1 = signal n that is pending for this thread alone (the kernel's tid), or with 0 for the process as a whole;
 * rt_sigpending(2) would give both. Without those that manapy uses. */
uint64_t mpy_process_pending_for(int32_t tid);
int mpy_process_check(char *err, size_t n);
/* The calling thread must block every signal (threads of the lower half do). */
int mpy_process_save(mpy_blob_t *b, mpy_tid_map_t *virtual_tid, const mpy_halted_t *halted, char *err, size_t n);
int mpy_process_restore(mpy_reader_t *r, char *err, size_t n);
/* The image's pending signals. Each thread queues its own ones to itself, before the program runs. Call it once. */
const mpy_pending_t *mpy_process_pending(mpy_tid_map_t *real_tid, uint32_t *count);
int mpy_process_start_timers(mpy_tid_map_t *real_tid, char *err, size_t n);

#endif
