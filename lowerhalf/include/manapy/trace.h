/* trace.h - the rings in which MPI calls and RDMA traffic are recorded, and the file of one process that contains them.
 *
 * Written by the wrappers (libmpi.so.12), by the preloaded recorder (libmanapy_trace.so) and by libmanapy_shift.so;
 * read by manapy/trace, while the program runs and after its end. The Python mirror is manapy/trace/capture/format.py;
 * a test compares both.
 *
 * There is one file per process and generation. It is sparse and lies in shared memory, so a checkpoint does not save
 * it:
 *
 *   /dev/shm/manapy-trace-UID/JOB/rank-00000.g0.trace          0600, the folders 0700
 *
 *   0                 mpy_trace_file_t, one page
 *   comms_offset      mpy_trace_comm_t[comms_capacity]         side table: the communicators that records refer to
 *   members_offset    int32_t[members_capacity]                world ranks of communicators that aren't a range
 *   rings_offset      rings_capacity times a ring of ring_stride bytes: mpy_trace_ring_t (one page), then the records
 *
 * Invariants
 *  1. A ring has one producer: one thread. It never waits and never fails; it overwrites its oldest record.
 *  2. A record is published at the ENTRY of its call, so that it also shows a call that never returns: seq 0, then the
 *     fields, then seq with release. At the exit only `exit` is stored, and what was not known before (peer, tag and
 *     bytes of a receive): fields first, `exit` with release. exit = 0: the call is open.
 *  3. A reader copies a record and reads seq before and after. Both must be the seq that belongs to the place (place =
 *     (seq - 1) mod capacity). Otherwise the record was being overwritten and is lost. The reader counts it, and does
 *     not conclude from a gap that a call is missing.
 *  4. `head` of a ring is the seq of its newest record. It is stored after the record: a process killed in between
 *     loses that one record. After a restart the rings of the new generation continue after `past`; records of earlier
 *     generations after it were taken back. A call that was open in the checkpoint follows it, and is open again.
 *  5. An entry of the side table never changes once `comms` covers it. Records contain its index. Its identity, over
 *     all ranks and generations, is cid (wrappers/clock/clock.c).
 *  6. Times are ticks of the time-stamp counter (rdtsc). ticks_per_second and the clock samples convert them to seconds
 *     and to other hosts' clocks.
 *  7. A change of layout or of the meaning of a field changes MPY_TRACE_VERSION; another version is refused.
 */
#ifndef MANAPY_TRACE_H
#define MANAPY_TRACE_H

#include <stdint.h>

#define MPY_TRACE_MAGIC   0x314543415254594Dul /* "MYTRACE1" */
#define MPY_TRACE_VERSION 3u

#define MPY_TRACE_CAPACITY 65536u /* records per ring, a power of two: 4 MiB */
#define MPY_TRACE_RINGS    64u    /* number of recorded threads; calls of others are counted in `unrecorded` */
#define MPY_TRACE_COMMS    16384u
#define MPY_TRACE_MEMBERS  (1u << 20)
#define MPY_TRACE_SAMPLES  40u    /* the newest clock samples are kept */

/* The function called. One name for all forms of a function (MPI_Isend_c: SEND, with a flag). Numbers are never
 * reused. */
