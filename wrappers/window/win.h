/* win.h - windows. For window/, attr.c and the generated operations (Put, Get, Accumulate ...).
 *
 * Invariants
 *  1. The real window is under one lock_all(NOCHECK) from its creation to its end. The epochs that the program opens
 *     and closes are ours (win_sync.c): what they wait for are words in memory that is saved, never a state of the real
 *     library.
 *  2. Those words lie in a second real window, the board, made with the first one. At a checkpoint each rank copies its
 *     own part to `saved`, and puts it back into the new board after a restart.
 *  3. Memory that the real library allocated is known to the program at an address in the arena only: the same pages,
 *     mapped a second time (win_memory.c). After a restart it is there again.
 *  4. Operations allocate nothing and take no lock; the calls that open and close epochs may. After an operation was
 *     given to the real library, mpy_win_issued says so.
 *  5. An epoch's state changes with in_lower = 1 and w->lock held.
 */
#ifndef MANAPY_WIN_H
#define MANAPY_WIN_H

#include "core/objects.h"
#include "core/request.h"

/* The access epoch. From MPY_ACCESS_FENCE on, operations go to every rank. */
typedef enum {
    MPY_ACCESS_NONE,
    MPY_ACCESS_FENCED, /* a fence has passed; the first operation makes it FENCE, anything else may follow it too */
    MPY_ACCESS_START,  /* to the targets of MPI_Win_start */
    MPY_ACCESS_LOCK,   /* to the targets locked one by one */
    MPY_ACCESS_FENCE,
    MPY_ACCESS_LOCK_ALL,
} mpy_access_t;

enum { /* of one target */
    MPY_TARGET_SHARED = 1,
    MPY_TARGET_EXCLUSIVE = 2,
    MPY_TARGET_NOCHECK = 4, /* locked without asking: the program knows that nobody else does */
    MPY_TARGET_STARTED = 8,
};

/* Words of one rank on the board. Only numbers that grow: nothing is ever lost by counting twice or in another order.
 */
enum {
    MPY_BOARD_USERS,   /* tickets of a fair readers-writer lock: the next one, ... */
    MPY_BOARD_READERS, /* ... the one that may enter if it wants to share, ... */
    MPY_BOARD_WRITERS, /* ... and the one that may enter alone */
    /* then for each rank how often it has posted to us, and behind them how often it has completed to us */
    MPY_BOARD_POSTS,
};

typedef struct mpy_attached { struct mpy_attached *next; void *base; MPI_Aint size; } mpy_attached_t;

/* Where the memory is that others reach. */
typedef enum {
    MPY_MEMORY_PROGRAM = 1, /* the program's own */
    /* ours: an allocated window that shares pages with nobody; the real one is made by MPI_Win_create */
    MPY_MEMORY_ARENA,
    MPY_MEMORY_SHARED,      /* the real library's; the program has a second mapping of the node's segment */
} mpy_memory_t;

/* A rank's part of the node's segment. */
typedef struct mpy_part {
    char *base;       /* in the arena; NULL: not reached by load and store */
    MPI_Aint size, unit;
    uint64_t issued;  /* 1: the real library was given operations on it, and hasn't flushed them all */
} mpy_part_t;

