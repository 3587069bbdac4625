/* init.c - MPI_Init to MPI_Finalize, and the questions that are answered without the lower half.
 *
 * Upper half, upper TLS. The real MPI is loaded at the first call that needs it and initialized at the program's own
 * MPI_Init, at the thread level the program asks for.
 *
 * Invariants
 *  1. The world's row exists before the real MPI_Init: Init and Finalize are collectives on it. Its members come from what
 *     the process manager told the lower half.
 *  2. mpi_initialized is set when all objects of Init are complete, before in_lower is cleared.
 */
#include "objects.h"
#include "p2p.h"

#include <stdio.h>

static int provided_level;
static int32_t init_tid;

static int init(int *argc, char ***argv, bool with_level, int required, int *provided) {
    const char *name = with_level ? "MPI_Init_thread" : "MPI_Init";
    mpy_thread_t *t;
    int rc;
    mpy_require_boundary();
    if (MPY_UPPER->mpi_initialized) { /* twice: let the real library say it */
        t = mpy_self();
        mpy_cross_in(t);
        rc = MPY_REAL(Init)(argc, argv);
        mpy_cross_out(t);
        return mpy_error(NULL, rc, name);
    }
    t = mpy_self_main();
    mpy_guard_in(t);
    mpy_comm_init();
    mpy_clock_enter(t, &MPY_UPPER->clock.rows[mpy_world->row]);
    mpy_cross_in_collective(t);
    rc = with_level ? MPY_REAL(Init_thread)(argc, argv, required, &provided_level) : MPY_REAL(Init)(argc, argv);
    if (rc == 0) {
        if (!with_level) MPY_REAL(Query_thread)(&provided_level);
        MPY_REAL(Comm_set_errhandler)(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPY_REAL(Comm_set_errhandler)(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        MPY_REAL(Comm_rank)(MPI_COMM_WORLD, &mpy_world->rank);
        mpy_attr_read_predefined();
        if (provided != NULL) *provided = provided_level;
        MPY_UPPER->mpi_thread_required = with_level ? required : MPI_THREAD_SINGLE;
        init_tid = t->tid;
        rc = mpy_p2p_init();
        if (rc == 0) rc = mpy_comm_init_quiet();
        MPY_UPPER->mpi_initialized = 1;
    }
    mpy_cross_out_collective(t);
    return rc == 0 ? rc : mpy_error(NULL, rc, name);
}

int PMPI_Init(int *argc, char ***argv) { return init(argc, argv, false, MPI_THREAD_SINGLE, NULL); }
int PMPI_Init_thread(int *argc, char ***argv, int required, int *provided) { return init(argc, argv, true, required, provided); }

int PMPI_Finalize(void) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *self = mpy_comm(MPI_COMM_SELF);
    int rc;
    if (self == NULL) { /* before Init or twice */
        mpy_cross_in(t);
        rc = MPY_REAL(Finalize)();
        mpy_cross_out(t);
        return rc;
    }
    rc = mpy_attrs_delete(MPI_COMM_SELF, &self->attrs); /* MPI-4 11.2.4: first of all */
    if (rc != 0) return mpy_error(self, rc, "MPI_Finalize");
    mpy_attrs_delete(MPI_COMM_WORLD, &mpy_world->attrs);
    mpy_p2p_flush();
    mpy_p2p_flush();
    mpy_clock_enter(t, &MPY_UPPER->clock.rows[mpy_world->row]);
    mpy_cross_in_collective(t);
    mpy_p2p_finalize();
    rc = MPY_REAL(Finalize)();
    MPY_UPPER->mpi_finalized = 1;
    mpy_comm_finalize();
    mpy_cross_out_collective(t);

    mpy_guard_in(t);
    mpy_lock(&MPY_UPPER->clock.lock);
    t->state = MPY_STATE_FINISHED;
    MPY_UPPER->clock.version++;
    mpy_unlock(&MPY_UPPER->clock.lock);
    mpy_guard_out(t);
    MPY_LOWER->svc->notify();
    return rc;
}

int PMPI_Initialized(int *flag) {
    *flag = mpy_above && MPY_UPPER->mpi_initialized;
    return MPI_SUCCESS;
}

int PMPI_Finalized(int *flag) {
    *flag = mpy_above && MPY_UPPER->mpi_finalized;
    return MPI_SUCCESS;
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
    fflush(NULL); /* natively exit() does it; the real library's exit() is that of another libc */
    mpy_cross_in(t);
    int rc = MPY_REAL(Abort)(mpy_real_comm(comm), errorcode); /* returns only for a bad communicator */
    mpy_cross_out(t);
    return rc;
}
