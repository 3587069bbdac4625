/* win_memory.c - the real window and the board of a window, and the place of its memory.
 *
 * Upper half, no libc; in the lower half's TLS. Windows that the real library allocates lie in a segment that the ranks
 * of a node share. The segment is mapped a second time in the arena (mremap(2) of 0 bytes); the program sees this
 * mapping. If there is nothing to share (a rank alone on its node), the memory is ours from the start, and
 * MPI_Win_create makes the real window.
 *
 * Invariants
 *  1. All members agree on MPY_MEMORY_SHARED or _ARENA, because these need different collective calls.
 *  2. After a restart either the segment has its old layout, or the window becomes _ARENA. Shared windows can't become
 *     _ARENA; they fail. A window of one process has the layout of such a segment in both, and may become either.
 *  3. While an image is written the segment contains only our own part as shared pages; the reader of the image needs
 *     no special case. A shared page that this process has not touched at that address would look empty, so all pages
 *     are touched.
 *  4. If the first real constructor has accepted the arguments, a later failure here happens on all members (for
 *     example because they have run out of communicators). So all members take back together what they have made.
 */
#include "win.h"

#include <sys/mman.h>

enum { PAGE = 4096 };
#define PAGE_DOWN(x) ((uintptr_t)(x) & ~(uintptr_t)(PAGE - 1))
#define PAGE_UP(x) PAGE_DOWN((uintptr_t)(x) + PAGE - 1)

/* ---- mappings; the lower half's trap places those without MAP_FIXED in the arena ---- */

/* NULL if there is no memory. */
static char *map_anonymous(void *at, size_t bytes) {
    long flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != NULL ? MAP_FIXED : 0);
    long result = mpy_sys(SYS_mmap, at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return mpy_sys_failed(result) ? NULL : (char *)result;
}
static void map_over(char *at, size_t bytes) {
    if (bytes > 0 && map_anonymous(at, bytes) == NULL) MPY_LOWER->svc->die("out of memory for a window", 1);
}

static void unmap(char *at, size_t bytes) {
    if (bytes > 0) mpy_sys(SYS_munmap, at, bytes);
}

/* Maps the pages at `from` a second time at `at`, if they are shared. */
static bool map_again(const char *from, size_t bytes, char *at) {
    return !mpy_sys_failed(mpy_sys(SYS_mremap, from, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at));
}

static bool is_shared(const char *lower) {
    char *probe = map_anonymous(NULL, PAGE);
    if (probe == NULL) return false;
    bool shared = map_again(lower, PAGE, probe);
    unmap(probe, PAGE);
    return shared;
}

/* ---- the real window ---- */

/* MPICH 5.0.2 crashes in MPI_Win_allocate if it has no context id left. MPI_Comm_dup reports that. */
static int check_room(int comm) {
    int probe, rc = MPY_REAL(Comm_dup)(comm, &probe);
    return rc == 0 ? MPY_REAL(Comm_free)(&probe) : rc;
}

static int make_real(mpy_win_t *w, int flavor, int comm, int info, void **base) {
    int *real = &w->obj.real, unit = (int)w->disp_unit;
    bool big = unit != w->disp_unit;
    int rc = flavor == MPI_WIN_FLAVOR_ALLOCATE || flavor == MPI_WIN_FLAVOR_SHARED ? check_room(comm) : 0;
    if (rc != 0) return rc;
    switch (flavor) {
    case MPI_WIN_FLAVOR_CREATE:
        return big ? MPY_REAL(Win_create_c)(w->base, w->size, w->disp_unit, info, comm, real)
                   : MPY_REAL(Win_create)(w->base, w->size, unit, info, comm, real);
    case MPI_WIN_FLAVOR_ALLOCATE:
        return big ? MPY_REAL(Win_allocate_c)(w->size, w->disp_unit, info, comm, base, real)
                   : MPY_REAL(Win_allocate)(w->size, unit, info, comm, base, real);
    case MPI_WIN_FLAVOR_SHARED:
        return big ? MPY_REAL(Win_allocate_shared_c)(w->size, w->disp_unit, info, comm, base, real)
                   : MPY_REAL(Win_allocate_shared)(w->size, unit, info, comm, base, real);
    default:
        return MPY_REAL(Win_create_dynamic)(info, comm, real);
    }
}

