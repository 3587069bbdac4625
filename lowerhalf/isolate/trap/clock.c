/* clock.c - the program's monotonic clocks, which never go backwards, not even after a restart on another machine.
 *
 * Half: lower. Functions that traps and the proxy vDSO call run on the upper TLS: no libc there.
 *
 * After a restart under another boot (or in another time namespace) each clock is the machine's clock plus an offset.
 * So it continues from the checkpoint, and counts the time in between as on one machine. Absolute times that the
 * program passes to the kernel are corrected in the opposite direction. If the machine's clock itself has continued,
 * there is no offset, and only calls whose clock or timer has an id are trapped (mpy_clock_real).
 *
 * Invariants
 *  1. Offsets are whole seconds, so that in an absolute wake-up time only one word changes (trampoline.S).
 *  2. Offsets change only while no thread of the program runs.
 */
#include "clock.h"
#include "base/sys.h"
#include <fcntl.h>
#include <manapy/fnv.h>
#include <stdint.h>
#include <string.h>
#include <sys/timerfd.h>

#define NS 1000000000l
#define SLACK_NS 20000000l /* CLOCK_MONOTONIC_COARSE may lag behind a recorded CLOCK_MONOTONIC by this time */
#define BOOT_ID_BYTES 36
/* seconds: larger absolute times (after 2001) belong to CLOCK_REALTIME; no machine is up for 31 years */
#define TIMES_OF_DAY NS

static const clockid_t clocks[MPY_CLOCKS] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME};

static int index_of(long clock) {
    switch (clock) {
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE: return 0;
    case CLOCK_MONOTONIC_RAW: return 1;
    case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM: return 2;
    }
    return -1;
}

static int64_t offset_of(long clock) {
    int i = index_of(clock);
    return i < 0 ? 0 : MPY_TRAP->clocks.offset[i];
}

int mpy_clocks_shifted(void) {
    for (int i = 0; i < MPY_CLOCKS; i++)
        if (MPY_TRAP->clocks.offset[i]) return 1;
    return 0;
}

/* ---- over a restart ---- */

static int64_t now_ns(clockid_t clock) {
    struct timespec t = {0};
    mpy_sys(SYS_clock_gettime, clock, &t);
    return t.tv_sec * NS + t.tv_nsec;
}

int64_t mpy_clock_now_ns(void) { return now_ns(CLOCK_MONOTONIC) + offset_of(CLOCK_MONOTONIC) * NS; }

/* Reads a small file. Returns the number of bytes, or 0. */
static size_t content(const char *path, char *text, size_t size) {
    int fd = (int)mpy_sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return 0;
    long n = mpy_sys(SYS_read, fd, text, size);
    mpy_sys(SYS_close, fd);
    return n > 0 ? (size_t)n : 0;
}

/* Two time namespaces are told apart by their offsets (time_namespaces(7)), not by their inode numbers: the kernel
 * gives the number of a namespace that has ended to the next one. */
static void boot_of(char boot[MPY_BOOT_ID]) {
    char offsets[256];
    memset(boot, 0, MPY_BOOT_ID);
    content("/proc/sys/kernel/random/boot_id", boot, BOOT_ID_BYTES);
    uint64_t hash = mpy_fnv1a(offsets, content("/proc/self/timens_offsets", offsets, sizeof offsets));
    memcpy(boot + BOOT_ID_BYTES, &hash, sizeof hash);
}

void mpy_clocks_note(void) {
    mpy_clocks_t *c = &MPY_TRAP->clocks;
    for (int i = 0; i < MPY_CLOCKS; i++) c->shown_ns[i] = now_ns(clocks[i]) + c->offset[i] * NS;
    c->real_ns = now_ns(CLOCK_REALTIME);
    boot_of(c->boot);
}

void mpy_clocks_continue(void) {
    mpy_clocks_t *c = &MPY_TRAP->clocks;
    char boot[MPY_BOOT_ID];
    boot_of(boot);
    int64_t away = now_ns(CLOCK_REALTIME) - c->real_ns;
    for (int i = 0; i < MPY_CLOCKS; i++) {
        int64_t now = now_ns(clocks[i]), before = c->offset[i];
        if (memcmp(boot, c->boot, sizeof boot) || now + before * NS < c->shown_ns[i]) {
            int64_t missing = c->shown_ns[i] + SLACK_NS + (away > 0 ? away : 0) - now;
            c->offset[i] = missing / NS + (missing % NS > 0);
        }
        c->change[i] = c->offset[i] - before;
    }
}

