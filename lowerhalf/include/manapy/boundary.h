/* boundary.h - the only interface between the two halves.
 *
 * The lower half (manapy-launch, libc and MPI of its own) and the upper half (the program with its own ld.so, libc and
 * our libmpi.so.12) share one address space but no symbol. They meet in two blocks at fixed addresses at the bottom of
 * the arena:
 *
 *   MPY_LOWER_ADDR  the lower block: written by the lower half at every start, never saved. Function pointers into the
 *                   lower half, the phase word, the rank.
 *   MPY_UPPER_ADDR  the upper block: saved with the program. Threads, clock rows and hooks, written by the wrapper
 *                   runtime (and, where stated, by the control thread).
 *
 * Address space of one rank:
 *
 *   0x0000_0040_0000  programs linked without -pie (saved)
 *   0x0001_0000_0000  memory at addresses that the program chose (saved)
 *   0x2000_0000_0000  lower block | upper block | trap block | trampolines and proxy vDSO     (MPY_*_ADDR below)
 *   0x2000_1000_0000  executable, its ld.so, libraries, heap, stacks: all the upper half maps (saved)
 *   0x2100_0000_0000  end of the arena
 *   0x5555_...        manapy-launch (PIE)            \
 *   0x7f..            its libc, the real MPI, UCX ... > the lower half, never saved
 *   0x7ff.            its stack, the kernel's vDSO   /
 *
 * Invariants
 *  1. Everything that the upper half maps lies in the arena or below it. Of the lower half only the blocks named here
 *     lie in the arena. Below it the trap block has a list of what is the upper half's.
 *  2. A thread is "in the lower half" from the store t->in_lower = 1 to the store t->in_lower = 0. A snapshot is taken
 *     only when no upper thread is.
 *  3. After storing in_lower = 1 a wrapper reads lower->phase again. The control thread stores phase, executes
 *     membarrier(PRIVATE_EXPEDITED) and then reads in_lower. So one of them sees the other (asymmetric Dekker).
 *  4. Code that runs between the two FS switches touches no thread-local variable of the upper half.
 *  5. A thread that forbids checkpoints adds 1 to upper->disabled and then reads lower->phase. If that is FROZEN, it
 *     subtracts the 1 again and waits for another phase. In the other phases it calls notify(). The control thread
 *     stores FROZEN, executes the same membarrier and then reads disabled: a rank is frozen only with 0. (While the
 *     rank is frozen, the value has no meaning: a thread may be trying.)
 *  6. In the wrappers' own code a thread is halted only in a system call. Between two other instructions it may hold a
 *     value that a restart replaces (a ring's address, a handle of the lower half), although it is not in the lower
 *     half.
 *  7. Layouts here change only together with MPY_BOUNDARY_VERSION. An image of another version is refused.
 */
#ifndef MANAPY_BOUNDARY_H
#define MANAPY_BOUNDARY_H

#include <manapy/trace.h>
#include <stdint.h>

#define MPY_BOUNDARY_MAGIC   0x59444E554F42594Dul /* "MYBOUNDY" */
#define MPY_BOUNDARY_VERSION 14u

#define MPY_LOW_END    0x100000000ul /* programs that are linked to fixed addresses are below */
#define MPY_ARENA_LO   0x200000000000ul
#define MPY_ARENA_HI   0x210000000000ul
#define MPY_LOWER_ADDR 0x200000000000ul /* mpy_lower_t, 64 KiB */
#define MPY_UPPER_ADDR 0x200000010000ul /* mpy_upper_t, 448 KiB */
#define MPY_TRAP_ADDR  0x200000080000ul /* trap state of the lower half that is saved with the program, 512 KiB */
#define MPY_CODE_ADDR  0x200000100000ul /* trampolines, signal restorer: code at a fixed address, 64 KiB */
#define MPY_VDSO_ADDR  0x200000110000ul /* proxy vDSO image and its jump table, 64 KiB */
#define MPY_SERVICE_STACK_ADDR 0x200000200000ul /* stack on which the main thread runs hooks, 1 MiB; never saved */
#define MPY_SERVICE_STACK_SIZE 0x100000ul
#define MPY_HEAP_LO    0x200010000000ul /* first address that the arena allocator uses */