/* ---- the place of the memory of an allocated window ---- */

/* pages of all ranks of the node, at their addresses in the real library */
typedef struct segment { uintptr_t lo, hi, own; } segment_t;

static void segment_add(segment_t *s, void *base, MPI_Aint size) {
    uintptr_t lo = PAGE_DOWN(base), hi = PAGE_UP((char *)base + size);
    if (size <= 0 || base == NULL) return;
    if (s->lo == 0 || lo < s->lo) s->lo = lo;
    if (hi > s->hi) s->hi = hi;
}

/* MPICH 4 supports MPI_Win_shared_query only for shared windows. */
static segment_t segment_of(const mpy_win_t *w, void *base) {
    segment_t s = {.own = w->size > 0 ? (uintptr_t)base : 0};
    segment_add(&s, base, w->size);
    for (int r = 0; r < w->team.size; r++) {
        MPI_Aint size, unit;
        void *theirs = NULL;
        if (MPY_REAL(Win_shared_query_c)(w->obj.real, r, &size, &unit, &theirs) == MPI_SUCCESS)
            segment_add(&s, theirs, size);
    }
    return s;
}

static void parts_drop(mpy_win_t *w) {
    mpy_free(w->parts, (size_t)w->team.size * sizeof *w->parts);
    w->parts = NULL;
}

/* The segment's address is known, but it may not be mapped yet. */
static void parts_make(mpy_win_t *w) {
    parts_drop(w);
    w->parts = mpy_alloc((size_t)w->team.size * sizeof *w->parts);
    for (int r = 0; r < w->team.size; r++) {
        MPI_Aint size, unit;
        char *base = NULL;
        if (MPY_REAL(Win_shared_query_c)(w->obj.real, r, &size, &unit, &base) != MPI_SUCCESS || base == NULL ||
            size <= 0)
            continue;
        w->parts[r] = (mpy_part_t){.base = w->segment + (base - w->lower), .size = size, .unit = unit};
    }
}

static bool is_as_before(const mpy_win_t *w, const segment_t *s) {
    return s->hi - s->lo == w->bytes && (w->size == 0 || s->own - s->lo == w->offset);
}

/* What a member can do. All members do the least of these. */
enum { NO_MEMORY, IN_ARENA, AS_SHARED };

static int place(mpy_win_t *w, int comm, int info, void *base) {
    segment_t s = segment_of(w, base);
    bool shares = (s.lo == 0 || is_shared((char *)s.lo)) && (w->memory == 0 || is_as_before(w, &s));
    size_t own = w->size > 0 ? PAGE_UP(w->size) : 0;
    size_t bytes = w->memory != 0 ? 0 : shares ? s.hi - s.lo : own; /* a shared segment is at least as long */
    char *room = bytes > 0 ? map_anonymous(NULL, bytes) : NULL;
    int mine = bytes > 0 && room == NULL ? NO_MEMORY : shares ? AS_SHARED : IN_ARENA, all = NO_MEMORY;
    int rc = MPY_REAL(Allreduce)(&mine, &all, 1, MPI_INT, MPI_MIN, comm);
    if (rc != 0) return rc;
    if (all == AS_SHARED) {
        bool first = w->memory == 0;
        w->memory = MPY_MEMORY_SHARED;
        w->lower = (char *)s.lo;
        if (first) {
            w->bytes = bytes;
            if (w->bytes == 0) return MPI_SUCCESS;
            w->segment = room;
            w->offset = w->size > 0 ? s.own - s.lo : 0;
            w->base = w->size > 0 ? w->segment + w->offset : NULL;
            rc = mpy_win_map(w);
        }
        parts_make(w);
        return rc;
    }
    parts_drop(w);
    MPY_REAL(Win_free)(&w->obj.real);
    if (all == IN_ARENA && w->flavor == MPI_WIN_FLAVOR_SHARED && w->team.size > 1) rc = MPI_ERR_RMA_SHARED;
    if (all == NO_MEMORY) rc = MPI_ERR_NO_MEM;
    size_t kept = rc == 0 ? own : 0;
    if (room != NULL) unmap(room + kept, bytes - kept);
    if (rc != 0) return rc;
    if (w->memory == 0 && own > 0) {
        w->bytes = own;
        w->base = w->segment = room;
    }
    w->memory = MPY_MEMORY_ARENA;
    w->lower = NULL;
    return make_real(w, MPI_WIN_FLAVOR_CREATE, comm, info, NULL);
}

