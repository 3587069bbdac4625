/* win.h - windows. For window/, attr.c and the generated operations (Put, Get, Accumulate ...).
 *
 * Invariants
 *  1. The real window is in one lock_all(NOCHECK) epoch from its creation to its end. The epochs that the program opens
 *     and closes are ours (win_sync.c): they wait for words in memory that is saved, never for a state of the real
 *     library.
 *  2. Those words lie in a second real window, the board, which is made with the first one. At a checkpoint each rank
 *     copies its own part to `saved`. After a restart it writes this into the new board.
 *  3. The program sees memory that the real library allocated only at an address in the arena: the same pages, mapped a
 *     second time (win_memory.c). After a restart the memory is at this address again.
 *  4. Operations allocate nothing and take no lock. Calls that open and close epochs may. mpy_win_issued records that
 *     an operation was given to the real library.
 *  5. An epoch's state changes with in_lower = 1 and w->lock held.
 */
#ifndef MANAPY_WIN_H
#define MANAPY_WIN_H

#include "core/objects.h"
#include "p2p/request.h"

/* The access epoch. From MPY_ACCESS_FENCE on, operations may go to every rank. */
typedef enum {
    MPY_ACCESS_NONE,
    /* a fence has been made; the first operation changes it to FENCE, but any other epoch may follow, too */
    MPY_ACCESS_FENCED,
    MPY_ACCESS_START,  /* to the targets of MPI_Win_start */
    MPY_ACCESS_LOCK,   /* to the targets locked one by one */
    MPY_ACCESS_FENCE,
    MPY_ACCESS_LOCK_ALL,
} mpy_access_t;

enum { /* state of one target */
    MPY_TARGET_SHARED = 1,
    MPY_TARGET_EXCLUSIVE = 2,
    MPY_TARGET_NOCHECK = 4, /* locked without a request: the program knows that no other rank locks it */
    MPY_TARGET_STARTED = 8,
};

/* Words of one rank on the board. They only grow, so counting twice or in another order loses nothing. */
enum {
    MPY_BOARD_USERS,   /* tickets of a fair readers-writer lock: the next one, ... */
    MPY_BOARD_READERS, /* ... the one that may enter if it wants shared access, ... */
    MPY_BOARD_WRITERS, /* ... and the one that may enter exclusively */
    /* then for each rank the number of its posts to us, followed by the number of its completions to us */
    MPY_BOARD_POSTS,
};

typedef struct mpy_attached { struct mpy_attached *next; void *base; MPI_Aint size; } mpy_attached_t;

/* Where the memory of the window lies. */
typedef enum {
    MPY_MEMORY_PROGRAM = 1, /* the program's own */
    /* ours: an allocated window that shares no pages; MPI_Win_create makes the real one */
    MPY_MEMORY_ARENA,
    MPY_MEMORY_SHARED,      /* the real library's; the program has a second mapping of the node's segment */
} mpy_memory_t;

/* A rank's part of the node's segment. */
typedef struct mpy_part {
    char *base;       /* in the arena; NULL: not accessible by load and store */
    MPI_Aint size, unit;
    uint64_t issued;  /* 1: the real library has operations on it that are not flushed yet */
} mpy_part_t;

typedef struct mpy_win {
    mpy_object_t obj;
    mpy_link_t all;
    /* members, clock row, name, info, attributes, error handler. Its real communicator belongs to this window alone. No
     * handle. */
    mpy_comm_t team;
    uint64_t cid;        /* identity, as of a communicator */
    uint32_t lock;
    uint32_t access;     /* mpy_access_t */
    bool nocheck;        /* in the lock_all epoch */
    bool exposed;        /* posted, and the wait is not complete yet */
    int32_t locked;      /* targets locked one by one */
    uint8_t *target;     /* MPY_TARGET_* of each rank */
    int32_t *started, *posted; /* ranks in the group of the latest start and post */
    int32_t nstarted, nposted;
    /* for each rank: number of its words on our board that have been processed */
    uint64_t *posts_used, *completes_used;
    /* for each rank: number of start and of post epochs that were opened to it, so that the trace can name them */
    uint64_t *accesses, *exposures;

    int board;           /* real handle */
    volatile uint64_t *words; /* our own part of the board, in the lower half */
    uint64_t *saved;

    int flavor, model;   /* MPICH's values */
    MPI_Aint size, disp_unit;
    void *base;          /* the address that the program knows */
    mpy_attached_t *attached; /* oldest first */
    mpy_memory_t memory;
    char *segment;       /* in the arena; pages [segment, segment + bytes) */
    size_t bytes, offset; /* offset: where our part begins in it */
    char *lower;         /* address of the same pages in the real library (SHARED) */
    mpy_part_t *parts;   /* SHARED, by rank; else NULL. See win_direct.c */
    uint32_t flushes;    /* consecutive flushes that did not need the real library */
} mpy_win_t;

