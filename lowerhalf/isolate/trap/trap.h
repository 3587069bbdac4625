/* trap.h - interception of the upper half's system calls. See trap.c. */
#ifndef MANAPY_TRAP_H
#define MANAPY_TRAP_H
#include "base/rank.h"
#include "isolate/ids.h"
#include "isolate/trapstate.h"
#include <signal.h>
#include <stdbool.h>
#include <ucontext.h>

/* Handlers get the six arguments and may edit the context; they return the system call's result. */
typedef struct mpy_trap { long nr; long a[6]; ucontext_t *uc; } mpy_trap_t;

/* System calls in the program's code below 4 GiB: the addresses after their instructions. n = MPY_LOW_CALLS_MAX + 1:
 * there are more; lo and hi are the limits of that code. */
#define MPY_LOW_CALLS_MAX 1800
typedef struct mpy_low_calls { uint32_t n, lo, hi, after[MPY_LOW_CALLS_MAX]; } mpy_low_calls_t;

void mpy_code_install(void);                     /* map the code page at MPY_CODE_ADDR */
void mpy_trap_install(void);                     /* SIGSYS handler; call in every new lower half, before the filter */
/* IDS, CLOCKS: only if the program's ids or clocks differ from the kernel's */
typedef enum { MPY_TRAP_ALWAYS, MPY_TRAP_IDS, MPY_TRAP_CLOCKS } mpy_trap_when_t;
/* installs the seccomp filter for the calls that are trapped in case `when`; 0 or -errno */
int mpy_trap_filter(const mpy_low_calls_t *low, mpy_trap_when_t when);
extern volatile uint32_t mpy_memory_calls;       /* of the program, done so far: they change mappings, or give advice */
extern volatile uint32_t mpy_memory_missing;     /* futex: pages are still to be read (image/lazy): no fork now */
/* Makes a child that has a sound lower half, in the way of fork(2). Returns as fork does, or -ENOSYS: that is not
 * possible. A child whose id is `taken` is replaced by another one. */
typedef int mpy_taken_t(int32_t id, long process);
extern long (*mpy_trap_fork)(mpy_taken_t *taken);
extern int (*mpy_trap_on_exit)(int code);        /* called at the program's exit_group; returns the exit code */

/* The code page's symbols (trampoline.S), and the address of a symbol in the page. */
extern const char mpy_code_begin[], mpy_code_end[], mpy_code_restorer[], mpy_code_signal_entry[], mpy_code_haltable[];
extern const char mpy_code_masked_none[], mpy_code_masked_rdi[], mpy_code_masked_r10[], mpy_code_masked_r8[];
extern const char mpy_code_masked_r9_pair[], mpy_code_masked_done[];
extern const char mpy_code_left_rdi[], mpy_code_left_rdx[], mpy_code_left_r10[], mpy_code_left_ms_rdx[];
extern const char mpy_code_left_ms_r10[], mpy_code_left_end[];
extern const char mpy_code_timed_rdx[], mpy_code_timed_r10[], mpy_code_timed_end[];
extern const char mpy_code_wait_rdi[], mpy_code_wait_rdi_returned[], mpy_code_wait_rsi[], mpy_code_wait_rsi_returned[];
static inline uint64_t mpy_code_address(const char *symbol) {
    return MPY_CODE_ADDR + (uint64_t)(symbol - mpy_code_begin);
}

/* trap_memory.c */
long mpy_trap_mmap(mpy_trap_t *t);
long mpy_trap_munmap(mpy_trap_t *t);
long mpy_trap_mremap(mpy_trap_t *t);
long mpy_trap_brk(mpy_trap_t *t);
long mpy_trap_shmat(mpy_trap_t *t);
long mpy_trap_mlock(mpy_trap_t *t);
long mpy_trap_mlockall(mpy_trap_t *t);
long mpy_trap_madvise(mpy_trap_t *t);
/* trap_signal.c */
long mpy_trap_sigaction(mpy_trap_t *t);
long mpy_trap_sigprocmask(mpy_trap_t *t);
long mpy_trap_with_mask(mpy_trap_t *t);
/* From now on SIGTERM from outside doesn't end the rank, unless the program has set an action. Call it once. */
void mpy_signals_shield(void);
void mpy_signals_reinstall(void); /* after a restart: installs the program's actions in the kernel again */
void mpy_signals_collect(void);   /* before a snapshot: updates the table from the kernel */
/* trap_clone.c */
long mpy_trap_clone(mpy_trap_t *t);
/* trap_wait.c */
long mpy_trap_wait(mpy_trap_t *t);
void mpy_wait_correct(ucontext_t *uc);  /* after a restart, for a thread that was halted in a wait */
void mpy_wait_complete(ucontext_t *uc); /* before a snapshot, for each halted thread */
/* trap_path.c */
long mpy_trap_path(mpy_trap_t *t);
long mpy_trap_path_at(mpy_trap_t *t);
long mpy_trap_terminal(mpy_trap_t *t);
/* `path`, or in `room` the path by which the kernel knows that file of /proc or that pseudo-terminal. */
const char *mpy_path_real(const char *path, char *room, size_t n);
/* The target of a link, as readlink(2) has put it into `out`: as the program knows it. Returns its length. */
long mpy_path_shown(char *out, long length, long room);
/* trap_exec.c */
long mpy_trap_execve(mpy_trap_t *t);
long mpy_trap_execveat(mpy_trap_t *t);
long mpy_trap_readlink(mpy_trap_t *t);
/* For exec, by this process or by a child that becomes a member of its tree (tree/tree.h): */
typedef struct mpy_exec {
    const char *launcher; /* path of manapy-launch */
    const char *rejoin;   /* the text to find the job again */
    const char *tree;     /* the text to find the tree again, for members */
    const char *door;     /* the same for the first process of the tree */
    const char *mpi;      /* the library that --mpi has chosen, or NULL */
    bool is_member;       /* this process is a member itself */
    int kept[3];          /* descriptors that the exec must keep: the process manager's, the members' end of the
                           * tree's door; in the first process also the other end. Or -1 */
} mpy_exec_t;
void mpy_exec_note(const mpy_exec_t *how, const mpy_options_t *given);
void mpy_exec_is_member(void); /* this process has become one */
#endif