int mpy_win_map(mpy_win_t *w) {
    if (w->memory != MPY_MEMORY_SHARED || w->bytes == 0) return MPI_SUCCESS;
    return map_again(w->lower, w->bytes, w->segment) ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

void mpy_win_keep_own(mpy_win_t *w) {
    if (w->memory != MPY_MEMORY_SHARED || w->bytes == 0) return;
    char *lo = w->segment, *hi = lo + w->bytes, *own = lo + PAGE_DOWN(w->offset),
         *own_end = w->size > 0 ? lo + PAGE_UP(w->offset + (size_t)w->size) : own;
    map_over(lo, (size_t)(own - lo));
    map_over(own_end, (size_t)(hi - own_end));
    for (const volatile char *page = own; page < own_end; page += PAGE) (void)*page; /* invariant 3 */
}

void mpy_win_refill(mpy_win_t *w) {
    if (w->memory == MPY_MEMORY_SHARED && w->size > 0) __builtin_memcpy(w->lower + w->offset, w->base, (size_t)w->size);
}

/* ---- both real windows ---- */

static int make_board(mpy_win_t *w, int comm) {
    void *words;
    MPI_Aint bytes = (MPI_Aint)mpy_board_bytes(w);
    int rc = check_room(comm);
    if (rc == 0) rc = MPY_REAL(Win_allocate)(bytes, sizeof(uint64_t), MPI_INFO_NULL, comm, &words, &w->board);
    if (rc != 0) return rc;
    w->words = words;
    __builtin_memcpy(words, w->saved, mpy_board_bytes(w));
    rc = MPY_REAL(Win_set_errhandler)(w->board, MPI_ERRORS_RETURN);
    if (rc == 0) rc = MPY_REAL(Win_lock_all)(MPI_MODE_NOCHECK, w->board);
    return rc == 0 ? MPY_REAL(Barrier)(comm) : rc; /* no rank may write to it before it is filled */
}

static int make(mpy_win_t *w, int comm, int info) {
    void *base = NULL;
    int *model, set = 0;
    w->obj.real = w->board = MPI_WIN_NULL;
    int rc = make_real(w, w->flavor, comm, info, &base);
    if (rc != 0) return rc;
    if (w->flavor == MPI_WIN_FLAVOR_ALLOCATE || w->flavor == MPI_WIN_FLAVOR_SHARED)
        rc = place(w, comm, info, base);
    else
        w->memory = MPY_MEMORY_PROGRAM;
    if (rc == 0) rc = MPY_REAL(Win_set_errhandler)(w->obj.real, MPI_ERRORS_RETURN);
    if (rc == 0) rc = MPY_REAL(Win_get_attr)(w->obj.real, MPI_WIN_MODEL, &model, &set);
    if (rc == 0) rc = MPY_REAL(Win_lock_all)(MPI_MODE_NOCHECK, w->obj.real);
    if (set) w->model = *model;
    return rc == 0 ? make_board(w, comm) : rc;
}

/* The window may be half made: invariant 4. */
static void unmake(int *real) {
    if (*real == MPI_WIN_NULL) return;
    MPY_REAL(Win_set_errhandler)(*real, MPI_ERRORS_RETURN);
    MPY_REAL(Win_unlock_all)(*real);
    MPY_REAL(Win_free)(real);
}

void mpy_win_unmake(mpy_win_t *w) {
    unmake(&w->board);
    unmake(&w->obj.real);
    parts_drop(w);
    if (w->memory != MPY_MEMORY_PROGRAM) unmap(w->segment, w->bytes);
}

int mpy_win_make(mpy_win_t *w, int comm, int info) {
    int rc = make(w, comm, info);
    if (rc != 0) mpy_win_unmake(w);
    return rc;
}
