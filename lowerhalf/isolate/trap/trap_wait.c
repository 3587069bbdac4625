/* trap_wait.c - wait(2) for children that the program knows by other ids than the kernel.
 *
 * Half: lower; mpy_trap_wait in the SIGSYS handler on the upper TLS: no libc. The others while the program is halted.
 *
 * A wait may sleep, which it must not do in the handler: all signals are blocked there. So the program makes the call
 * itself, at mpy_code_wait_* (trampoline.S), with the kernel's id; the code there translates the id of the child.
 *
 * Invariants
 *  1. No image contains the kernel's id of a child. A thread that sleeps in such a call has the program's id on its
 *     stack, and a restart translates it again (correct). A thread whose call has returned, but whose result is not
 *     translated yet, is moved to where the program continues (complete).
 */
#include "base/sys.h"
#include "trap.h"
#include <sys/wait.h>

enum { SYSCALL_BYTES = 2, SI_PID = 16 / 4, RED_ZONE = 128 };

/* On the stack at mpy_code_masked_done. */
typedef struct frame { uint64_t returned, id, next; } frame_t;

static long real_id(long nr, long idtype, long id) {
    if (nr == SYS_waitid && idtype != P_PID && idtype != P_PGID) return id;
    return id < 0 ? -(long)mpy_id_real((int32_t)-id) : mpy_id_real((int32_t)id);
}

long mpy_trap_wait(mpy_trap_t *t) {
    greg_t *g = t->uc->uc_mcontext.gregs;
    int any = t->nr == SYS_waitid;
    g[REG_RCX] = g[REG_RIP];
    g[REG_R11] = real_id(t->nr, t->a[0], t->a[any]);
    g[REG_RIP] = (greg_t)mpy_code_address(any ? mpy_code_wait_rsi : mpy_code_wait_rdi);
    return t->nr;
}

/* The frame of a call that was made by mpy_trap_wait, if the thread is `before` the end of its system call. */
static frame_t *frame_of(const greg_t *g, int before) {
    if ((uint64_t)g[REG_RIP] != mpy_code_address(mpy_code_masked_done) - (uint64_t)before) return 0;
    frame_t *f = (frame_t *)g[REG_RSP];
    return f->returned == mpy_code_address(mpy_code_wait_rdi_returned) ||
                   f->returned == mpy_code_address(mpy_code_wait_rsi_returned)
               ? f
               : 0;
}

void mpy_wait_correct(ucontext_t *uc) {
    greg_t *g = uc->uc_mcontext.gregs;
    const frame_t *f = frame_of(g, SYSCALL_BYTES);
    if (!f) return;
    if (g[REG_RAX] == SYS_waitid) g[REG_RSI] = real_id(SYS_waitid, g[REG_RDI], (long)f->id);
    else g[REG_RDI] = real_id(SYS_wait4, 0, (long)f->id);
}

void mpy_wait_complete(ucontext_t *uc) {
    greg_t *g = uc->uc_mcontext.gregs;
    const frame_t *f = frame_of(g, 0);
    if (!f) return;
    if (f->returned == mpy_code_address(mpy_code_wait_rdi_returned)) {
        if (g[REG_RAX] > 0) g[REG_RAX] = mpy_id_shown((int32_t)g[REG_RAX]);
        g[REG_RDI] = (greg_t)f->id;
    } else {
        int32_t *info = (int32_t *)g[REG_RDX];
        if (g[REG_RAX] == 0 && info) info[SI_PID] = mpy_id_shown(info[SI_PID]);
        g[REG_RSI] = (greg_t)f->id;
    }
    g[REG_RIP] = (greg_t)f->next;
    g[REG_RSP] += (greg_t)sizeof *f + RED_ZONE;
}
