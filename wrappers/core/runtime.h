/* runtime.h - declarations for all files of the wrappers. Upper half; linked into libmpi.so.12.
 *
 * Invariants
 *  1. Code that a hook can reach does not call malloc or stdio and takes no lock of the upper libc: hooks run while
 *     other threads are stopped anywhere. Memory comes from mpy_alloc (alloc.c), strings from the builtin mem*
 *     functions. Some files that no hook reaches use libc: cross.c, second_copy.c, init.c, outside.c, errors.c,
 *     query.c.
 *  2. Every handle that the program sees is virtual: a predefined constant of MPICH's ABI, or MPICH's "direct" kind
 *     bits and an index into the object table of its kind. Only an MPI_File is the address of a record (file.h). The
 *     real handle is obj->real, and is stale after a restart until rebuild.
 *  3. Compiled with -fno-stack-protector -mfsgsbase and initial-exec TLS. Between mpy_cross_in and mpy_cross_out no
 *     thread-local variable is touched: take `t = mpy_self()` before.
 *  4. Records of datatypes and file views hold constants and predefined datatypes as values of the MPI-5 standard ABI
 *     (abi.h converts). Constants in other records are MPICH's, for example the access mode of a file.
 */
#ifndef MANAPY_RUNTIME_H
#define MANAPY_RUNTIME_H

#include <manapy/boundary.h>
#include <manapy/fs_base.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mpich.h"     /* MPICH-ABI types and constants: our own, no mpi.h is needed */
#include "functions.h" /* generated: MPY_FN_* indices, mpy_fn_*_t function-pointer types, MPY_TABLE_HASH */

#define MPY_LIKELY(x) __builtin_expect(!!(x), 1)
#define MPY_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define MPY_HIDDEN __attribute__((visibility("hidden")))
/* Functions of the program's interface are defined as `MPY_API int PMPI_Send(...)`. MPI_Send is an alias that the
 * linker makes from the table (aliases.ld). */
#define MPY_API __attribute__((visibility("default")))
#define MPY_REAL(NAME) ((mpy_fn_##NAME##_t)MPY_LOWER->mpi[MPY_FN_##NAME])

/* ---- threads and crossing (cross.c) ---- */
extern __thread mpy_thread_t *mpy_self_tls __attribute__((tls_model("initial-exec"))) MPY_HIDDEN;
MPY_HIDDEN void mpy_bind(mpy_thread_t *t); /* with in_lower set: makes sure that lower TLS and real library exist */
MPY_HIDDEN mpy_thread_t *mpy_self_slow(void); /* registers and binds the calling thread */

static inline mpy_thread_t *mpy_self(void) {
    mpy_thread_t *t = mpy_self_tls;
    if (MPY_UNLIKELY(t == NULL || t->lower_fs == 0)) t = mpy_self_slow();
    return t;
}

/* Called with in_lower set, when FROZEN or without a lower TLS (a restart may happen between mpy_self and
 * mpy_cross_in). While FROZEN it clears in_lower and waits, then sets it again. It binds the thread if lower_fs is
 * 0. */
MPY_HIDDEN void mpy_cross_stop(mpy_thread_t *t);

/* A moment at which the program's callbacks may run: called before each sleep of a thread that waits for a checkpoint,
 * with in_lower = 0 and after the word on which it will sleep was read. */
static inline void mpy_offer_moment(void) {
    if (MPY_UPPER->callbacks.state != MPY_CALL_NONE) MPY_UPPER->callbacks.at_call();
}

/* Enters the lower half. Any MPI call except a collective that counts may use this directly: it stops only in phase
 * FROZEN. A restart may happen inside. So real handles are read after it, and results are recorded before
 * mpy_cross_out. */
static inline void mpy_cross_in(mpy_thread_t *t) {
    t->in_lower = 1;
    __asm__ volatile("" ::: "memory");
    if (MPY_UNLIKELY(MPY_LOWER->phase == MPY_PHASE_FROZEN || t->lower_fs == 0)) mpy_cross_stop(t);
    mpy_fs_set(t->lower_fs);
}
static inline void mpy_cross_out(mpy_thread_t *t) {
    mpy_fs_set(t->upper_fs);
    t->in_lower = 0;
    __asm__ volatile("" ::: "memory");
}
/* Hooks (drain, rebuild) cross although the phase is FROZEN. */
static inline void mpy_hook_in(mpy_thread_t *t) { mpy_fs_set(t->lower_fs); }
static inline void mpy_hook_out(mpy_thread_t *t) { mpy_fs_set(t->upper_fs); }

/* For work on our own objects without entering the lower half: no snapshot can come in between (allocation needs
 * this). */
static inline void mpy_guard_in(mpy_thread_t *t) {
    t->in_lower = 1;
    __asm__ volatile("" ::: "memory");
    if (MPY_UNLIKELY(MPY_LOWER->phase == MPY_PHASE_FROZEN)) mpy_cross_stop(t);
}
static inline void mpy_guard_out(mpy_thread_t *t) {
    __asm__ volatile("" ::: "memory");
    t->in_lower = 0;
}

/* ---- memory (alloc.c). Called with in_lower set or in a hook: hooks allocate, too, and then the lock must be free.
 * Bump allocation and free lists by size class over private mmap; zeroed. mpy_alloc doesn't fail but ends the job with
 * one line. mpy_try_alloc, for memory as long as the program's data, returns NULL (invariant 3 of alloc.c). ---- */
MPY_HIDDEN void *mpy_alloc(size_t size);
MPY_HIDDEN void *mpy_try_alloc(size_t size);
MPY_HIDDEN void mpy_free(void *p, size_t size);

