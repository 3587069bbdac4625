/* file.h - MPI files. For file/ and generated.c.
 *
 * MPI_File is a pointer in MPICH's ABI: the program gets the address of our record, which lies in a table, so that a
 * garbage or closed handle is recognised by arithmetic. Both halves' handles have the C type MPI_File; `real` is the
 * lower half's.
 *
 * Invariants
 *  1. A record changes only with in_lower = 1 or inside a hook (invariant 1 of lock.h).
 *  2. A file counts on a row of its own; MPI_File_open counts on the communicator's. All members leave MPI_File_close
 *     together.
 *  3. What the program has set (view, hints, atomicity) is in the record; what moves with every access (file pointers,
 *     size) only the library knows, and the drain asks for it.
 *  4. The real file is never opened with MPI_MODE_SEQUENTIAL, under which its shared file pointer could be neither
 *     asked for nor set. What that mode forbids is refused here.
 *  5. A split collective access is done whole by its first half, whose status waits in the record. So no real access is
 *     ever in progress at a checkpoint (nonblocking ones are requests, which the drain completes).
 */
#ifndef MANAPY_FILE_H
#define MANAPY_FILE_H

#include "core/objects.h"
#include "tools/trace.h"

enum { MPY_PATH_SIZE = 4096 };

typedef struct mpy_view_type { /* one of the two */
    mpy_datatype_t *derived;
    int predefined; /* standard ABI value */
} mpy_view_type_t;

typedef struct mpy_file {
    MPI_File real;
    bool open;       /* else the slot is free */
    bool sequential; /* MPI_MODE_SEQUENTIAL: see invariant 4 */
    bool shared;     /* this process has used the shared file pointer */
    bool split;      /* between the halves of a split collective access ... */
    bool atomic, external32;
    MPI_Status split_status; /* ... whose outcome is this */
    /* a duplicate of the communicator it was opened on, of ours: same members in the same order */
    int real_comm;
    int size;
    int32_t *world;
    uint32_t row;
    uint32_t trace; /* as of a communicator */
    uint64_t cid;
    int errhandler;  /* virtual handle, like info */
    int info;        /* all hints the program has given, or MPI_INFO_NULL */
    int amode;       /* as the program gave it */
    char *name;      /* likewise */
    char *directory; /* where the program was then: the name may be relative */
    MPI_Offset disp;
    mpy_view_type_t etype, filetype;
    MPI_Offset position, shared_position, bytes; /* as of the latest drain */
    void *content; /* from a drain to the end of the checkpoint or restart, in the first member: see file_rebuild.c */
    uint32_t lock;                      /* of the queue of nonblocking collective accesses (file_access.c) */
    struct mpy_request *first, *last;
    struct mpy_file *next; /* free slot */
} mpy_file_t;

extern MPY_HIDDEN mpy_file_t *mpy_files;
extern MPY_HIDDEN uint32_t mpy_file_limit; /* slots that were ever used */

/* The record behind a handle, or NULL if it isn't that of an open file. */
static inline mpy_file_t *mpy_file(MPI_File handle) {
    uint64_t i = ((uint64_t)(uintptr_t)handle - (uint64_t)(uintptr_t)mpy_files) / sizeof *mpy_files;
    return i < mpy_file_limit && &mpy_files[i] == handle && mpy_files[i].open ? &mpy_files[i] : NULL;
}
/* For arguments; without a file a value that makes the library raise the error it would raise natively. */
static inline MPI_File mpy_real_file(const mpy_file_t *f) { return f != NULL ? f->real : MPI_FILE_NULL; }

static inline bool mpy_file_sequential(const mpy_file_t *f) { return f != NULL && f->sequential; }
static inline bool mpy_file_between(MPI_File handle) { /* the halves of a split collective access */
    const mpy_file_t *f = mpy_file(handle);
    return f != NULL && f->split;
}

/* A collective call on a file counts on its row; without a file it only fetches the native error. Between the two: the
 * lower half. */
typedef struct mpy_file_call {
    mpy_thread_t *t;
    mpy_file_t *f; /* or NULL */
    uint64_t record;
} mpy_file_call_t;
static inline mpy_file_call_t mpy_file_enter(MPI_File handle) {
    mpy_file_call_t call = {.t = mpy_self(), .f = mpy_file(handle)};
    if (MPY_UNLIKELY(call.f == NULL)) {
        mpy_cross_in(call.t);
    } else {
        call.record = MPY_TRACE(call.t, .op = MPY_OP_FILE, MPY_TRACE_COLLECTIVE(call.f));
        mpy_clock_enter(call.t, mpy_row(call.f->row));
        mpy_cross_in_collective(call.t);
    }
    return call;
}
static inline void mpy_file_leave(mpy_file_call_t call, int rc) {
    if (MPY_UNLIKELY(call.f == NULL))
        mpy_cross_out(call.t);
    else
        mpy_collective_leave(call.t, mpy_row(call.f->row), rc);
    mpy_traced(call.t, call.record, rc);
}
MPY_HIDDEN void mpy_file_trace(mpy_file_t *f); /* into the table of communicators */

/* Calls the handler of `f`, or that of files to be opened if it is NULL; upper TLS, in_lower = 0. Returns what
 * the call has to return. */
MPY_HIDDEN int mpy_file_error(const mpy_file_t *f, int code, const char *function);
/* The second half of a split collective access. */
MPY_HIDDEN int mpy_file_split_end(MPI_File handle, MPI_Status *status, const char *function);
/* In the lower half: a slot for a nonblocking access whose real request is `real`; `collective`: the file, if it's a
 * collective one, else NULL. Returns the program's handle. And: wait for all collective ones. */
MPY_HIDDEN MPI_Request mpy_file_request(mpy_thread_t *t, mpy_file_t *collective, int real, const void *buf,
                                        MPI_Count count, int datatype);
MPY_HIDDEN void mpy_file_settle(mpy_file_t *f);

/* A type of the view: what the program set, and its real handle. In the lower half. */
MPY_HIDDEN mpy_view_type_t mpy_view_type(int handle);
MPY_HIDDEN void mpy_view_type_drop(mpy_view_type_t *v);
MPY_HIDDEN int mpy_view_type_real(const mpy_view_type_t *v);

MPY_HIDDEN int mpy_datarep_rebuild(void); /* in the lower half */

#endif