/* Auxiliary-vector entry that tells the wrapper library that it runs above a lower half (value:
 * MPY_LOWER_ADDR). */
#define MPY_AT_BOUNDARY 0x6d616e61

/* A child process that has called MPI, which only the rank may do, queues this value to the rank's process. So a rank
 * that was only a wrapper around the child (timeout, a script) does not end with exit code 0. */
#define MPY_SIGNAL_RESERVED 62
#define MPY_VALUE_MISLED 0x6d69736c
/* The first process of a rank's tree queues this value to a forked child, which joins the tree (lowerhalf/tree). */
#define MPY_VALUE_JOIN 0x6a6f696e

/* How a checkpoint interrupts collectives (manapy-launch --protocol). */
typedef enum {
    MPY_PROTOCOL_CC = 0,  /* the collective clock */
    /* two-phase commit: a barrier before every blocking collective (comparator; wrappers/collective/twophase.c) */
    MPY_PROTOCOL_2PC = 1,
} mpy_protocol_t;

#define MPY_MPI_DATA    32   /* capacity of the table of data symbols */
#define MPY_MPI_SLOTS   2048 /* capacity of the MPI function table; the generated count is smaller */
#define MPY_THREADS_MAX 1024
#define MPY_ROWS_MAX    65536

/* Phase of the checkpoint protocol on this rank (same names in manapy/clock and `manapy status`). */
typedef enum {
    MPY_PHASE_NONE = 0,   /* no checkpoint pending: the fast path */
    MPY_PHASE_INTENT = 1, /* requested; targets unknown yet: every collective stops at its entry */
    MPY_PHASE_RUN = 2,    /* targets known: run up to the targets */
    MPY_PHASE_FROZEN = 3, /* every MPI call stops at its entry; blocked calls have left the lower half */
} mpy_phase_t;

/* State of one upper thread for the protocol. The thread itself writes it, under clock.lock, only while a checkpoint is
 * pending. */
typedef enum {
    MPY_STATE_RUNNING = 0,       /* computing, or in an MPI call that does not block */
    MPY_STATE_BLOCKED_P2P = 1,   /* waits for peers (mode ALL or ANY) */
    MPY_STATE_IN_COLLECTIVE = 2, /* inside a blocking collective of state_cid */
    MPY_STATE_PARKED = 3,        /* stopped at the entry of a collective of state_cid */
    MPY_STATE_FINISHED = 4,      /* MPI_Finalize has returned */
} mpy_state_t;

enum { MPY_WAIT_ALL = 0, MPY_WAIT_ANY = 1 };

/* peers listed when blocked; if there are more, block_peers_all = 1 means "every member of state_cid" */
#define MPY_PEERS_MAX 64

/* One upper thread that has called MPI. Slot 0 is the thread that called MPI_Init (the only one allowed to run hooks).
 * The wrapper keeps a pointer to its slot in a thread-local variable. */
typedef struct mpy_thread {
    volatile uint32_t in_lower; /* invariants 2 and 3 */
    uint32_t used;
    int32_t tid;        /* the program's (virtual) id; 0 in slot 0: its thread has ended */
    uint32_t state;     /* mpy_state_t */
    uint64_t upper_fs;  /* FS base of this thread in the upper half */
    uint64_t lower_fs;  /* FS base lent by the lower half; 0: none yet. The restore clears it in every slot */
    /* Ring in which its calls are recorded now; NULL: none. thread_bind sets it; the restore clears it like
     * lower_fs. */
    mpy_trace_ring_t *trace;
    /* the same ring, also while recording is paused (MPI_Pcontrol): calls that are open then end there */
    mpy_trace_ring_t *ring;
    uint64_t state_cid; /* communicator of IN_COLLECTIVE / PARKED / BLOCKED_P2P */
    uint32_t block_mode;
    uint32_t nblock;
    uint32_t block_peers_all;
    int32_t block_peers[MPY_PEERS_MAX]; /* world ranks */
    uint32_t pad[3];
} mpy_thread_t;

