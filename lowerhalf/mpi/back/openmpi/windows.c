/* windows.c - windows of one process that Open MPI allocates. See openmpi.h.
 *
 * Open MPI 4.1 on one node can allocate such a window, but MPI_Win_create fails. Its memory is from malloc. The core
 * needs memory that it can map a second time, or MPI_Win_create (wrappers/window/win_memory.c). So the real window is
 * two pages larger than asked for, whole pages in it become shared ones, and the core sees only these.
 *
 * Invariants
 *  1. The pages belong to the window alone. Before it is freed they become private again, because they go back to
 *     malloc.
 *  2. The real window counts in bytes from its own beginning: mpy_disp_in adds where our pages begin.
 *  3. If MPI_Win_create works for one process, this file changes nothing: a library that registers memory would not
 *     notice that its pages are replaced.
 */
#include "openmpi.h"

#include <sys/mman.h>

#define PAGE ((uintptr_t)4096)
#define PAGE_UP(x) (((uintptr_t)(x) + PAGE - 1) & ~(PAGE - 1))

mpy_alone_t **mpy_alone;

bool mpy_windows_open(void) {
    mpy_alone = mpy_reserve(MPY_MADE * sizeof *mpy_alone);
    return mpy_alone != NULL;
}

static bool is_alone(void *comm) {
    int n = 0;
    return comm != mpy_null[MPY_KIND_COMM] && MPY_THEIRS(Comm_size, comm, &n) == 0 && n == 1;
}

/* For the first communicator of one process, which stands for all. */
static bool can_create(void *comm) {
    static int answer; /* 1: no, 2: yes; two threads find the same */
    int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
    if (known == 0) {
        void *win = mpy_null[MPY_KIND_WIN];
        known = MPY_THEIRS(Win_create, NULL, (MPI_Aint)0, 1, mpy_null[MPY_KIND_INFO], comm, &win) == 0 ? 2 : 1;
        if (known == 2) MPY_THEIRS(Win_free, &win);
        __atomic_store_n(&answer, known, __ATOMIC_RELAXED);
    }
    return known == 2;
}

static bool replace(char *pages, size_t bytes, int how) {
    int flags = how | MAP_ANONYMOUS | MAP_FIXED;
    return bytes == 0 || mmap(pages, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED;
}

static int allocate_alone(int function, MPI_Aint size, int unit, void *info, void *comm, void *baseptr, MPI_Win *win) {
    char *base = NULL;
    void *theirs = mpy_null[MPY_KIND_WIN];
    mpy_alone_t *alone = malloc(sizeof *alone);
    if (alone == NULL) return MPI_ERR_NO_MEM;
    int rc = ((int (*)())mpy_theirs[function])(size + (MPI_Aint)(2 * PAGE), 1, info, comm, &base, &theirs);
    if (rc != 0) {
        free(alone);
        return mpy_code_out(rc);
    }
    char *pages = (char *)PAGE_UP(base);
    *alone = (mpy_alone_t){.pages = pages, .shift = pages - base, .size = size, .unit = unit};
    if (!replace(pages, PAGE_UP(size), MAP_SHARED)) {
        MPY_THEIRS(Win_free, &theirs);
        free(alone);
        return MPI_ERR_NO_MEM;
    }
    *win = mpy_win_out(theirs);
    mpy_alone[mpy_made_index(*win)] = alone;
    *(void **)baseptr = pages;
    return MPI_SUCCESS;
}

static int allocate_together(int function, MPI_Aint size, int unit, void *info, void *comm, void *baseptr,
                             MPI_Win *win) {
    void *theirs = mpy_null[MPY_KIND_WIN];
    int rc = ((int (*)())mpy_theirs[function])(size, unit, info, comm, baseptr, &theirs);
    if (rc == 0) *win = mpy_win_out(theirs);
    return mpy_code_out(rc);
}

/* `function`: MPI_Win_allocate or MPI_Win_allocate_shared. */
static int allocate(int function, MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, void *baseptr,
                    MPI_Win *win) {
    if (!mpy_fits(unit)) return MPI_ERR_VALUE_TOO_LARGE;
    mpy_hints_t hints = mpy_hints_begin(info);
    void *o_info = mpy_hints_theirs(&hints), *o_comm = mpy_in(MPY_KIND_COMM, comm);
    bool valid = size >= 0 && size <= PTRDIFF_MAX - (MPI_Aint)(3 * PAGE) && unit > 0;
    int rc;
    if (valid && is_alone(o_comm) && !can_create(o_comm))
        rc = allocate_alone(function, size, (int)unit, o_info, o_comm, baseptr, win);
    else
        rc = allocate_together(function, size, (int)unit, o_info, o_comm, baseptr, win);
    return mpy_hints_end(&hints, rc, *win);
}

static int win_allocate(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win) {
    return allocate(MPY_FN_Win_allocate, size, unit, info, comm, baseptr, win);
}
static int win_allocate_c(MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win) {
    return allocate(MPY_FN_Win_allocate, size, unit, info, comm, baseptr, win);
}
static int win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win) {
    return allocate(MPY_FN_Win_allocate_shared, size, unit, info, comm, baseptr, win);
}
static int win_allocate_shared_c(MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, void *baseptr,
                                 MPI_Win *win) {
    return allocate(MPY_FN_Win_allocate_shared, size, unit, info, comm, baseptr, win);
}

static int win_free(MPI_Win *win) {
    void *theirs = mpy_in(MPY_KIND_WIN, *win);
    mpy_alone_t *alone = mpy_alone[mpy_made_index(*win)];
    if (alone != NULL) {
        if (!replace(alone->pages, PAGE_UP(alone->size), MAP_PRIVATE)) return MPI_ERR_NO_MEM;
        mpy_alone[mpy_made_index(*win)] = NULL;
        free(alone);
    }
    int rc = MPY_THEIRS(Win_free, &theirs);
    if (rc == 0) mpy_hints_drop(*win); /* the index is still this window's */
    mpy_inout(MPY_KIND_WIN, win, theirs);
    return mpy_code_out(rc);
}

static int win_shared_query(MPI_Win win, int rank, MPI_Aint *size, int *unit, void *baseptr) {
    const mpy_alone_t *alone = mpy_alone[mpy_made_index(win)];
    int rc = MPY_THEIRS(Win_shared_query, mpy_in(MPY_KIND_WIN, win), mpy_rank_in(rank), size, unit, baseptr);
    if (rc == 0 && alone != NULL) {
        *size = alone->size;
        *unit = alone->unit;
        *(void **)baseptr = alone->pages;
    }
    return mpy_code_out(rc);
}
static int win_shared_query_c(MPI_Win win, int rank, MPI_Aint *size, MPI_Aint *unit, void *baseptr) {
    int theirs = 0, rc = win_shared_query(win, rank, size, &theirs, baseptr);
    if (rc == 0) *unit = theirs;
    return rc;
}

const mpy_ours_t mpy_ours_windows[] = {
    OURS(Win_allocate, Win_allocate, win_allocate),
    OURS(Win_allocate_c, Win_allocate, win_allocate_c),
    OURS(Win_allocate_shared, Win_allocate_shared, win_allocate_shared),
    OURS(Win_allocate_shared_c, Win_allocate_shared, win_allocate_shared_c),
    OURS(Win_free, Win_free, win_free),
    OURS(Win_shared_query, Win_shared_query, win_shared_query),
    OURS(Win_shared_query_c, Win_shared_query, win_shared_query_c),
};
const size_t mpy_ours_windows_count = sizeof mpy_ours_windows / sizeof *mpy_ours_windows;
