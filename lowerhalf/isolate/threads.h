/* threads.h - see threads.c. */
#ifndef MANAPY_THREADS_H
#define MANAPY_THREADS_H
#include <manapy/boundary.h>

int64_t mpy_thread_tls_offset(void);
void mpy_threads_init(void); /* on the main thread, before the program starts */
void mpy_thread_bind(mpy_thread_t *t);
void mpy_thread_unbind(mpy_thread_t *t);
/* Calls fn(arg) on a lower TLS, with the lower half's libc, on the service stack; *result: what it returns. Call it
 * with all signals blocked. Returns 0 if that is not possible: the thread is in the lower half, or it has not called
 * MPI but others have, or a fork of another libc has made this process. fn may fork: it then returns in both
 * processes. */
int mpy_thread_borrow(int (*fn)(void *), void *arg, int *result);
/* In the child of such a fork, on that TLS: it is the first thread's now, and nothing here uses MPI. */
void mpy_thread_forked(void);
#endif