void mpy_clocks_correct(ucontext_t *uc) {
    greg_t *g = uc->uc_mcontext.gregs;
    if ((uint64_t)g[REG_RIP] + 2 /* the system call */ != mpy_code_address(mpy_code_masked_done)) return;
    const uint64_t *caller = (const uint64_t *)g[REG_RSP];
    if (*caller < mpy_code_address(mpy_code_timed_rdx) || *caller >= mpy_code_address(mpy_code_timed_end)) return;
    int i = g[REG_RAX] == SYS_clock_nanosleep ? index_of(g[REG_RDI]) : 0;
    int64_t *until = (int64_t *)g[REG_RSP] + 1;
    *until = *until > MPY_TRAP->clocks.change[i] ? *until - MPY_TRAP->clocks.change[i] : 0;
}

/* ---- while the program runs ---- */

/* A negative clock measures processor time, of the process or thread whose id it contains (clock_getcpuclockid(3)), or
 * belongs to a descriptor. */
long mpy_clock_real(long clock) {
    enum { KIND_BITS = 3, KINDS = 7, OF_DESCRIPTOR = 3 };
    const int c = (int)clock;
    const int32_t id = ~(c >> KIND_BITS);
    if (c >= 0 || (c & KINDS) == OF_DESCRIPTOR || id == 0) return clock;
    return (int)((unsigned)~mpy_id_real(id) << KIND_BITS | (unsigned)(c & KINDS));
}

static void shift(long clock, struct timespec *t) { t->tv_sec += offset_of(clock); }

long (*mpy_clock_kernel_gettime)(clockid_t clock, struct timespec *t);

long mpy_clock_gettime(clockid_t clock, struct timespec *t) {
    if (clock < 0) clock = (clockid_t)mpy_clock_real(clock);
    long r = mpy_clock_kernel_gettime ? mpy_clock_kernel_gettime(clock, t) : mpy_sys(SYS_clock_gettime, clock, t);
    if (r == 0) shift(clock, t);
    return r;
}

long mpy_trap_clock_gettime(mpy_trap_t *t) {
    long r = mpy_sys(SYS_clock_gettime, mpy_clock_real(t->a[0]), t->a[1]);
    if (r == 0) shift(t->a[0], (struct timespec *)t->a[1]);
    return r;
}

/* It must not sleep in this handler, because all signals are blocked here. So the program makes the call when the
 * handler has returned, with a corrected copy of the time. */
long mpy_trap_sleep_until(mpy_trap_t *t) {
    greg_t *g = t->uc->uc_mcontext.gregs;
    int futex = t->nr == SYS_futex;
    const struct timespec *until = (const struct timespec *)t->a[futex ? 3 : 2];
    int64_t offset = offset_of(futex ? CLOCK_MONOTONIC : t->a[0]);
    g[REG_RCX] = g[REG_RIP];
    g[REG_RIP] = (greg_t)mpy_code_address(!until || !offset ? mpy_code_masked_none
                                          : futex           ? mpy_code_timed_r10
                                                            : mpy_code_timed_rdx);
    if (until) g[REG_R11] = until->tv_sec > offset ? until->tv_sec - offset : until->tv_sec < 0 ? until->tv_sec : 0;
    return t->nr;
}

long mpy_trap_timer_create(mpy_trap_t *t) {
    struct sigevent event;
    const void *given = (const void *)t->a[1];
    if (given) {
        if (mpy_sys(SYS_rt_sigprocmask, -1, given, 0, 8) == -14) return -14; /* EFAULT; -1 is refused later */
        __builtin_memcpy(&event, given, sizeof event);
        if (event.sigev_notify & SIGEV_THREAD_ID) event._sigev_un._tid = mpy_id_real(event._sigev_un._tid);
    }
    return mpy_sys(SYS_timer_create, mpy_clock_real(t->a[0]), given ? &event : 0, t->a[2]);
}

long mpy_trap_timer_until(mpy_trap_t *t) {
    struct itimerspec wish;
    if (!t->a[2]) return -14; /* EFAULT */
    __builtin_memcpy(&wish, (const void *)t->a[2], sizeof wish);
    int64_t offset = MPY_TRAP->clocks.offset[0];
    if ((wish.it_value.tv_sec || wish.it_value.tv_nsec) && wish.it_value.tv_sec >= 0 &&
        wish.it_value.tv_sec < TIMES_OF_DAY) {
        wish.it_value.tv_sec -= offset;
        /* the time is over; 0 would disarm the timer */
        if (wish.it_value.tv_sec < 0) wish.it_value = (struct timespec){0, 1};
    }
    return mpy_sys(t->nr, t->a[0], t->a[1], &wish, t->a[3]);
}