/* One communicator in the collective clock (the design's SEQ and TARGET). `members` points to world ranks in the order
 * of the communicator's ranks, in upper-half memory. An inter-communicator counts on the union of both groups,
 * ascending. */
/* value of `handle`: the communicator was freed here, perhaps not by all members, or while a checkpoint was pending */
#define MPY_ROW_FREED 0xffffffffu
typedef struct mpy_clock_row {
    /* identity that all members agree on: child_identity(parent cid, parent SEQ, smallest world rank); 0: free row */
    uint64_t cid;
    uint64_t ggid; /* FNV-1a 64 over the sorted world ranks as little-endian uint32 */
    volatile uint64_t seq;    /* collective calls initiated here; plain increment by the wrapper */
    volatile uint64_t target; /* valid while a checkpoint is pending */
    uint32_t nmembers;
    /* the program's (virtual) handle, for messages to users; 0: under construction; or MPY_ROW_FREED */
    uint32_t handle;
    const int32_t *members;
    const char *name; /* MPI_Comm_set_name, or NULL */
    uint64_t reported; /* unused: the control thread keeps its own copy (clockside.c) */
} mpy_clock_row_t;

typedef struct mpy_clock {
    uint32_t lock;        /* futex mutex (0 free, 1 held, 2 held with waiters); slow path only */
    uint32_t version;     /* +1 with every change of a thread's state or of a row while pending */
    volatile uint32_t needed; /* control thread: between ADVANCE and WITHDRAW */
    volatile uint32_t wake;   /* futex on which parked threads sleep; the control thread bumps it and wakes them */
    /* a call that was counted in this epoch has been taken back; the control thread tells the coordinator and clears
     * this */
    uint32_t retracted;
    uint32_t nrows;           /* rows in use are below this index; a freed row has cid 0 */
    uint32_t protocol;        /* mpy_protocol_t of the launch; a restart keeps it */
    mpy_clock_row_t *rows;    /* MPY_ROWS_MAX of them, mapped without reservation */
} mpy_clock_t;

/* Functions of the wrapper runtime for the lower half. Hooks run on the service stack, on the main thread, with the
 * upper TLS, while every other upper thread is stopped at an arbitrary instruction. So they call no malloc or stdio and
 * take no lock of the upper libc. They return 0, or fill `error` with one line and return -1. */
typedef struct mpy_hooks {
    int (*drain)(char *error, uint64_t n);   /* all ranks call it together at a safe state: empties the network */
    /* after a restart, when the real MPI is initialized: makes every MPI object again */
    int (*rebuild)(char *error, uint64_t n);
    int (*resume)(char *error, uint64_t n);  /* after a checkpoint without restart; may be NULL */
} mpy_hooks_t;

/* A ring at the time when the image was written (lowerhalf/trace/recorder.c). Its numbers continue after a restart, and
 * calls that were open then are open there, too. */
#define MPY_TRACE_OPEN_MAX 8
typedef struct mpy_trace_saved {
    uint64_t head, mark;
    uint32_t thread; /* index of its slot, + 1; 0: its thread has ended */
    uint32_t open;   /* number of records: the newest ones */
    mpy_trace_record_t records[MPY_TRACE_OPEN_MAX];
    uint64_t cids[MPY_TRACE_OPEN_MAX]; /* of their communicators; 0: none */
} mpy_trace_saved_t;

/* Callbacks of the program at checkpoints. wrappers/callbacks.c calls them on the program's main thread;
 * lowerhalf/control/callbacks.c asks for that. The main thread changes `state` from ASKED to BEFORE, or the lower half
 * changes it back to NONE, by compare and swap; all other changes are the main thread's. Sleepers wait on `state` (the
 * lower half) and on `end` (the main thread). */
