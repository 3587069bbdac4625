/* checkpoint.c - the steps of a checkpoint on this rank, as the control plane asks for them (control/engine.h).
 *
 * Half: lower; runs on the control plane's worker thread.
 *
 * Invariants
 *  1. Whatever fails, mpy_stop_release lets the program go on as if nothing had happened.
 */
#include "checkpoint.h"
#include "control/control.h"
#include "lower.h"
#include "maps.h"
#include "recorder.h"
#include "snapshot.h"
#include "state/children.h"
#include "state/fds.h"
#include "state/process.h"
#include "sys.h"
#include "threads.h"
#include <manapy/control.h>
#include <stdio.h>

static int uses_mpi(void) { return MPY_UPPER->mpi_initialized && !MPY_UPPER->mpi_finalized; }

static int check(int grace_ms, char *error, size_t n) {
    if (MPY_UPPER->mpi_finalized) { snprintf(error, n, "the job is finishing: MPI_Finalize has been called"); return -1; }
    if (MPY_UPPER->obstacle[0]) { snprintf(error, n, "%s", MPY_UPPER->obstacle); return -1; }
    if (mpy_children_wait(grace_ms, error, n)) return -1; /* first: the pipe to a child goes with it */
    return mpy_maps_check(error, n) || mpy_fds_check(error, n) || mpy_process_check(error, n) ? -1 : 0;
}

static int stop(char *error, size_t n) { return mpy_stop_all(error, n); }

static int drain(char *error, size_t n) { return uses_mpi() && MPY_UPPER->hooks.drain ? mpy_stop_run_hook(MPY_UPPER->hooks.drain, error, n) : 0; }

static int write_image(const char *directory, mpy_image_result_t *result, char *error, size_t n) {
    if (MPY_UPPER->obstacle[0]) { snprintf(error, n, "%s", MPY_UPPER->obstacle); return -1; } /* it may have come since the check */
    if (mpy_children_wait(0, error, n)) return -1; /* one may have been started since the check */
    mpy_recorder_save();
    return mpy_snapshot_write(directory, result, error, n);
}

static int resume(int exit_after, char *error, size_t n) {
    if (exit_after) {
        mpy_control_leave_process_manager();
        mpy_recorder_leave();
        mpy_sys(SYS_exit_group, MPY_EXIT_CHECKPOINTED);
    }
    int r = 0;
    if (uses_mpi() && MPY_UPPER->hooks.resume && mpy_stop_count()) r = mpy_stop_run_hook(MPY_UPPER->hooks.resume, error, n);
    mpy_stop_release();
    return r;
}

static void abort_job(int code, const char *reason) { MPY_LOWER->svc->die(reason, code); }

const mpy_engine_ops_t mpy_engine = {.check = check, .stop = stop, .drain = drain, .write = write_image, .resume = resume, .abort_job = abort_job, .segments = mpy_mpi_segments};
