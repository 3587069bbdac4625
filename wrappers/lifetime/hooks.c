/* hooks.c - functions of the wrappers that the lower half calls at a checkpoint and after a restart.
 *
 * Upper half; on the service stack, on the main thread, upper TLS; every other upper thread is stopped. No libc.
 *
 * Invariants
 *  1. Objects are rebuilt in the order in which they need each other: infos, sessions, ports, error codes, datatypes,
 *     operations, communicators (groups are made from the world's group), groups, requests, and objects that need
 *     communicators: windows, files, persistent collectives.
 */
#include "hooks.h"
#include "collective/op.h"
#include "collective/persistent.h"
#include "comm/comm.h"
#include "comm/group.h"
#include "comm/session.h"
#include "core/objects.h"
#include "datatype/datatype.h"
#include "environment/errors.h"
#include "environment/info.h"
#include "file/file.h"
#include "p2p/drain.h"
#include "tools/mpi_t.h"
#include "window/win.h"


/* Collective. */
static int rebuild_objects(char *error, uint64_t n) {
    static int (*const steps[])(char *, uint64_t) = {
        mpy_info_rebuild, mpy_session_rebuild,    mpy_port_rebuild,  mpy_errors_rebuild,  mpy_datatype_rebuild,
        mpy_op_rebuild,   mpy_comm_rebuild,       mpy_group_rebuild, mpy_request_rebuild, mpy_win_rebuild,
        mpy_file_rebuild, mpy_persistent_rebuild, mpy_tools_rebuild,
    };
    for (uint64_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (steps[i](error, n) != 0) return -1;
    return 0;
}

/* The new recording needs the communicators even if MPI isn't up: the thread may be in MPI_Init, whose world it has
 * made already. */
static int rebuild(char *error, uint64_t n) {
    int rc = mpy_mpi_is_up(MPY_UPPER) ? rebuild_objects(error, n) : 0;
    mpy_comm_rebuild_trace();
    mpy_win_rebuild_trace();
    mpy_file_rebuild_trace();
    return rc;
}

static int drain(char *error, uint64_t n) {
    if (!mpy_mpi_is_up(MPY_UPPER)) return 0;
    if (mpy_p2p_drain(error, n) != 0) return -1; /* fails on all ranks or on none */
    int files = mpy_file_drain(error, n);
    char unsaid[256];
    int windows = mpy_win_drain(files ? unsaid : error, files ? sizeof unsaid : n); /* all ranks meet there */
    int failed = files || windows;
    int met = mpy_meet(failed ? unsaid : error, failed ? sizeof unsaid : n);
    return failed || met ? -1 : 0;
}

static int resume(char *error, uint64_t n) {
    if (!mpy_mpi_is_up(MPY_UPPER)) return 0;
    mpy_file_resume();
    return mpy_win_resume(error, n);
}

const mpy_hooks_t mpy_hooks = {.drain = drain, .rebuild = rebuild, .resume = resume};
