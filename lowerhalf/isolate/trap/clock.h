/* clock.h - see clock.c. */
#ifndef MANAPY_CLOCK_H
#define MANAPY_CLOCK_H
#include "trap.h"
#include <time.h>

void mpy_clocks_note(void);     /* before a snapshot: records the program's clocks */
void mpy_clocks_continue(void); /* after a restart, when the trap block is restored: the clocks continue */
int mpy_clocks_shifted(void);
/* for a thread that was halted in a sleep until an absolute time which an earlier restart has corrected */
void mpy_clocks_correct(ucontext_t *uc);
int64_t mpy_clock_now_ns(void); /* CLOCK_MONOTONIC as the program sees it; without libc */
long mpy_clock_real(long clock); /* the kernel's clock for the program's; on either TLS */
/* clock_gettime of the vDSO after a restart; on the upper TLS. */
/* The kernel's, which vdso.c has found; NULL: this kernel has no such function. */
extern long (*mpy_clock_kernel_gettime)(clockid_t clock, struct timespec *t);
long mpy_clock_gettime(clockid_t clock, struct timespec *t);

long mpy_trap_clock_gettime(mpy_trap_t *t);
long mpy_trap_sleep_until(mpy_trap_t *t); /* clock_nanosleep and futex with an absolute time */
long mpy_trap_timer_create(mpy_trap_t *t);
long mpy_trap_timer_until(mpy_trap_t *t); /* timerfd_settime and timer_settime likewise */
#endif
