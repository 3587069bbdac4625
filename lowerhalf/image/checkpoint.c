/* checkpoint.c - the steps of a checkpoint on this rank, as the control plane asks for them (control/engine.h).
 *
 * Half: lower; runs on the control plane's worker thread.
 *
 * Invariants
 *  1. After any failure, mpy_stop_release lets the program continue as if nothing had happened.
 *  2. Both steps use the grace time. CHECK waits for the children that it finds while the program runs, so that a child
 *     that needs its parent can end. A program may always have a child. So STOP waits for the children that were
 *     started later, when no more can be started.
 *  3. After STOP every rank enters the drain hook: all ranks wait for each other there, even if one fails.
 *  4. If callbacks of the program will run, CHECK leaves out what they may change; CALL checks it after them.
 *  5. No hook runs after a STOP that has failed: the thread that runs hooks may not be halted.
 */
#include "checkpoint.h"
#include "background.h"
#include "base/rank.h"
#include "base/reason.h"
#include "base/sys.h"
#include "control/callbacks.h"
#include "control/control.h"
#include "lazy/lazy.h"
#include "maps.h"
#include "join/rendezvous.h"
#include "mpi/load.h"
#include "process/children.h"
#include "process/fds/fds.h"
#include "process/memory/files.h"
#include "process/process.h"
#include "restore.h"
#include "snapshot.h"
#include "stop.h"
#include "trace/recorder.h"
#include <manapy/control.h>
#include <stdio.h>
#include <time.h>

#include "functions.h" /* MPI_COMM_NULL */

enum { REAP_TRIES = 4, REAP_NS = 2000000 };

static int grace_left_ms; /* what CHECK has left of the grace time of this checkpoint */

bool (*mpy_checkpoint_given_up)(void) = mpy_control_cancelled;

static int cancelled(void) { return mpy_checkpoint_given_up(); }

/* What cannot be saved, among what a callback may close or end. */
static int check_resources(char *error, size_t n) {
    /* First, because the pipe to a child ends with the child. */
    if (mpy_children_wait(MPY_CHILDREN_OF_NOW, &grace_left_ms, mpy_checkpoint_given_up, error, n)) return -1;
    mpy_memory_files_look_around();
    mpy_memory_files_look();
    mpy_fds_ranks(mpy_mpi_is_up(MPY_UPPER) ? mpy_mpi_exchange(MPI_COMM_NULL) : NULL, mpy_job_address);
    int failed = mpy_fds_check(error, n), none = 0;
    if (failed == MPY_FDS_LASTS) return -1;
    if (!failed) failed = mpy_maps_check(error, n);
    if (!failed) failed = mpy_memory_files_check(error, n);
    if (!failed) failed = mpy_process_check(error, n);
    if (!failed) return 0;
    /* The failure may be due to the pipe to a child that was started later. If such a child exists, succeed: STOP waits
     * for it, and then finds anything that remains. */
    char child[256];
    return mpy_children_wait(MPY_CHILDREN_ALL, &none, mpy_control_cancelled, child, sizeof child) ? 0 : -1;
}

static int check(int grace_ms, char *error, size_t n) {
    if (MPY_UPPER->mpi_finalized) return mpy_reason(error, n, "the job is finishing: MPI_Finalize has been called");
    if (MPY_UPPER->obstacle[0]) return mpy_reason(error, n, "%s", MPY_UPPER->obstacle);
    if (mpy_mpi_is_up(MPY_UPPER) && MPY_UPPER->threads[0].tid == 0)
        return mpy_reason(error, n, "the thread that called MPI_Init has ended");
    if (mpy_stop_check(error, n)) return -1;
    if (mpy_lazy_wait(cancelled)) return mpy_reason(error, n, "the memory of the restart is still being read");
    /* to look it up would be most of an incremental checkpoint */
    if (mpy_options.checkpoints.dirty) mpy_maps_learn_advice();
    grace_left_ms = grace_ms;
    if (!mpy_callbacks_expected()) return check_resources(error, n);
    return mpy_callbacks_idle(mpy_options.callback_ms, error, n);
}