typedef struct mpy_win {
    mpy_object_t obj;
    mpy_link_t all;
    /* members, clock row, name, info, attributes, error handler; its real one is of this window alone. No handle */
    mpy_comm_t team;
    uint64_t cid;        /* identity, as of a communicator */
    uint32_t lock;
    uint32_t access;     /* mpy_access_t */
    bool nocheck;        /* of the lock_all */
    bool exposed;        /* posted, and not yet waited for */
    int32_t locked;      /* targets locked one by one */
    uint8_t *target;     /* MPY_TARGET_*, by rank */
    int32_t *started, *posted; /* ranks in the group of the latest start and post */
    int32_t nstarted, nposted;
    uint64_t *posts_used, *completes_used; /* of each rank: how many of its words on our board are dealt with */
    /* of each rank: epochs of start and of post that were opened to it, so that the trace can name them */
    uint64_t *accesses, *exposures;

    int board;           /* real handle */
    volatile uint64_t *words; /* own part of the board, in the lower half */
    uint64_t *saved;

    int flavor, model;   /* MPICH's values */
    MPI_Aint size, disp_unit;
    void *base;          /* as the program knows it */
    mpy_attached_t *attached; /* oldest first */
    mpy_memory_t memory;
    char *segment;       /* in the arena; pages [segment, segment + bytes) */
    size_t bytes, offset; /* offset: of our part in it */
    char *lower;         /* the same pages as the real library has them (SHARED) */
    mpy_part_t *parts;   /* SHARED, by rank; else NULL. See win_direct.c */
    uint32_t flushes;    /* in a row that the real library was spared */
} mpy_win_t;

static inline mpy_win_t *mpy_win(int handle) { return (mpy_win_t *)mpy_lookup(MPY_WIN, handle); }

/* May an operation go to `rank` now? Everything else about its arguments is checked by the real library. NULL:
 * MPI_ERR_WIN. */
MPY_HIDDEN int mpy_win_access_slow(mpy_win_t *w, int rank);
static inline int mpy_win_access(mpy_win_t *w, int rank) {
    return MPY_LIKELY(w != NULL && w->access >= MPY_ACCESS_FENCE) ? MPI_SUCCESS : mpy_win_access_slow(w, rank);
}
/* ---- without the real library (win_direct.c); upper TLS, in_lower = 0 ---- */
/* A Put or Get whose epoch is right, between `origin` and a rank's part; false: the real library must make it. */
#define MPY_WIN_TARGET MPI_Count n, int datatype, int rank, MPI_Aint disp, MPI_Count target_n, int target_datatype
MPY_HIDDEN bool mpy_win_put(mpy_thread_t *t, mpy_win_t *w, const void *origin, MPY_WIN_TARGET);
MPY_HIDDEN bool mpy_win_get(mpy_thread_t *t, mpy_win_t *w, void *origin, MPY_WIN_TARGET);
/* A flush to `rank`; false: the real library must do it, and does. */
MPY_HIDDEN bool mpy_win_flushed(mpy_thread_t *t, mpy_win_t *w, int rank);
/* The real library has taken an operation; in the lower half. */
static inline void mpy_win_issued(const mpy_win_t *w, int rank) {
    if (w->parts != NULL && rank >= 0 && rank < w->team.size) w->parts[rank].issued = 1;
}

/* Calls the window's error handler (that of MPI_COMM_SELF for NULL); returns the code. */
MPY_HIDDEN int mpy_win_error(mpy_win_t *w_or_null, int code, const char *function);

/* ---- the real windows (win_memory.c); in the lower half, all members together ---- */
/* Makes the real window and the board on `comm` (real handles), with the content of `saved`, and places the memory. */
MPY_HIDDEN int mpy_win_make(mpy_win_t *w, int comm, int info);
MPY_HIDDEN void mpy_win_unmake(mpy_win_t *w);
/* The node's segment at its address in the arena. */
MPY_HIDDEN int mpy_win_map(mpy_win_t *w);
/* Before an image is written: only our own part of the segment is left there. */
MPY_HIDDEN void mpy_win_keep_own(mpy_win_t *w);
/* After a restart: from the arena, where the image was read to, into the real library's memory. */
MPY_HIDDEN void mpy_win_refill(mpy_win_t *w);
/* Whole cache lines: a rank's words share none with another's; and MPICH 4.0 misplaces parts that are not multiples of
 * 16 bytes. */
static inline size_t mpy_board_bytes(const mpy_win_t *w) {
    return ((MPY_BOARD_POSTS + 2 * (size_t)w->team.size) * sizeof(uint64_t) + 63) & ~(size_t)63;
}

/* The window with the smallest identity above `last`, or NULL. */
MPY_HIDDEN mpy_win_t *mpy_win_next(uint64_t last);

#endif
