/* background.c - an image that is written while the program runs on, by the writer: a process that was forked from the
 * halted rank.
 *
 * Half: lower; runs on the control plane's worker thread. The writer itself runs on a copy of that thread's stack.
 *
 * Invariants
 *  1. The writer takes no lock and calls no malloc or stdio: another thread may have held the lock during the fork.
 *  2. The program does not notice the writer. It has no exit signal, so wait(2) does not find it (except with __WALL
 *     or __WCLONE), and the program gets no SIGCHLD. It closes its copies of the program's descriptors before the
 *     program runs again: the end of a pipe or connection must not depend on it. It blocks all signals, as the worker
 *     does.
 *  3. The writer does not outlive the rank: PR_SET_PDEATHSIG, set before it looks whether the rank still lives. Nor
 *     does it outlive the checkpoint: the worker kills it when the checkpoint is cancelled. So no writer exists during
 *     the next CHECK, which looks for child processes.
 *  4. If memory runs out, the kernel ends the writer first (oom_score_adj). After that this rank writes its images
 *     while the program is halted.
 *  5. No writer is needed if there is little to write: then the halted rank copies it, and the worker writes the copy
 *     while the program runs.
 */
#include "background.h"
#include "base/kernel.h"
#include "base/reason.h"
#include "base/proc/free_memory.h"
#include "base/sys.h"
#include "control/control.h"
#include "isolate/fdguard.h"
#include "snapshot.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A rank that computes on the writer's processor keeps nine tenths of it. With a lower priority the writer might never
 * end beside ranks that poll. */
enum { NICE = 10 };
enum { ASK_MS = 50 }; /* longest interval between two tests whether the checkpoint was cancelled */

typedef struct shared {
    volatile uint32_t ready; /* futex: the writer holds none of the program's descriptors any more */
    volatile uint32_t done;
    mpy_snapshot_outcome_t outcome;
} shared_t;

static shared_t *shared; /* with the writer */
static mpy_snapshot_t snapshot;
static int copied;       /* invariant 5 */
static pid_t writer;     /* 0: the image is written already, or copied */
static int ended, status; /* of the writer, as wait4 gave it */
static int was_killed;   /* invariant 4 */

/* ---- reasons against a writer ---- */

/* Containers may forbid it. */
static int can_leave_descriptors(void) { return mpy_sys(SYS_close_range, ~0u, ~0u, 0) == 0; }

static const char *reason_against(void) {
    if (was_killed) return "an earlier writer was killed";
    if (!mpy_fork_copies_pinned_pages()) return "Linux is older than 5.12";
    if (!can_leave_descriptors()) return "close_range(2) is not allowed";
    /* the program may change all of its memory while the writer reads the old pages */
    return mpy_memory_lacking(mpy_control_local_size());
}

/* If the pool of huge pages has none left for a copy, the kernel takes such a page from the writer when the program
 * writes to it. */
static const char *reason_in_memory(void) {
    for (long i = 0; i < snapshot.nmaps; i++)
        if (mpy_map_is_private_huge(&snapshot.maps[i])) return "the program has private huge pages (hugetlbfs)";
    return NULL;
}

/* ---- the writer ---- */

static void leave_descriptors(void) {
    const unsigned kept = (unsigned)snapshot.out.fd;
    if (kept > 0) mpy_sys(SYS_close_range, 0, kept - 1, 0);
    mpy_sys(SYS_close_range, kept + 1, ~0u, 0);
}

