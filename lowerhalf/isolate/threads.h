/* threads.h - see threads.c. */
#ifndef MANAPY_THREADS_H
#define MANAPY_THREADS_H
#include <manapy/boundary.h>

int64_t mpy_thread_tls_offset(void);
void mpy_threads_init(void); /* on the main thread, before the program starts */
void mpy_thread_bind(mpy_thread_t *t);
void mpy_thread_unbind(mpy_thread_t *t);
#endif
