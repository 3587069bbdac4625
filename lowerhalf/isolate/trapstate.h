/* trapstate.h - the trap block: the lower half's state about the upper half, which is saved with the upper half.
 *
 * Lives at MPY_TRAP_ADDR, inside the arena, so that it needs no section of its own in an image.
 *
 * Invariants
 *  1. Written only by trap handlers (the arena's part under the lock of arena.c) and, before the program starts or
 *     while it is stopped, by the lower half.
 *  2. Contains no address of the lower half.
 */
#ifndef MANAPY_TRAPSTATE_H
#define MANAPY_TRAPSTATE_H

#include <manapy/boundary.h>
#include <stdint.h>

/* Between two free ranges there is a mapping; the kernel allows 65530 mappings (vm.max_map_count) by default. */
#define MPY_FREE_MAX (1u << 20)
#define MPY_LOW_MAX 256u
#define MPY_SIGNALS 65
#define MPY_IDS_MAX 4096
#define MPY_PTS_MAX 64 /* pseudo-terminals of a rank's tree */
/* reserved real-time signal that halts upper threads; the program can neither block nor catch it */
#define MPY_SIGNAL_STOP MPY_SIGNAL_RESERVED

typedef struct mpy_range { uint64_t lo, hi; } mpy_range_t;

typedef struct mpy_ksigaction { /* the kernel's struct sigaction */
    uint64_t handler;
    uint64_t flags;
    uint64_t restorer;
    uint64_t mask;
} mpy_ksigaction_t;

/* An id, as the program knows it and as the kernel knows it. Or the number of a pseudo-terminal. */
typedef struct mpy_idpair { _Alignas(8) int32_t shown; int32_t real; } mpy_idpair_t;

#define MPY_CLOCKS 3
#define MPY_BOOT_ID 80
typedef struct mpy_clocks { /* clock.c */
    int64_t offset[MPY_CLOCKS];   /* seconds by which the program's clocks are ahead of the machine's */
    int64_t change[MPY_CLOCKS];   /* part of the offset that the last restart added */
    int64_t shown_ns[MPY_CLOCKS]; /* the program's clocks at the checkpoint */
    int64_t real_ns;              /* CLOCK_REALTIME at the checkpoint */
    char boot[MPY_BOOT_ID];       /* boot, and offsets of the time namespace, at the checkpoint */
} mpy_clocks_t;

typedef struct mpy_trapstate {
    /* the program's actions; valid if the kernel's handler is our entry. First member: see trampoline.S */
    mpy_ksigaction_t signals[MPY_SIGNALS];
    int32_t pid;      /* as the program knows it */
    int32_t real_pid; /* as the kernel knows it; differs after a restart. trampoline.S uses both */
    /* the table of free ranges is being changed. If set in a forked child, it stays set (arena.c) */
    uint32_t arena_busy;
    uint32_t nfree;
    uint64_t arena_next; /* bump pointer */
    /* address of a mapping of the program that no image can save: above the arena, or code below it; 0: none */
    uint64_t foreign;
    uint64_t brk_lo, brk_now, brk_max;
    uint64_t stack_lo, stack_hi; /* the main thread's */
    uint64_t arg_lo, arg_hi, env_hi; /* strings of argv, then of the environment, on that stack */
    int32_t low_exec; /* the program is mapped below 4 GiB (linked without -pie) */
    char exe[4096];  /* target of /proc/self/exe for the program */
    uint32_t nids;   /* thread and process ids that differ from the kernel's since the last restart */
    mpy_idpair_t ids[MPY_IDS_MAX];
    mpy_clocks_t clocks;
    uint32_t npts; /* pseudo-terminals whose numbers differ from the kernel's since the last restart: pts.c */
    mpy_idpair_t pts[MPY_PTS_MAX];
    uint32_t lock_future; /* flags of mlockall(2) for future mappings */
    uint32_t below_mpi;   /* this process of a tree is below the MPI process */
    uint32_t fork_advice; /* the program has advised about fork(2) once: a forked process may lack some memory */
    uint32_t nlow;
    mpy_range_t low[MPY_LOW_MAX]; /* what the program has mapped below the arena; ascending, disjoint, not adjacent */
    mpy_range_t *free;     /* ascending, disjoint, not adjacent; MPY_FREE_MAX of them, the arena's first mapping */
    uint64_t largest_free; /* upper limit of the sizes of free ranges; may be too large */
} mpy_trapstate_t;

#define MPY_TRAP ((mpy_trapstate_t *)MPY_TRAP_ADDR)
_Static_assert(sizeof(mpy_trapstate_t) <= MPY_CODE_ADDR - MPY_TRAP_ADDR, "trap block too large");

/* Is this an address of the upper half: in the arena, below 4 GiB if the program is there, or in other memory below the
 * arena that the program has mapped? */
static inline int mpy_in_upper(uint64_t at) {
    if (at >= MPY_ARENA_LO) return at < MPY_ARENA_HI;
    if (!MPY_LOWER->has_program) return 0; /* a restart has not read the trap block yet */
    if (at < MPY_LOW_END && MPY_TRAP->low_exec) return 1;
    for (uint32_t i = 0; i < MPY_TRAP->nlow; i++)
        if (at >= MPY_TRAP->low[i].lo && at < MPY_TRAP->low[i].hi) return 1;
    return 0;
}

#endif
