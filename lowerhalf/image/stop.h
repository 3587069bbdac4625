/* stop.h - halting the program's threads, and running hooks on them. See stop.c. */
#ifndef MANAPY_STOP_H
#define MANAPY_STOP_H
#include <manapy/image.h>
#include <stddef.h>

/* The control plane's worker thread calls these functions, unless a comment says otherwise. */
extern volatile int mpy_stop_misled;          /* MPY_VALUE_MISLED has arrived */
extern void (*mpy_stop_on_invitation)(void);  /* called in the handler when MPY_VALUE_JOIN arrives */
/* installs the handler of MPY_SIGNAL_STOP; needed in every new lower half */
void mpy_stop_install(void);
/* in a forked child: its thread was `parent` in the process that has made it */
void mpy_stop_forked(int32_t parent);
int mpy_stop_check(char *error, size_t n);    /* before anything stops: can all threads be halted? */
int mpy_stop_all(char *error, size_t n);      /* halt every upper thread outside the lower half */
int mpy_stop_signal_above(const void *ucontext, uint64_t mark); /* lower->signal_above; in upper threads */
/* A halted thread is to make its call again. If a signal has arrived that interrupts the call, it returns EINTR. */
void mpy_stop_interrupt(void);
void mpy_stop_release(void);                  /* let the threads continue */
int mpy_stop_count(void);
void mpy_stop_describe(int i, mpy_image_thread_t *out); /* [0] is the thread that becomes main */
/* A halted thread makes a system call. Returns the kernel's result. */
long mpy_stop_call(int32_t tid, long nr, long a, long b, long c, long d);
int mpy_stop_check_hooks(char *error, size_t n); /* is there a halted thread that can run hooks? */
/* Run a hook on the stopped thread of MPI slot 0, on the service stack. */
int mpy_stop_run_hook(int (*hook)(char *, uint64_t), char *error, size_t n);
#endif