/* ---- object tables (handles.c): handle -> object is one array access ---- */
typedef enum {
    MPY_COMM,
    MPY_GROUP,
    MPY_DATATYPE,
    MPY_OP,
    MPY_ERRHANDLER,
    MPY_INFO,
    MPY_KEYVAL,
    MPY_WIN,
    MPY_SESSION,
    MPY_REQUEST,
    MPY_KINDS
} mpy_kind_t;

typedef struct mpy_object { /* head of every object */
    int real;      /* the lower half's handle (MPICH's type; adapters of other families map it) */
    int handle;    /* the program's handle */
    int32_t refs;  /* 1 for the program's handle (0 after free), + 1 for each of our objects that uses it */
    uint32_t flags;
} mpy_object_t;

/* The kinds before MPY_REQUEST have a table here. Requests (and messages) have their own (request.c); files are
 * pointers. */
#define MPY_TABLE_KINDS MPY_REQUEST
#define MPY_INDEX_BITS 18
extern MPY_HIDDEN mpy_object_t *mpy_slots[MPY_TABLE_KINDS][1 << MPY_INDEX_BITS];

/* NULL if `handle` isn't a live handle of that kind: garbage, freed, null, or predefined (except communicators). */
static inline mpy_object_t *mpy_lookup(mpy_kind_t kind, int handle) {
    mpy_object_t *obj = mpy_slots[kind][(uint32_t)handle & ((1u << MPY_INDEX_BITS) - 1)];
    return MPY_LIKELY(obj != NULL) && MPY_LIKELY(obj->handle == handle) ? obj : NULL;
}
/* Call these two with in_lower set, like mpy_alloc. */
MPY_HIDDEN int mpy_object_add(mpy_kind_t kind, mpy_object_t *obj); /* gives it a handle and returns the handle */
MPY_HIDDEN void mpy_object_remove(mpy_kind_t kind, int handle);
/* Adds or removes a user. Both in the lower half, with its TLS. When the last user is removed, the real object and the
 * memory are freed: an object lives as long as one of our objects refers to it. */
static inline void mpy_object_ref(mpy_object_t *obj) { __atomic_add_fetch(&obj->refs, 1, __ATOMIC_RELAXED); }
MPY_HIDDEN void mpy_object_unref(mpy_kind_t kind, mpy_object_t *obj);

typedef struct mpy_attr {
    struct mpy_attr *next;
    struct mpy_keyval *key;
    void *value;
    int type; /* mpy_attr_type_t of attr.c: the language in which it was set */
} mpy_attr_t;

/* MPICH chooses its algorithm by the number of these calls on a communicator (invariant 3 of comm_rebuild.c). */
typedef enum mpy_aging {
    MPY_AGING_ALLREDUCE, MPY_AGING_REDUCE, MPY_AGING_BCAST, MPY_AGING_BARRIER,
    MPY_AGINGS
} mpy_aging_t;

typedef struct mpy_comm {
    mpy_object_t obj;
    /* size, and rank of this process; never -1, because objects exist only where this process is a member */
    int rank, size;
    uint32_t row;              /* index into MPY_UPPER->clock.rows */
    int32_t *world;            /* world rank of each member, in the communicator's rank order */
    int32_t remote_size;       /* inter-communicators: size of the other group; else 0 */
    int32_t *remote_world;     /* world ranks of the other group, or NULL */
    /* virtual handle; MPI_ERRHANDLER_NULL: never set. The real communicator always has MPI_ERRORS_RETURN. */
    int errhandler;
    mpy_attr_t *attrs;         /* kept here only; the real communicator has none of the program's attributes */
    int topology;              /* MPI_UNDEFINED, MPI_CART, MPI_GRAPH or MPI_DIST_GRAPH */
    int indegree, outdegree;   /* with a topology: number of neighbours to receive from and to send to */
    bool foreign;              /* has members outside the job (spawn, connect); their world rank is MPY_FOREIGN */
    char name[128];
    int has_name;
    int info;                  /* virtual info object given at creation or by Comm_set_info, or MPI_INFO_NULL */
    int session;               /* the session it comes from (handle), 0 in the world model */
    struct mpy_buffer *buffer; /* MPI_Comm_attach_buffer, or NULL */
    uint32_t trace;            /* its index in the trace's table of communicators */
    uint32_t incomplete_ssends;/* see "Synchronous sends" in store.c */
    uint64_t had[MPY_AGINGS];  /* number of calls of each kind */
} mpy_comm_t;

/* "World rank" of a process outside the job: the index after the last one, for which counters have an entry. The
 * protocol never waits for it, and a checkpoint is refused while it is reachable. */
#define MPY_FOREIGN (mpy_world->size)

MPY_HIDDEN extern mpy_comm_t *mpy_world;
static inline mpy_comm_t *mpy_comm(int handle) { return (mpy_comm_t *)mpy_lookup(MPY_COMM, handle); }

/* Translate handles of arguments. Predefined constants and null handles pass. A bad handle becomes a value for which
 * the real library raises the same error. */
MPY_HIDDEN int mpy_real_comm(int handle);
MPY_HIDDEN int mpy_real_datatype_slow(int handle);
MPY_HIDDEN int mpy_real_op_slow(int handle);
/* bits 30-31 of MPICH's handles */
static inline bool mpy_is_builtin(int handle) { return (uint32_t)handle >> 30 == 1; }
static inline int mpy_real_datatype(int handle) {
    return MPY_LIKELY(mpy_is_builtin(handle)) ? handle : mpy_real_datatype_slow(handle);
}
static inline int mpy_real_op(int handle) {
    return MPY_LIKELY(mpy_is_builtin(handle)) ? handle : mpy_real_op_slow(handle);
}
MPY_HIDDEN int mpy_real_group(int handle);
MPY_HIDDEN int mpy_real_info(int handle);

#endif