static void be_modest(void) {
    static const char first[] = "1000";
    cpu_set_t all;
    long nice = 20 - mpy_sys(SYS_getpriority, PRIO_PROCESS, 0); /* the kernel returns 20 less the value */
    mpy_sys(SYS_setpriority, PRIO_PROCESS, 0, nice + NICE);
    memset(&all, 0xff, sizeof all); /* a rank that is bound to a processor needs that one itself */
    mpy_sys(SYS_sched_setaffinity, 0, sizeof all, &all);
    int fd = (int)mpy_sys(SYS_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
    mpy_sys(SYS_write, fd, first, sizeof first - 1);
    mpy_sys(SYS_close, fd);
}

static void write_and_exit(pid_t rank) {
    mpy_sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (mpy_sys(SYS_getppid) != rank) mpy_sys(SYS_exit_group, 1);
    leave_descriptors();
    __atomic_store_n(&shared->ready, 1, __ATOMIC_RELEASE);
    mpy_futex_wake(&shared->ready);
    mpy_sys(SYS_prctl, PR_SET_NAME, "manapy-writer", 0, 0, 0); /* from now on nobody waits for this process */
    be_modest();
    int bad = mpy_snapshot_write(&snapshot, mpy_snapshot_processors() - 1, &shared->outcome); /* the rank needs one */
    __atomic_store_n(&shared->done, 1, __ATOMIC_RELEASE);
    mpy_sys(SYS_exit_group, bad != 0);
}

/* ---- the worker's side ---- */

/* Only a wait for children without an exit signal finds it. If the program has waited with __WALL, it is gone. */
static int has_ended(void) {
    ended = ended || mpy_sys(SYS_wait4, writer, &status, WNOHANG | __WCLONE, 0) != 0;
    return ended;
}

static int start_writer(void) {
    pid_t rank = getpid();
    long pid = mpy_sys(SYS_clone, 0, 0, 0, 0, 0); /* no exit signal, no shared memory */
    if (pid == 0) write_and_exit(rank);
    if (pid < 0) return -1;
    writer = (pid_t)pid;
    const struct timespec patience = {.tv_nsec = ASK_MS * 1000000l};
    while (!shared->ready && !has_ended())
        mpy_sys(SYS_futex, &shared->ready, FUTEX_WAIT, 0, &patience);
    return 0;
}

static int prepare(char *error, size_t n) {
    if (!shared) {
        shared_t *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return mpy_reason(error, n, "memory for a writer: %s", strerror(errno));
        shared = p;
    }
    shared->ready = shared->done = 0;
    writer = 0;
    ended = status = 0;
    return 0;
}

int mpy_background_capture(const mpy_image_order_t *order, char *why_not, size_t m, char *error, size_t n) {
    const char *reason = reason_against();
    if (prepare(error, n) || mpy_snapshot_take(&snapshot, order, reason == NULL, &shared->outcome, error, n))
        return -1;
    const int left = mpy_snapshot_copy(&snapshot);
    copied = left == 0;
    if (left > 0 && reason == NULL) reason = reason_in_memory();
    if (left > 0 && reason == NULL && start_writer()) reason = "no process could be started";
    int bad = left < 0 || (left > 0 && reason != NULL &&
                           mpy_snapshot_write(&snapshot, mpy_snapshot_processors(), &shared->outcome));
    snprintf(why_not, m, "%s", left > 0 && reason != NULL ? reason : "");
    if (!copied) mpy_snapshot_end(&snapshot, bad);
    return bad ? mpy_snapshot_explain(&shared->outcome, error, n) : 0;
}

/* Waits until the writer has ended; kills it if the checkpoint is cancelled. */
static void await_writer(void) {
    int fd = MPY_FD_OPEN(mpy_sys(SYS_pidfd_open, writer, 0));
    while (!has_ended()) {
        if (mpy_control_cancelled()) mpy_sys(SYS_kill, writer, SIGKILL);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        poll(&p, 1, ASK_MS);
    }
    if (fd >= 0) mpy_fd_close(fd);
}

int mpy_background_wait(mpy_image_result_t *result, char *error, size_t n) {
    if (copied) mpy_snapshot_end(&snapshot, mpy_snapshot_write(&snapshot, 1, &shared->outcome));
    copied = 0;
    if (writer) await_writer();
    const mpy_snapshot_outcome_t *outcome = &shared->outcome;
    int complete = !writer || shared->done;
    if (complete && !outcome->failure.what[0]) {
        *result = outcome->result;
        return 0;
    }
    unlink(snapshot.path);
    if (complete) return mpy_snapshot_explain(outcome, error, n);
    if (mpy_control_cancelled()) return mpy_reason(error, n, "the checkpoint was cancelled");
    was_killed = 1;
    return mpy_reason(error, n, "the process that wrote the image beside the program was ended by signal %d%s",
                      WTERMSIG(status), WTERMSIG(status) == SIGKILL ? " (out of memory?)" : "");
}