typedef enum {
    MPY_CALL_NONE = 0,   /* no callback runs or is to run */
    MPY_CALL_ASKED = 1,  /* those of before_checkpoint are to run at the next safe point */
    MPY_CALL_BEFORE = 2, /* they run */
    MPY_CALL_HELD = 3,   /* they have run; the main thread waits for the end of the checkpoint */
    MPY_CALL_AFTER = 4,  /* those of after_checkpoint or after_restart run */
} mpy_call_state_t;
typedef enum { MPY_CALL_OPEN = 0, MPY_CALL_CONTINUED = 1, MPY_CALL_RESTARTED = 2 } mpy_call_end_t;
typedef struct mpy_callbacks {
    volatile uint32_t registered; /* how many there are */
    volatile uint32_t state;      /* mpy_call_state_t */
    volatile uint32_t end;        /* mpy_call_end_t: how the checkpoint has ended (lower half) */
    volatile uint32_t refused;    /* one of before_checkpoint has refused it: `reason` says why */
    uint32_t expected;            /* there is something to call in this checkpoint (lower half) */
    volatile uint32_t gpu;        /* what was on the program's GPUs is in its memory meanwhile (wrappers/cuda.c) */
    uint32_t limit_ms;            /* how long the lower half waits until the main thread is held */
    int32_t knock;                /* a signal that brings the main thread to a safe point; 0: none */
    void (*at_call)(void);        /* the calling thread is about to wait in a call of MPI: a safe point */
    char running[160];            /* the callback that runs, for messages */
    char reason[512];             /* one line */
} mpy_callbacks_t;

typedef struct mpy_upper {
    uint64_t magic;
    uint32_t version;
    uint32_t mpi_initialized;  /* the program's MPI_Init has returned */
    uint32_t mpi_finalized;
    /* thread level that the program was given, which may differ from what it requested; a restart requests it
     * (MPI values: 0..3) */
    int32_t mpi_thread_required;
    volatile uint32_t disabled;  /* threads of the program that forbid checkpoints (wrappers/dmtcp.c); invariant 5 */
    /* Checkpoints that were published and after which this process continued. Those that it was restarted from count in
     * lower->generation. */
    uint32_t checkpoints;
    mpy_hooks_t hooks;
    uint64_t code_begin, code_end; /* of the wrappers; invariant 6 */
    /* while not empty, no checkpoint is possible; one line with the reason (wrappers, with clock.lock) */
    char obstacle[256];
    mpy_clock_t clock;
    mpy_thread_t threads[MPY_THREADS_MAX];
    mpy_trace_saved_t trace[MPY_TRACE_RINGS];
    mpy_callbacks_t callbacks;
} mpy_upper_t;

/* Services of the lower half. Those marked [L] are called between mpy_cross_in() and mpy_cross_out() (lower TLS), the
 * others on the upper TLS from any context. */
typedef struct mpy_services {
    /* Lends a lower TLS to a thread that calls MPI for the first time (also after a restart): sets t->lower_fs. */
    void (*thread_bind)(mpy_thread_t *t);
    /* The thread ends: returns the TLS. */
    void (*thread_unbind)(mpy_thread_t *t);
    /* [L] Loads the real MPI and fills mpi[] (idempotent). `env` is the program's environ, which the library must see.
     * On failure prints one line and ends the job. */
    void (*mpi_load)(char **env);
    /* The protocol state changed (clock.version was bumped under clock.lock): wakes the control thread. */
    void (*notify)(void);
    /* Prints one line to the user on stderr, prefixed with "manapy: rank N: ". */
    void (*say)(const char *line);
    /* The same, and ends the job with exit code `code` (through the real MPI_Abort if it is up). Does not return. */
    void (*die)(const char *line, int code);
    /* Asks the coordinator for a checkpoint. Returns at once with a ticket > 0, or -1 without a coordinator. */
    int64_t (*request_checkpoint)(void);
    /* The last answer. t > 0: tickets up to t are published. t < 0: the checkpoint of ticket -t failed. 0: none yet. */
    int64_t (*checkpoint_done)(void);
    /* Later checkpoints go to a directory: `name` is the program's name for it, `path` is absolute. One caller at a
     * time. */
    void (*set_checkpoint_dir)(const char *name, const char *path);
    /* Enters a communicator into the trace: mpy_trace_comm_add of lowerhalf/trace/file.h. Returns MPY_TRACE_NO_COMM
     * without a trace. */
    uint32_t (*trace_comm)(uint64_t cid, uint64_t ggid, const int32_t *members, uint32_t n, uint32_t remote,
                           const char *name);
    /* The calling thread begins phase `mark` (manapy.trace.mark). Returns whether this is recorded. */
    int (*trace_mark)(uint64_t mark);
    /* [L] MPI_Finalize is about to return. */
    void (*trace_end)(void);
    /* [L] Bytes that this process's TCP connections have moved so far. Only the difference of two results is
     * meaningful. */
    uint64_t (*tcp_bytes)(void);
    /* [L] Last in a drain, on all ranks: the lower half looks at TCP connections between them. comm: a real
     * communicator of all ranks that nothing else uses now. */
    int (*meet)(int comm, char *error, uint64_t n);
} mpy_services_t;

