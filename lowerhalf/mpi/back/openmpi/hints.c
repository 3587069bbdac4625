/* hints.c - the infos of windows. See openmpi.h.
 *
 * MPI_Win_get_info of Open MPI gives few of the hints that a program has set: 4.1 forgets those of the constructor with
 * the first MPI_Win_set_info, and 5.0 gives hardly any. After a restart the window is made by one constructor with all
 * of them, perhaps another one than before. So the back keeps them.
 *
 * Invariants
 *  1. `kept[i]` is an info with the hints that the program has set for the window with index i, or 0.
 *  2. The library never sees no_locks: it refuses locks then, and the core locks every window for its own purposes
 *     (invariant 1 of wrappers/window/win.h).
 */
#include "openmpi.h"

static const char no_locks[] = "no_locks";
static MPI_Info *kept; /* MPY_MADE entries */

bool mpy_hints_open(void) {
    kept = mpy_reserve(MPY_MADE * sizeof *kept); /* 0: none yet */
    return kept != NULL;
}

mpy_hints_t mpy_hints_begin(MPI_Info given) {
    mpy_hints_t hints = {given, MPI_INFO_NULL};
    if (mpy_info_has(given, no_locks) && mpy_info_dup(given, &hints.copy) == MPI_SUCCESS)
        mpy_info_delete(hints.copy, no_locks);
    return hints;
}

void *mpy_hints_theirs(const mpy_hints_t *hints) {
    return mpy_in(MPY_KIND_INFO, hints->copy != MPI_INFO_NULL ? hints->copy : hints->given);
}

int mpy_hints_end(mpy_hints_t *hints, int rc, MPI_Win win) {
    if (hints->copy != MPI_INFO_NULL) mpy_info_free(&hints->copy);
    if (rc != MPI_SUCCESS || hints->given == MPI_INFO_NULL) return rc;
    MPI_Info *own = &kept[mpy_made_index(win)];
    return *own == 0 ? mpy_info_dup(hints->given, own) : mpy_info_merge(*own, hints->given);
}

void mpy_hints_drop(MPI_Win win) {
    MPI_Info *own = &kept[mpy_made_index(win)];
    if (*own != 0) mpy_info_free(own);
    *own = 0;
}

/* ---- the functions ---- */

static int win_create(void *base, MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, MPI_Win *win) {
    mpy_hints_t hints = mpy_hints_begin(info);
    void *theirs = mpy_null[MPY_KIND_WIN];
    int rc = MPY_THEIRS(Win_create, base, size, unit, mpy_hints_theirs(&hints), mpy_in(MPY_KIND_COMM, comm), &theirs);
    if (rc == 0) *win = mpy_win_out(theirs);
    return mpy_hints_end(&hints, mpy_code_out(rc), *win);
}
static int win_create_c(void *base, MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, MPI_Win *win) {
    return mpy_fits(unit) ? win_create(base, size, (int)unit, info, comm, win) : MPI_ERR_VALUE_TOO_LARGE;
}

static int win_create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win *win) {
    mpy_hints_t hints = mpy_hints_begin(info);
    void *theirs = mpy_null[MPY_KIND_WIN];
    int rc = MPY_THEIRS(Win_create_dynamic, mpy_hints_theirs(&hints), mpy_in(MPY_KIND_COMM, comm), &theirs);
    if (rc == 0) *win = mpy_win_out(theirs);
    return mpy_hints_end(&hints, mpy_code_out(rc), *win);
}

static int win_set_info(MPI_Win win, MPI_Info info) {
    mpy_hints_t hints = mpy_hints_begin(info);
    int rc = MPY_THEIRS(Win_set_info, mpy_in(MPY_KIND_WIN, win), mpy_hints_theirs(&hints));
    return mpy_hints_end(&hints, mpy_code_out(rc), win);
}

static int win_get_info(MPI_Win win, MPI_Info *info) {
    void *theirs = mpy_null[MPY_KIND_INFO];
    int rc = MPY_THEIRS(Win_get_info, mpy_in(MPY_KIND_WIN, win), &theirs);
    if (rc != 0) return mpy_code_out(rc);
    *info = mpy_info_out(theirs);
    MPI_Info own = kept[mpy_made_index(win)];
    return own != 0 ? mpy_info_merge(*info, own) : MPI_SUCCESS;
}

const mpy_ours_t mpy_ours_hints[] = {
    OURS(Win_create, Win_create, win_create),
    OURS(Win_create_c, Win_create, win_create_c),
    OURS(Win_create_dynamic, Win_create_dynamic, win_create_dynamic),
    OURS(Win_set_info, Win_set_info, win_set_info),
    OURS(Win_get_info, Win_get_info, win_get_info),
};
const size_t mpy_ours_hints_count = sizeof mpy_ours_hints / sizeof *mpy_ours_hints;
