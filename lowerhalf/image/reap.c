/* reap.c - a child has ended, and a halted thread waits for it: gives the thread the child's status at a checkpoint.
 *
 * Half: lower; runs on the control plane's worker thread, with every thread of the program halted.
 *
 * The zombie of an ended child belongs to this process: after a restart wait(2) would not find it. So this file makes
 * the call for a halted thread that is in such a call, or is about to make it.
 *
 * Invariants
 *  1. A call is made only if it returns at once, and with the thread's own arguments. Afterwards the thread's registers
 *     say that the call has returned.
 */
#include "base/sys.h"
#include "checkpoint.h"
#include "isolate/trap/trap.h"
#include "stop.h"
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>

enum { SYSCALL_BYTES = 2 };

static int at_syscall(const greg_t *g) {
    const uint8_t *at = (const uint8_t *)g[REG_RIP];
    return (g[REG_RAX] == SYS_wait4 || g[REG_RAX] == SYS_waitid) && at[0] == 0x0f && at[1] == 0x05;
}

static void make(greg_t *g) {
    siginfo_t ended = {0};
    long options = g[REG_RAX] == SYS_wait4 ? g[REG_RDX] : g[REG_R10], r;
    if (options & __WNOTHREAD) return; /* it waits only for children of that thread */
    if (g[REG_RAX] == SYS_wait4) {
        r = mpy_sys6(SYS_wait4, g[REG_RDI], g[REG_RSI], options | WNOHANG, g[REG_R10], 0, 0);
        if (r <= 0) return;
    } else {
        r = mpy_sys6(SYS_waitid, g[REG_RDI], g[REG_RSI], (long)&ended, options | WNOHANG | WNOWAIT, 0, 0);
        if (r < 0 || ended.si_pid == 0) return;
        r = mpy_sys6(SYS_waitid, g[REG_RDI], g[REG_RSI], g[REG_RDX], options | WNOHANG, g[REG_R8], 0);
    }
    g[REG_RAX] = r;
    g[REG_RIP] += SYSCALL_BYTES;
}

void mpy_reap_for_halted(void) {
    for (int i = 0; i < mpy_stop_count(); i++) {
        mpy_image_thread_t thread;
        mpy_stop_describe(i, &thread);
        ucontext_t *uc = (ucontext_t *)thread.ucontext;
        if (at_syscall(uc->uc_mcontext.gregs)) make(uc->uc_mcontext.gregs);
        mpy_wait_complete(uc);
    }
}
