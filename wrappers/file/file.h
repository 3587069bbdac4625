/* file.h - MPI files. For file/ and generated.c.
 *
 * MPI_File is a pointer in MPICH's ABI. The program gets the address of our record. Records lie in a table, so that a
 * garbage or closed handle is recognised by arithmetic. Both halves' handles have the C type MPI_File; `real` is the
 * lower half's.
 *
 * Invariants
 *  1. A record changes only with in_lower = 1 or inside a hook (invariant 1 of lock.h).
 *  2. A file counts on a row of its own. MPI_File_open counts on the communicator's row. All members leave
 *     MPI_File_close together.
 *  3. What the program has set (view, hints, atomicity) is in the record. Only the library knows what changes with
 *     every access (file pointers, size); the drain queries it.
 *  4. The real file is never opened with MPI_MODE_SEQUENTIAL: in that mode its shared file pointer could be neither
 *     read nor set. This code refuses what that mode forbids. But members outside the job open it with the program's
 *     mode, so a file of a foreign communicator is opened with that, too; it prevents checkpoints.
 *  5. The first half of a split collective access does the whole access, and keeps its status in the record. So no real
 *     access is ever in progress at a checkpoint (nonblocking ones are requests, which the drain completes).
 */
#ifndef MANAPY_FILE_H
#define MANAPY_FILE_H

#include "clock/clock.h"
#include "comm/comm.h"
#include "core/objects.h"
#include "datatype/datatype.h"
#include "p2p/request.h"
#include "tools/trace.h"

enum { MPY_PATH_SIZE = 4096 };

typedef struct mpy_view_type { /* exactly one of the two is set */
    mpy_datatype_t *derived;
    int predefined; /* standard ABI value */
} mpy_view_type_t;

typedef struct mpy_file {
    MPI_File real;
    bool open;       /* false: the slot is free */
    bool sequential; /* MPI_MODE_SEQUENTIAL: see invariant 4 */
    bool shared;     /* this process has used the shared file pointer */
    bool split;      /* between the two calls of a split collective access ... */
    bool atomic, external32;
    MPI_Status split_status; /* ... and its outcome */
    mpy_foreign_file_t foreign; /* a file of a foreign communicator: its name; else NULL */
    /* our duplicate of the communicator on which it was opened: same members in the same order. MPI_COMM_NULL for a
     * foreign one; size and world are then those of its members inside the job. */
    int real_comm;
    int size;
    int32_t *world;
    uint32_t row;
    uint32_t trace; /* index in the trace, as for a communicator */
    uint64_t cid;
    int session;     /* of its communicator */
    int errhandler;  /* virtual handle, like info */
    int info;        /* all hints that the program has given, or MPI_INFO_NULL */
    int amode;       /* as the program gave it, like `name` */
    char *name;      /* likewise */
    char *directory; /* the working directory at that time: the name may be relative */
    MPI_Offset disp;
    mpy_view_type_t etype, filetype;
    MPI_Offset position, shared_position, bytes; /* values at the latest drain */
    void *content; /* in the first member, from a drain to the end of the checkpoint or restart: see file_rebuild.c */
    /* of the queue of nonblocking collective accesses, and of the individual file pointer (file_access.c) */
    uint32_t lock;
    struct mpy_request *first, *last;
    struct mpy_file *next; /* next free slot */
} mpy_file_t;

extern MPY_HIDDEN mpy_file_t *mpy_files;
extern MPY_HIDDEN uint32_t mpy_file_limit; /* number of slots that were ever used */

/* The record of a handle, or NULL if the handle is not an open file. */
static inline mpy_file_t *mpy_file(MPI_File handle) {
    uint64_t i = ((uint64_t)(uintptr_t)handle - (uint64_t)(uintptr_t)mpy_files) / sizeof *mpy_files;
    return i < mpy_file_limit && &mpy_files[i] == handle && mpy_files[i].open ? &mpy_files[i] : NULL;
}
/* For arguments. Without a file, returns a value for which the library raises the same error. */
static inline MPI_File mpy_real_file(const mpy_file_t *f) { return f != NULL ? f->real : MPI_FILE_NULL; }

static inline bool mpy_file_sequential(const mpy_file_t *f) { return f != NULL && f->sequential; }
static inline bool mpy_file_between(MPI_File handle) { /* between the two calls of a split collective access */
    const mpy_file_t *f = mpy_file(handle);
    return f != NULL && f->split;
}

/* A collective call on a file counts on its row. Without a file it only obtains the real library's error. The code
 * between enter and leave is in the lower half. */
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
MPY_HIDDEN void mpy_file_trace(mpy_file_t *f); /* enters the file into the table of communicators */

/* Calls the handler of `f`; if `f` is NULL, the default handler of files to be opened. Upper TLS, in_lower = 0. Returns
 * the value that the call must return. */
MPY_HIDDEN int mpy_file_error(const mpy_file_t *f, int code, const char *function);
/* The second call of a split collective access. */
MPY_HIDDEN int mpy_file_split_end(MPI_File handle, MPI_Status *status, const char *function);
/* Takes a slot for a nonblocking access whose real request is `real`. `collective`: the file if the access is
 * collective, else NULL. Returns the program's handle. mpy_file_settle waits for all collective accesses. Both in the
 * lower half. */
MPY_HIDDEN MPI_Request mpy_file_request(mpy_thread_t *t, mpy_file_t *collective, int real, const void *buf,
                                        MPI_Count count, int datatype);
MPY_HIDDEN void mpy_file_settle(mpy_file_t *f);

/* A type of the view: the type that the program set, and its real handle. In the lower half. */
MPY_HIDDEN mpy_view_type_t mpy_view_type(int handle);
MPY_HIDDEN void mpy_view_type_drop(mpy_view_type_t *v);
MPY_HIDDEN int mpy_view_type_real(const mpy_view_type_t *v);

MPY_HIDDEN int mpy_datarep_rebuild(void); /* in the lower half */

/* ---- checkpoint and restart (file_rebuild.c) ---- */
MPY_HIDDEN int mpy_file_drain(char *error, uint64_t n); /* saves file pointers, which only the library knows */
MPY_HIDDEN void mpy_file_resume(void);                  /* after a checkpoint without a restart */
MPY_HIDDEN int mpy_file_rebuild(char *error, uint64_t n); /* opened again, views and positions */
MPY_HIDDEN void mpy_file_rebuild_trace(void);

#endif