static int call(char *error, size_t n) {
    return mpy_callbacks_before(mpy_options.callback_ms, error, n) ? -1 : check_resources(error, n);
}

static int stop(char *error, size_t n) {
    for (int tries = REAP_TRIES;; tries--) {
        if (mpy_stop_all(error, n) ||
            mpy_children_wait(MPY_CHILDREN_ALL, &grace_left_ms, mpy_control_cancelled, error, n))
            return -1;
        mpy_reap_for_halted();
        if (tries == 1 || !mpy_children_unreaped())
            return mpy_mpi_is_up(MPY_UPPER) ? mpy_stop_check_hooks(error, n) : 0;
        mpy_stop_release(); /* the thread that will reap the child may be about to call wait(2) */
        nanosleep(&(struct timespec){.tv_nsec = REAP_NS}, NULL);
    }
}

static int drained; /* since the last RESUME: the resume hook has something to undo */

static int drain(char *error, size_t n) {
    drained = mpy_mpi_is_up(MPY_UPPER) && MPY_UPPER->hooks.drain;
    return drained ? mpy_stop_run_hook(MPY_UPPER->hooks.drain, error, n) : 0;
}

int mpy_checkpoint_meet(int comm, char *error, uint64_t n) {
    mpy_fds_ranks(mpy_mpi_exchange(comm), mpy_job_address);
    return mpy_fds_meet((int)MPY_LOWER->drain_seconds, cancelled, error, n);
}

static int begin_image(char *error, size_t n) {
    if (MPY_UPPER->obstacle[0])
        return mpy_reason(error, n, "%s", MPY_UPPER->obstacle); /* the obstacle may be newer than the check */
    mpy_recorder_save();
    return 0;
}

static int write_image(const mpy_image_order_t *order, mpy_image_result_t *result, char *error, size_t n) {
    static mpy_snapshot_t snapshot;
    mpy_snapshot_outcome_t outcome;
    if (begin_image(error, n) || mpy_snapshot_take(&snapshot, order, 0, &outcome, error, n)) return -1;
    const int processors = order->index ? 1 : mpy_snapshot_processors(); /* a companion has no control plane */
    int bad = mpy_snapshot_write(&snapshot, processors, &outcome);
    mpy_snapshot_end(&snapshot, bad);
    *result = outcome.result;
    return bad ? mpy_snapshot_explain(&outcome, error, n) : 0;
}

static int capture(const mpy_image_order_t *order, char *why_not, size_t m, char *error, size_t n) {
    return begin_image(error, n) ? -1 : mpy_background_capture(order, why_not, m, error, n);
}

static int resume(int exit_after, char *error, size_t n) {
    if (exit_after) {
        mpy_control_leave_process_manager();
        mpy_recorder_leave();
        mpy_sys(SYS_exit_group, MPY_EXIT_CHECKPOINTED);
    }
    int r = drained && MPY_UPPER->hooks.resume ? mpy_stop_run_hook(MPY_UPPER->hooks.resume, error, n) : 0;
    drained = 0;
    if (mpy_fds_part(error, n)) r = -1;
    mpy_callbacks_after(MPY_CALL_CONTINUED);
    mpy_stop_release();
    return r;
}

enum { SPEAKER_MS = 500 }; /* for another rank to print the reason: if this one ends, mpirun may end that one, too */

static void abort_job(int code, const char *reason) {
    if (reason[0]) MPY_LOWER->svc->die(reason, code);
    usleep(SPEAKER_MS * 1000);
    mpy_sys(SYS_exit_group, code);
}

const mpy_engine_ops_t mpy_engine = {.check = check,
                                     .has_gpu = mpy_fds_have_gpu,
                                     .call = call,
                                     .stop = stop,
                                     .drain = drain,
                                     .write = write_image,
                                     .capture = capture,
                                     .persist = mpy_background_wait,
                                     .resume = resume,
                                     .abort_job = abort_job,
                                     .segments = mpy_mpi_segments,
                                     .init_since = mpy_mpi_init_since,
                                     .progress = mpy_restore_progress};
