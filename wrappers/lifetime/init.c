/* init.c - MPI_Init to MPI_Finalize, and the queries that are answered without the lower half.
 *
 * Upper half, upper TLS. The real MPI is loaded at the first call that needs it. It is initialized at the program's own
 * MPI_Init or first MPI_Session_init, with the thread level that the program requests. It is finalized once: in the
 * program's MPI_Finalize, or at exit if sessions are open then or there was no MPI_Init.
 *
 * Invariants
 *  1. The world's row exists before the real MPI_Init: Init and Finalize are collectives on it. Its members come from
 *     the process manager's answer to the lower half.
 *  2. mpi_initialized is set when all objects of Init are complete, before in_lower is cleared.
 *  3. mpi_finalized is set only if the real MPI_Finalize has succeeded. It fails if messages were never received: then
 *     the library is partly destroyed, the other ranks wait in it, and the end of this process must look like a crash
 *     to them, as it does without manapy.
 *  4. Threads may begin sessions at the same time, and another one the world model: one of them starts the real MPI,
 *     and the others wait for it. They wait outside of MPI, on a lock of the program's libc: a checkpoint may come
 *     meanwhile.
 */
#include "init.h"
#include "clock/clock.h"
#include "comm/attr.h"
#include "comm/comm.h"
#include "comm/session.h"
#include "core/objects.h"
#include "environment/errors.h"
#include "environment/outside.h"
#include "p2p/p2p.h"
#include "tools/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int provided_level;
static int32_t init_tid;
static pid_t init_pid; /* a child that the program forks inherits the exit handler, too */

/* State of the program's MPI_Init and MPI_Finalize. The real library may be initialized longer, for sessions. */
static enum { BEFORE, DURING, AFTER } world_model;

/* Starts the real MPI, and creates everything that is needed to save it. Collective over all ranks. */
static int start_first(mpy_thread_t *t, int *argc, char ***argv, bool with_level, int required) {
    mpy_guard_in(t);
    mpy_comm_init();
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_INIT, MPY_TRACE_COLLECTIVE(mpy_world));
    mpy_clock_enter(t, mpy_row(mpy_world->row));
    mpy_cross_in_collective(t);
    mpy_table_open();
    int rc = with_level ? MPY_REAL(Init_thread)(argc, argv, required, &provided_level) : MPY_REAL(Init)(argc, argv);
    if (rc == 0) {
        if (!with_level) MPY_REAL(Query_thread)(&provided_level);
        MPY_REAL(Comm_set_errhandler)(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPY_REAL(Comm_set_errhandler)(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        MPY_REAL(Comm_rank)(MPI_COMM_WORLD, &mpy_world->rank);
        mpy_attr_read_predefined();
        MPY_UPPER->mpi_thread_required = provided_level;
        init_tid = t->tid;
        rc = mpy_p2p_init();
        if (rc == 0) rc = mpy_comm_init_internal();
        if (rc == 0) mpy_parent_adopt();
        MPY_UPPER->mpi_initialized = 1;
    }
    mpy_cross_out_collective(t);
    mpy_traced(t, record, rc);
    return rc;
}

/* Invariant 4. *first: this thread has started it. */
static int start(int *argc, char ***argv, bool with_level, int required, bool *first) {
    static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
    int rc = MPI_SUCCESS;
    pthread_mutex_lock(&starting);
    *first = !MPY_UPPER->mpi_initialized;
    if (*first) rc = start_first(mpy_self_main(), argc, argv, with_level, required);
    pthread_mutex_unlock(&starting);
    return rc;
}

/* Finalizes the real MPI. Collective over all ranks. Calls the error handler if it fails. */
static int finish(mpy_thread_t *t) {
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_FINALIZE, MPY_TRACE_COLLECTIVE(mpy_world));
    mpy_p2p_flush();
    mpy_clock_enter(t, mpy_row(mpy_world->row));
    mpy_cross_in_collective(t);
    mpy_p2p_finalize();
    int rc = MPY_REAL(Finalize)();
    if (rc == 0) {
        MPY_UPPER->mpi_finalized = 1;
        mpy_comm_finalize();
        mpy_table_close();
    } else {
        mpy_obstacle("MPI_Finalize has failed");
    }
    mpy_traced(t, record, rc);
    if (rc == 0) MPY_LOWER->svc->trace_end();
    mpy_cross_out_collective(t);
    if (rc == 0) mpy_clock_finish(t);
    return mpy_error(NULL, rc, "MPI_Finalize");
}