static inline mpy_win_t *mpy_win(int handle) { return (mpy_win_t *)mpy_lookup(MPY_WIN, handle); }

/* May an operation go to `rank` now? The real library checks everything else about its arguments. NULL: MPI_ERR_WIN. */
MPY_HIDDEN int mpy_win_access_slow(mpy_win_t *w, int rank);
static inline int mpy_win_access(mpy_win_t *w, int rank) {
    return MPY_LIKELY(w != NULL && w->access >= MPY_ACCESS_FENCE) ? MPI_SUCCESS : mpy_win_access_slow(w, rank);
}
/* ---- without the real library (win_direct.c); upper TLS, in_lower = 0 ---- */
/* A Put or Get in a valid epoch, between `origin` and a rank's part. False: the real library must do it. */
#define MPY_WIN_TARGET MPI_Count n, int datatype, int rank, MPI_Aint disp, MPI_Count target_n, int target_datatype
MPY_HIDDEN bool mpy_win_put(mpy_thread_t *t, mpy_win_t *w, const void *origin, MPY_WIN_TARGET);
MPY_HIDDEN bool mpy_win_get(mpy_thread_t *t, mpy_win_t *w, void *origin, MPY_WIN_TARGET);
/* A flush to `rank`, at the target or only here. False: the real library must do it. */
MPY_HIDDEN bool mpy_win_flushed(mpy_thread_t *t, mpy_win_t *w, int rank, bool at_target);
/* The real library has accepted an operation; in the lower half. */
static inline void mpy_win_issued(const mpy_win_t *w, int rank) {
    if (w->parts != NULL && rank >= 0 && rank < w->team.size) w->parts[rank].issued = 1;
}

/* Calls the window's error handler (for NULL that of MPI_COMM_SELF). Returns the code. */
MPY_HIDDEN int mpy_win_error(mpy_win_t *w_or_null, int code, const char *function);

/* ---- the real windows (win_memory.c); in the lower half, all members together ---- */
/* Makes the real window and the board on `comm` (real handles), fills them from `saved`, and places the memory. */
MPY_HIDDEN int mpy_win_make(mpy_win_t *w, int comm, int info);
MPY_HIDDEN void mpy_win_unmake(mpy_win_t *w);
/* Maps the node's segment at its address in the arena. */
MPY_HIDDEN int mpy_win_map(mpy_win_t *w);
/* Before an image is written: removes everything from the segment except our own part. */
MPY_HIDDEN void mpy_win_keep_own(mpy_win_t *w);
/* After a restart: copies from the arena, where the image was loaded, into the real library's memory. */
MPY_HIDDEN void mpy_win_refill(mpy_win_t *w);
/* Whole cache lines, because a rank's words must not share one with another rank's. Besides, MPICH 4.0 misplaces parts
 * whose length is not a multiple of 16 bytes. */
static inline size_t mpy_board_bytes(const mpy_win_t *w) {
    return ((MPY_BOARD_POSTS + 2 * (size_t)w->team.size) * sizeof(uint64_t) + 63) & ~(size_t)63;
}

/* The window with the smallest identity above `last`, or NULL. */
MPY_HIDDEN mpy_win_t *mpy_win_next(uint64_t last);

/* ---- checkpoint and restart (win_rebuild.c) ---- */
MPY_HIDDEN int mpy_win_drain(char *error, uint64_t n);
MPY_HIDDEN int mpy_win_resume(char *error, uint64_t n); /* after a checkpoint without a restart */
/* memory at its old address, epochs opened again */
MPY_HIDDEN int mpy_win_rebuild(char *error, uint64_t n);
MPY_HIDDEN void mpy_win_rebuild_trace(void);

#endif