typedef struct mpy_lower {
    uint64_t magic;
    uint32_t version;
    uint32_t generation; /* 0 at launch, +1 at every restart */
    volatile uint32_t phase; /* mpy_phase_t */
    int32_t rank; /* world rank, as assigned by the process manager */
    int32_t size;
    /* The coordinator is lost: no checkpoint is possible any more. hooks.drain returns, because other ranks may never
     * arrive. */
    volatile uint32_t abandoned;
    uint64_t table_hash; /* of the generated function table; both halves must agree */
    const mpy_services_t *svc;
    int64_t tls_upper_fs; /* offset from a lower FS base of the word that holds the upper FS base (for signal entry) */
    /* The signal entry calls this on the program's TLS. Returns 1 if no thread may be halted above the interrupted code
     * (stop.c). Then it stores a pointer to a mark at `mark`. The first 32 bits of the mark must be cleared when the
     * handler has returned. */
    int (*signal_above)(const void *ucontext, uint64_t mark);
    uint32_t protocol;    /* mpy_protocol_t; in the same cache line as phase, because each collective reads both */
    /* a checkpoint waits for upper->disabled to become 0: the thread that makes it 0 calls notify() */
    volatile uint32_t allow_awaited;
    uint32_t singleton;   /* started without a process manager */
    uint32_t drain_seconds; /* a drain gives up after so many seconds in which nothing has moved */
    /* The checkpoint has been given up while a step of it still runs here: the step may end early (control thread). */
    volatile uint32_t cancelled;
    uint32_t heavy_yield; /* MPICH's option of this name is on: loops that wait sleep, and don't only yield */
    uint32_t has_program; /* the program's memory is there: the upper block and the trap block (lower half) */
    char job_dir[1024];
    char checkpoint[1024]; /* path of the checkpoint from which this process was restarted, or "" */
    /* Directory for checkpoints, under the name that the program gave it. If the program has given none: job_dir, or
     * the directory of the checkpoint above. */
    char checkpoint_dir[1024];
    /* values of the real library's data symbols (MPI_UNWEIGHTED ...), in the table's order */
    void *mpi_data[MPY_MPI_DATA];
    void *mpi[MPY_MPI_SLOTS]; /* real functions in the order of the generated table; never NULL after mpi_load */
} mpy_lower_t;

#define MPY_LOWER ((mpy_lower_t *)MPY_LOWER_ADDR)
#define MPY_UPPER ((mpy_upper_t *)MPY_UPPER_ADDR)

/* The program is between MPI_Init and MPI_Finalize. */
static inline int mpy_mpi_is_up(const mpy_upper_t *upper) { return upper->mpi_initialized && !upper->mpi_finalized; }

_Static_assert(sizeof(mpy_lower_t) <= MPY_UPPER_ADDR - MPY_LOWER_ADDR, "lower block too large");
_Static_assert(sizeof(mpy_upper_t) <= MPY_TRAP_ADDR - MPY_UPPER_ADDR, "upper block too large");

#endif
