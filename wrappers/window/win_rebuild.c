/* win_rebuild.c - windows at a checkpoint and after a restart.
 *
 * Upper half, no libc; hooks: main thread, service stack, other threads stopped.
 *
 * Invariants
 *  1. When an image is written nothing is in progress on any window, on any rank: each rank has flushed, and has waited
 *     for the others, before it reads its own memory. Only then is this memory what the image must contain.
 *  2. Windows are rebuilt in the order of ascending identity, which is the same on all members (invariant 1 of
 *     comm_rebuild.c). No member leaves a window before all have restored its content.
 */
#include "win.h"
#include "comm/group.h"
#include "p2p/drain.h"
#include "tools/trace.h"

static int flush(mpy_win_t *w) {
    int rc = MPY_REAL(Win_flush_all)(w->obj.real);
    return rc == 0 ? MPY_REAL(Win_flush_all)(w->board) : rc;
}

int mpy_win_drain(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    int rc = MPI_SUCCESS;
    mpy_hook_in(t);
    for (mpy_win_t *w = mpy_win_next(0); w != NULL; w = mpy_win_next(w->cid)) {
        int flushed = flush(w);
        if (rc == 0) rc = flushed;
    }
    int met = mpy_drain_barrier();
    if (rc == 0) rc = met;
    for (mpy_win_t *w = mpy_win_next(0); w != NULL && rc == 0; w = mpy_win_next(w->cid)) {
        __builtin_memcpy(w->saved, (const void *)w->words, mpy_board_bytes(w));
        mpy_win_keep_own(w);
    }
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "pending one-sided operations did not complete (MPI error %d)", rc);
    return -1;
}

int mpy_win_resume(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    int rc = MPI_SUCCESS;
    mpy_hook_in(t);
    for (mpy_win_t *w = mpy_win_next(0); w != NULL && rc == 0; w = mpy_win_next(w->cid)) rc = mpy_win_map(w);
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "the memory of a window could not be mapped again");
    return -1;
}

static int make_again(mpy_win_t *w) {
    int group, rc = MPY_REAL(Group_incl)(mpy_world_group(), w->team.size, w->team.world, &group);
    if (rc != 0) return rc;
    rc = MPY_REAL(Comm_create_group)(MPI_COMM_WORLD, group, (int)(w->cid & 0x7fff), &w->team.obj.real);
    MPY_REAL(Group_free)(&group);
    if (rc == 0) rc = MPY_REAL(Comm_set_errhandler)(w->team.obj.real, MPI_ERRORS_RETURN);
    return rc == 0 ? mpy_win_make(w, w->team.obj.real, mpy_real_info(w->team.info)) : rc;
}

static int rebuild_one(mpy_win_t *w) {
    int rc = make_again(w);
    if (rc != 0) return rc;
    mpy_win_refill(w);
    rc = mpy_win_map(w);
    for (const mpy_attached_t *a = w->attached; a != NULL && rc == 0; a = a->next)
        rc = MPY_REAL(Win_attach)(w->obj.real, a->base, a->size);
    if (rc == 0) rc = MPY_REAL(Win_set_name)(w->obj.real, w->team.name);
    return rc == 0 ? MPY_REAL(Barrier)(w->team.obj.real) : rc;
}

int mpy_win_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    const char *name = "";
    int rc = MPI_SUCCESS;
    bool alone = false;
    mpy_hook_in(t);
    for (mpy_win_t *w = mpy_win_next(0); w != NULL && rc == 0; w = mpy_win_next(w->cid)) {
        name = w->team.name;
        alone = w->team.size == 1 && w->memory == MPY_MEMORY_PROGRAM;
        rc = rebuild_one(w);
    }
    if (rc != 0) MPY_REAL(Error_class)(rc, &rc);
    mpy_hook_out(t);
    if (rc == 0) return 0;
    if (rc == MPI_ERR_RMA_SHARED)
        mpy_text_format(
            error, n,
            "cannot rebuild the shared window '%s': its ranks must share a node, as before, under the same MPI library",
            name);
    else if (rc == MPI_ERR_WIN && alone)
        mpy_text_format(error, n,
                        "cannot rebuild the window '%s': this MPI library makes no window of one process from the "
                        "program's memory (MPI_Win_create, MPI_Win_create_dynamic)",
                        name);
    else
        mpy_text_format(error, n, "cannot rebuild the window '%s' (MPI error %d)", name, rc);
    return -1;
}

void mpy_win_rebuild_trace(void) {
    for (mpy_win_t *w = mpy_win_next(0); w != NULL; w = mpy_win_next(w->cid)) mpy_trace_comm_enter(&w->team, w->cid);
}
