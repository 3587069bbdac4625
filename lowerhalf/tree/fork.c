/* fork.c - a child that a process of the tree forks keeps both halves, and can join the tree.
 *
 * Half: lower. mpy_tree_fork and mpy_tree_invited run in threads of the program on the upper TLS (in the handlers of
 * SIGSYS and MPY_SIGNAL_STOP), with all other signals blocked. They borrow the lower TLS of the first thread
 * (mpy_thread_borrow) for the rest, which may call libc.
 *
 * Most children exec or end soon. So a fork costs little more than without manapy: the child joins only when the hub
 * asks it to, which is at a checkpoint (kin.c).
 *
 * Invariants
 *  1. The libc of the lower half makes the child. So none of its locks is held there by a thread that does not exist.
 *     Our own locks are made anew when the child joins.
 *  2. The child uses nothing of its parent's lower half except the members' end of the door. It has no MPI, even if its
 *     parent has (wrappers/core/cross.c refuses its calls), and does not speak to the coordinator.
 *  3. Until it has joined, MPY_TRAP->pid is the id of an ancestor, and the child is like one that cannot be saved.
 */
#include "base/sys.h"
#include "companion.h"
#include "image/stop.h"
#include "isolate/fdguard.h"
#include "isolate/threads.h"
#include "internal.h"
#include "trace/recorder.h"
#include "tree.h"
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Not for long: a handler of the program that forks can have interrupted an opening of its own thread. */
enum { HOLD_MS = 100 };

static int fork_once(mpy_taken_t *taken) {
    int32_t thread = (int32_t)mpy_sys(SYS_gettid), parent = getpid();
    mpy_fds_hold(HOLD_MS);
    int id = fork();
    mpy_fds_release();
    if (id != 0) return id;
    if (taken(getpid(), parent)) _exit(0);
    mpy_thread_forked();
    mpy_stop_forked(thread);
    return 0;
}

static int make(void *taken_argument) {
    mpy_taken_t *taken = (mpy_taken_t *)taken_argument;
    int id;
    while ((id = fork_once(taken)) > 0 && taken(id, getpid())) {
        kill(id, SIGKILL);
        waitpid(id, NULL, __WALL);
    }
    return id < 0 ? -errno : id;
}

long mpy_tree_fork(mpy_taken_t *taken) {
    int id;
    return mpy_thread_borrow(make, (void *)taken, &id) ? id : -ENOSYS;
}

static int join(void *unused) {
    (void)unused;
    mpy_guard_forked();
    mpy_companion_forked();
    mpy_recorder_forked();
    MPY_LOWER->cancelled = MPY_LOWER->phase = 0;
    if (MPY_UPPER->mpi_initialized) MPY_TRAP->below_mpi = 1;
    MPY_UPPER->mpi_initialized = MPY_UPPER->mpi_finalized = 0;
    MPY_UPPER->obstacle[0] = '\0';
    MPY_TRAP->pid = MPY_TRAP->real_pid = getpid();
    mpy_exec_is_member();
    mpy_member_forked();
    return 0;
}

void mpy_tree_invited(void) {
    int unused;
    if (mpy_sys(SYS_getpid) != mpy_id_real(MPY_TRAP->pid)) mpy_thread_borrow(join, NULL, &unused);
    else mpy_member_invited();
}