/* The real library can be initialized only once. So it is kept when the last session ends, because another may begin.
 * If a program leaves a session or the world open, MPI stays unfinished, as without manapy. */
static void finish_at_exit(void) {
    if (world_model != DURING && !mpy_session_any() && !MPY_UPPER->mpi_finalized && getpid() == init_pid)
        finish(mpy_self());
}

static int finish_later(void) {
    if (init_pid == 0) atexit(finish_at_exit);
    init_pid = getpid();
    return MPI_SUCCESS;
}

/* ---- the world model ---- */

static int init(int *argc, char ***argv, bool with_level, int required, int *provided) {
    const char *name = with_level ? "MPI_Init_thread" : "MPI_Init";
    mpy_thread_t *t;
    bool first;
    int rc;
    mpy_require_boundary();
    if (world_model != BEFORE) { /* second call: the real library returns the error */
        t = mpy_self();
        mpy_cross_in(t);
        rc = MPY_REAL(Init)(argc, argv);
        mpy_cross_out(t);
        return mpy_error(NULL, rc, name);
    }
    rc = start(argc, argv, with_level, required, &first);
    if (rc != 0) return mpy_error(NULL, rc, name);
    world_model = DURING;
    if (provided != NULL) *provided = provided_level;
    return MPI_SUCCESS;
}

int PMPI_Init(int *argc, char ***argv) { return init(argc, argv, false, MPI_THREAD_SINGLE, NULL); }
int PMPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    return init(argc, argv, true, required, provided);
}

int PMPI_Finalize(void) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *self = mpy_comm(MPI_COMM_SELF);
    if (world_model != DURING) { /* before Init, or a second call */
        if (mpy_session_any()) return mpy_error(NULL, MPI_ERR_OTHER, "MPI_Finalize");
        mpy_cross_in(t);
        int rc = MPY_REAL(Finalize)();
        mpy_cross_out(t);
        return rc;
    }
    int rc = mpy_attrs_delete(MPI_COMM_SELF, &self->attrs); /* MPI-4 11.2.4: this comes first */
    if (rc != 0) return mpy_error(self, rc, "MPI_Finalize");
    mpy_attrs_delete(MPI_COMM_WORLD, &mpy_world->attrs);
    world_model = AFTER;
    return mpy_session_any() ? finish_later() : finish(t);
}

int PMPI_Initialized(int *flag) {
    *flag = world_model != BEFORE;
    return MPI_SUCCESS;
}

int PMPI_Finalized(int *flag) {
    *flag = world_model == AFTER;
    return MPI_SUCCESS;
}

/* ---- sessions ---- */

int mpy_init_for_sessions(int thread_level) {
    if (MPY_UPPER->mpi_finalized) return MPI_ERR_OTHER; /* MPI_Finalize has finalized it */
    bool first;
    int rc = start(NULL, NULL, true, thread_level, &first);
    return rc == 0 && first ? finish_later() : rc;
}

int PMPI_Query_thread(int *provided) {
    mpy_require_boundary();
    *provided = provided_level;
    return MPI_SUCCESS;
}

int PMPI_Is_thread_main(int *flag) {
    *flag = mpy_self()->tid == init_tid;
    return MPI_SUCCESS;
}

int PMPI_Abort(MPI_Comm comm, int errorcode) {
    mpy_thread_t *t = mpy_self();
    fflush(NULL); /* exit() of the program's libc would do it; the real library calls exit() of another libc */
    mpy_cross_in(t);
    int rc = MPY_REAL(Abort)(mpy_real_comm(comm), errorcode); /* returns only for a bad communicator */
    mpy_cross_out(t);
    return rc;
}