typedef enum {
    MPY_OP_NONE = 0,
    /* point-to-point: peer, tag, bytes */
    MPY_OP_SEND = 1,
    MPY_OP_BSEND = 2,
    MPY_OP_SSEND = 3,
    MPY_OP_RSEND = 4,
    MPY_OP_RECV = 5,
    MPY_OP_MRECV = 6,
    MPY_OP_PROBE = 7,
    MPY_OP_MPROBE = 8,
    /* completion: `request` is the request that is waited for */
    MPY_OP_WAIT = 16,    /* one request: Wait */
    MPY_OP_WAITALL = 17, /* one record for each request, all but the last with MORE */
    MPY_OP_WAITANY = 18, /* the same; also Waitsome */
    MPY_OP_TEST = 19,    /* recorded when it has completed something; failing tests count in `polls` */
    /* Start of a persistent request. Communicator, peer, tag and bytes are those of the request. For a collective the
     * tag is the number of the start, from 1, and context is SEQ of the call that made the request. Flags:
     * MPY_TRACE_STARTS */
    MPY_OP_START = 20,
    MPY_OP_CANCEL = 21,
    MPY_OP_REQUEST_FREE = 22,
    /* collectives: peer is the root or NONE, context is SEQ of the communicator's collective clock */
    MPY_OP_BARRIER = 32,
    MPY_OP_BCAST = 33,
    MPY_OP_REDUCE = 34,
    MPY_OP_ALLREDUCE = 35,
    MPY_OP_GATHER = 36,
    MPY_OP_SCATTER = 37,
    MPY_OP_ALLGATHER = 38,
    MPY_OP_ALLTOALL = 39,
    MPY_OP_REDUCE_SCATTER = 40,
    MPY_OP_SCAN = 41,
    MPY_OP_EXSCAN = 42,
    MPY_OP_NEIGHBOR = 43,
    MPY_OP_COMM_CREATE = 44, /* dup, split, create, free ...: everything that is collective on the parent */
    MPY_OP_WIN_CREATE = 45,
    MPY_OP_FILE = 46,
    MPY_OP_INIT = 47,
    MPY_OP_FINALIZE = 48,
    /* one-sided synchronisation: peer is the target or NONE. POST, START, COMPLETE, WAIT: one record for each rank of
     * the group, all but the last with MORE; context is the number of such epochs (of access: START, COMPLETE; of
     * exposure: POST, WAIT) that this rank has opened to that rank on this window, from 1. LOCK: tag is a
     * mpy_trace_lock_t */
    MPY_OP_WIN_FENCE = 64,
    MPY_OP_WIN_LOCK = 65,
    MPY_OP_WIN_UNLOCK = 66,
    MPY_OP_WIN_POST = 67,
    MPY_OP_WIN_START = 68,
    MPY_OP_WIN_COMPLETE = 69,
    MPY_OP_WIN_WAIT = 70,
    MPY_OP_WIN_FLUSH = 71,
    /* not calls: information from the program about itself (manapy.trace.mark) and its recording, and from RDMA about a
     * queue pair */
    MPY_OP_MARK = 96, /* context: the new phase mark */
    /* comm: queue pair number; request: number of work requests posted so far; context: completed so far; bytes: of
     * those posted; peer: the remote queue pair's number; tag: the device, as an index that the producer names in its
     * entries of the side table */
    MPY_OP_RDMA_QP = 97,
    /* From its entry to its exit nothing else is recorded for this thread, although it may call MPI (MPI_Pcontrol).
     * While it is open it is the ring's newest record. */
    MPY_OP_PAUSE = 98,
    /* A call has failed, and its error handler ends the job. tag: the error class, or 0 if it was called before
     * MPI_Init or after MPI_Finalize. bytes, request, context: the function's name, 24 characters; the next record
     * (MORE) contains the rest */
    MPY_OP_REFUSED = 99,
} mpy_trace_op_t;

enum {
    MPY_TRACE_NONBLOCKING = 1 << 0, /* the call starts an operation; request is its serial */
    MPY_TRACE_PERSISTENT = 1 << 1,  /* the call creates a request that can be started */
    /* the next record of this ring belongs to the same call (Waitall; Sendrecv is a SEND with MORE and a RECV) */
    MPY_TRACE_MORE = 1 << 2,
    /* the receive did not name a source or a tag; after its exit, peer and tag are those of the message */
    MPY_TRACE_WILDCARD = 1 << 3,
    MPY_TRACE_FAILED = 1 << 4,      /* returned an error */
    /* a checkpoint or a restart happened during the call, so its duration is meaningless */
    MPY_TRACE_STOPPED = 1 << 5,
    MPY_TRACE_CUT = 1 << 6,         /* there were more requests than records */
    MPY_TRACE_PENDING = 1 << 7,     /* after the exit of a WAITANY: this one of its requests was not completed */
    /* not a flag: in a START, the bits from this one on contain what it starts (mpy_trace_op_t, 0: unknown) */
    MPY_TRACE_STARTS = 8,
};

typedef enum mpy_trace_lock { /* how a lock was asked for; 0: not recorded */
    MPY_TRACE_LOCK_EXCLUSIVE = 1,
    MPY_TRACE_LOCK_SHARED = 2,
    MPY_TRACE_LOCK_UNCHECKED = 3, /* MPI_MODE_NOCHECK: it waits for no other lock, and no other lock for it */
} mpy_trace_lock_t;

/* Values of `peer` (ANY also of `tag`). Other peers are ranks in the communicator (of the remote group in an
 * inter-communicator). */
enum { MPY_TRACE_NO_PEER = -32768, MPY_TRACE_ANY = -32767, MPY_TRACE_NULL = -32766 };
#define MPY_TRACE_NO_COMM 0xffffffffu

typedef struct mpy_trace_record { /* one cache line */
    uint64_t seq;     /* 1 for the first record of the thread; 0 while it is written */
    uint64_t enter;   /* ticks */
    uint64_t exit;    /* ticks; 0: open */
    /* Bytes that this rank sends: a send, its part of a collective. For a receive: after its exit the bytes received;
     * before (and in a Waitall without statuses) the size of the buffer. */
    uint64_t bytes;
    uint32_t comm;    /* index into the side table */
    uint16_t op;      /* mpy_trace_op_t */
    uint16_t flags;
    int32_t peer;
    int32_t tag;
    uint64_t request; /* serial, unique in the process; 0: none */
    /* SEQ of the collective clock after this call was counted. For other calls, unless stated otherwise above, the
     * thread's phase mark */
    uint64_t context;
} mpy_trace_record_t;

typedef struct mpy_trace_comm {
    uint64_t cid;
    uint64_t ggid;
    uint32_t members;   /* number of members */
    uint32_t remote;    /* number of members, at the end, that are the other group of an inter-communicator */
    int32_t first;      /* world rank of the first member; if stride isn't 0, member i is first + i * stride */
    int32_t stride;
    /* if stride is 0: index of the first member in the pool; UINT64_MAX: the pool is full, members are unknown */
    uint64_t place;
    char name[24];      /* name (MPI_Comm_set_name) when it was entered here, truncated */
} mpy_trace_comm_t;

typedef struct mpy_trace_sample { /* of this host's clocks, read together; or of another host's */
    uint64_t ticks;
    int64_t realtime;    /* ns since 1970 */
    int64_t monotonic;   /* ns */
    int64_t offset;      /* ns to add to this host's realtime to get rank 0's; 0 on rank 0's host */
    uint64_t uncertainty; /* of offset, in ns; UINT64_MAX: unknown */
} mpy_trace_sample_t;

typedef enum {
    MPY_TRACE_RUNNING = 0,
    MPY_TRACE_FINALIZED = 1,
    MPY_TRACE_SAVED = 2 /* the process continues in the next generation */
} mpy_trace_end_t;

typedef struct mpy_trace_file {
    uint64_t magic;
    uint32_t version;
    uint32_t record_size;
    uint32_t capacity, rings_capacity, comms_capacity, members_capacity;
    uint64_t comms_offset, members_offset, rings_offset, ring_stride;
    int32_t rank, size;
    uint32_t generation;      /* 0 at the start, +1 with every restart */
    int32_t pid;              /* as in /proc on that host */
    uint64_t pid_start;       /* start time in /proc/PID/stat: tells whether it is still the same process */
    uint64_t ticks_per_second;
    volatile uint32_t rings;  /* rings in use are below this index */
    volatile uint32_t comms;
    volatile uint32_t members;
    volatile uint32_t end;    /* mpy_trace_end_t */
    volatile uint64_t unrecorded; /* calls of threads without a ring */
    uint32_t invariant_ticks; /* the counter has the same rate on all processors of the host */
    volatile uint32_t samples; /* number taken so far; sample i is at i mod MPY_TRACE_SAMPLES */
    char host[64];
    char job[64];
    char producer[32];        /* "manapy-launch", "preload", "shift" */
    char program[256];
    mpy_trace_sample_t sample[MPY_TRACE_SAMPLES];
    /* for each ring, seq of the last valid record of earlier generations; 0 at the start */
    uint64_t past[MPY_TRACE_RINGS];
    /* inode of /proc/self/ns/pid of the process: `pid` is its number there only; 0: not known */
    uint64_t pid_space;
} mpy_trace_file_t;

typedef struct mpy_trace_ring { /* the records follow, one page later */
    volatile uint64_t head;
    uint64_t mark;            /* phase mark of the thread */
    uint64_t polls;           /* failing Test, Iprobe ... so far */
    uint64_t polled;          /* ticks of the last failing test */
    uint64_t polled_request;  /* request that it tested */
    int32_t tid;              /* as in /proc */
    uint32_t used;            /* 1: its thread is running */
    uint64_t serials;         /* a request's serial is this + the seq of the record that has created it */
    uint64_t first;           /* seq of the first record here: past + 1; 0: never used */
} mpy_trace_ring_t;

_Static_assert(sizeof(mpy_trace_record_t) == 64, "a record is one cache line");
_Static_assert(sizeof(mpy_trace_comm_t) == 64, "");
_Static_assert(sizeof(mpy_trace_file_t) <= 4096, "the head is one page");

#endif
