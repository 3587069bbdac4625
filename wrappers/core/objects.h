/* objects.h - the virtual objects besides communicators and requests, and the shared declarations of their files.
 *
 * Invariants
 *  1. All of it changes only with in_lower = 1 or inside a hook (invariant 1 of lock.h). If several objects depend on
 *     each other, they change under mpy_objects_lock.
 *  2. "adopt" functions take a new real handle, with the lower TLS, between mpy_cross_in and mpy_cross_out, and return
 *     the program's handle: no snapshot can come between the real object and its record.
 *  3. Callbacks of the program are called with in_lower = 0 and no lock held.
 */
#ifndef MANAPY_OBJECTS_H
#define MANAPY_OBJECTS_H

#include "runtime.h"
#include "lock.h"

extern MPY_HIDDEN uint32_t mpy_objects_lock;

/* ---- is there a lower half? (cross.c) ---- */
extern MPY_HIDDEN bool mpy_above;
/* Ends the process with one line if there is no lower half. */
MPY_HIDDEN void mpy_require_boundary(void);
MPY_HIDDEN mpy_thread_t *mpy_self_main(void); /* mpy_self() for the thread that calls MPI_Init: moves it to slot 0 */
MPY_HIDDEN void mpy_unsupported(const char *function) __attribute__((noreturn));
MPY_HIDDEN void mpy_die(const char *format, const char *argument) __attribute__((noreturn)); /* one %s */
/* In the constructor of a second copy of this library (second_copy.c): redirects all its functions to the first copy.
 * `own` and `first` are the first bytes of the two. False: this is not possible, and nothing has changed. */
MPY_HIDDEN bool mpy_hand_on(const void *own, const void *first);

/* ---- functions of the program that the real library calls (callback.c) ---- */
enum { MPY_MARKER = 3, MPY_SHADOW = 4 }; /* `used` of records that aren't in a slot; records in a slot have 0 to 2 */
typedef void mpy_callback_t(void *argument);
/* called with the lower TLS; calls the function with the upper one */
MPY_HIDDEN void mpy_callback(mpy_callback_t *function, void *argument);
/* the record for a call from inside a callback, or after a longjmp out of it */
MPY_HIDDEN mpy_thread_t *mpy_callback_self(mpy_thread_t *marker);
/* A longjmp has left the call that the newest open record of the trace describes, and the calls that it made
 * (trace.c). */
MPY_HIDDEN void mpy_trace_abandon(mpy_thread_t *t);

/* ---- calls before MPI_Init and after MPI_Finalize (outside.c) ---- */
/* generated, like mpy_names; NULL for functions that may be called at any time */
extern MPY_HIDDEN void (*const mpy_outside[MPY_FN_COUNT])(void);
extern MPY_HIDDEN const char *const mpy_names[MPY_FN_COUNT];
MPY_HIDDEN void mpy_table_close(void); /* the real library isn't up; with in_lower set */
MPY_HIDDEN void mpy_table_open(void);
MPY_HIDDEN void mpy_called_outside(const char *function); /* lower TLS */
MPY_HIDDEN void mpy_end_outside(mpy_thread_t *t, const char *function) __attribute__((noreturn));
MPY_HIDDEN bool mpy_needs_mpi(const char *function);
/* For functions that are answered here without checking whether MPI is initialized. */
static inline void mpy_require_mpi(const char *function) {
    if (MPY_UNLIKELY(!mpy_mpi_is_up(MPY_UPPER)) && mpy_above) mpy_end_outside(mpy_self(), function);
}

/* ---- ordered lists of all objects of a kind, to rebuild them in order of creation ---- */
typedef struct mpy_link { struct mpy_link *next, *prev; } mpy_link_t;
static inline void mpy_link_append(mpy_link_t *head, mpy_link_t *l) {
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}
static inline void mpy_link_remove(mpy_link_t *l) {
    l->prev->next = l->next;
    l->next->prev = l->prev;
}

/* ---- constructors ---- */
/* A constructor that fails returns the null handle. */
static inline int mpy_or_null(int rc, int *handle, int null) {
    if (MPY_UNLIKELY(rc != 0) && handle != NULL) *handle = null;
    return rc;
}

/* ---- sorting by ascending keys, in place, without memory (sort.c) ---- */
MPY_HIDDEN void mpy_sort(void **items, uint32_t n, uint64_t (*key)(const void *));

/* ---- groups ---- */
typedef struct mpy_group {
    mpy_object_t obj;
    int size;
    int32_t *world;
    int session; /* handle of the session it comes from; 0 in the world model */
    bool foreign; /* some members are outside the job: MPY_FOREIGN */
} mpy_group_t;
MPY_HIDDEN int mpy_group_adopt(int real);
MPY_HIDDEN mpy_group_t *mpy_group(int handle);
/* World ranks of a real group of `size` members, in its order. Sets *foreign if some are MPY_FOREIGN. In the lower
 * half; mpy_alloc. */
MPY_HIDDEN int32_t *mpy_group_world(int real, int size, bool *foreign);
MPY_HIDDEN const mpy_group_t *mpy_group_with_us(int handle); /* also NULL if this process isn't a member */

/* ---- infos ---- */
typedef struct mpy_pair { struct mpy_pair *next; char *key, *value; } mpy_pair_t;
typedef struct mpy_info {
    mpy_object_t obj;
    mpy_pair_t *first; /* in order of insertion */
} mpy_info_t;
MPY_HIDDEN int mpy_info_adopt(int real);
MPY_HIDDEN void mpy_info_drop(int handle);              /* in the lower half */
MPY_HIDDEN void mpy_info_reread(int handle);            /* in the lower half: the real library has changed it */
MPY_HIDDEN void mpy_info_merge(int *into, int handle); /* in the lower half; creates *into if it is null */

/* ---- datatypes ---- */
typedef struct mpy_datatype {
    mpy_object_t obj;
    mpy_link_t all;
    /* references that the program holds; freed when 0, but kept while obj.refs > 0; with mpy_objects_lock */
    int32_t handles;
    int32_t lent; /* references that functions of the program have for a while; they keep the handle, too */
    bool committed;
    bool big;          /* created with the 64-bit form */
    MPI_Count size;    /* in bytes; negative: unknown */
    bool permanent;    /* a Fortran 90 type: can't be freed */
    int combiner;      /* standard ABI value, as are the predefined types and constants below */
    int nints, naints, ncounts, ntypes;
    int *ints;         /* as MPI_Type_get_contents returns them */
    MPI_Aint *aints;
    MPI_Count *counts; /* of the 64-bit form */
    int *types;        /* predefined: standard ABI value; derived: 0 */
    struct mpy_datatype **bases;
    mpy_attr_t *attrs;
    char *name;
} mpy_datatype_t;
MPY_HIDDEN mpy_datatype_t *mpy_datatype(int handle);
MPY_HIDDEN bool mpy_datatype_predefined(int handle);
MPY_HIDDEN int mpy_datatype_virtual(int real); /* for user operations: the program's handle of a real type */
MPY_HIDDEN void mpy_datatype_destroy(mpy_datatype_t *d);
/* References with a handle: for the program, which must free it; for a function of the program, until it is taken back.
 * If the program has freed all its own references, the type gets a handle again. In the lower half. */
MPY_HIDDEN int mpy_datatype_give(mpy_datatype_t *d);
MPY_HIDDEN int mpy_datatype_lend(mpy_datatype_t *d);
MPY_HIDDEN void mpy_datatype_take_back(mpy_datatype_t *d);
MPY_HIDDEN mpy_attr_t **mpy_datatype_attrs(int handle); /* also for predefined types; NULL if it is not a type */
MPY_HIDDEN int mpy_datatype_construct(mpy_datatype_t *d); /* makes the real type of a recipe; in the lower half */
MPY_HIDDEN mpy_datatype_t *mpy_datatype_blank(int combiner, bool big, int nints, int naints, int ncounts, int ntypes);
MPY_HIDDEN void mpy_datatype_base(mpy_datatype_t *d, int i, int handle);
MPY_HIDDEN mpy_datatype_t *mpy_datatype_find_permanent(const mpy_datatype_t *like);
MPY_HIDDEN int mpy_datatype_add(mpy_datatype_t *d); /* gives the program a handle */

enum { MPY_LOCAL_TYPES = 64 };
/* Translates an array into `real`; or into `local` if that is long enough, otherwise into allocated memory. A NULL
 * array stays NULL. */
MPY_HIDDEN int *mpy_real_datatypes_to(const int *handles, int64_t n, int *real);
MPY_HIDDEN int *mpy_real_datatypes(const int *handles, int64_t n, int *local);
MPY_HIDDEN void mpy_real_datatypes_free(int *real, int64_t n, int *local);

/* ---- operations ---- */
/* The C++ library's takes an int, in the same register. */
typedef void mpy_op_proxy_t(const void *in, void *inout, MPI_Count count, MPI_Datatype datatype, void *function);
typedef struct mpy_op {
    mpy_object_t obj;
    void *function;
    /* The proxy of a front or of MPICH's C++ library, which calls the function; NULL: it is called directly */
    mpy_op_proxy_t *proxy;
    bool big;
    int commute;
    int thunk;
} mpy_op_t;
/* Calls the program's function. *count is an int, or an MPI_Count if the operation is `big`. With the upper TLS. */
MPY_HIDDEN void mpy_op_apply(const mpy_op_t *op, void *in, void *inout, void *count, int *datatype);

/* ---- error handlers ---- */
typedef enum {
    MPY_ERRHANDLER_COMM,
    MPY_ERRHANDLER_FILE,
    MPY_ERRHANDLER_WIN,
    MPY_ERRHANDLER_SESSION
} mpy_errhandler_kind_t;
typedef void mpy_errhandler_proxy_t(int kind, void *handle, int *code, void *function);
typedef struct mpy_errhandler {
    mpy_object_t obj;   /* refs: handles included */
    mpy_errhandler_kind_t kind;
    void *function;
    /* MPICH's C++ library's proxy, as for operations; its numbers of kinds are the same as ours */
    mpy_errhandler_proxy_t *proxy;
    int32_t handles;    /* references that the program has */
} mpy_errhandler_t;
/* MPICH's MPI::ERRORS_THROW_EXCEPTIONS. The call returns its code, as with MPI_ERRORS_RETURN; the C++ library
 * throws. */
enum { MPY_ERRORS_THROW_EXCEPTIONS = 0x54000002 };
/* put: stores `handle` in *slot as an object's handler. Returns MPI_SUCCESS or MPI_ERR_ERRHANDLER. get: the answer to
 * X_get_errhandler. */
MPY_HIDDEN int mpy_errhandler_put(int *slot, int handle, mpy_errhandler_kind_t kind);
MPY_HIDDEN int mpy_errhandler_get(int slot, MPI_Errhandler *handle);
MPY_HIDDEN bool mpy_errhandler_valid(int handle, mpy_errhandler_kind_t kind);
MPY_HIDDEN void mpy_errhandler_ref(int handle);
MPY_HIDDEN void mpy_errhandler_unref(int handle);
MPY_HIDDEN int mpy_error_virtual(int real); /* the program's value of an error class or code */
MPY_HIDDEN int mpy_errors_rebuild(char *error, uint64_t n); /* error classes and codes that the program has added */

/* ---- sessions (session.c) ---- */
typedef struct mpy_buffer mpy_buffer_t;
typedef struct mpy_session {
    mpy_object_t obj;
    int errhandler;
    int info;             /* as given to MPI_Session_init, or MPI_INFO_NULL */
    char level[24];       /* the thread level that the library has given it then, in words; may be empty */
    int strict;           /* can't be finalized while an object made from it exists */
    mpy_buffer_t *buffer; /* MPI_Session_attach_buffer */
} mpy_session_t;
MPY_HIDDEN mpy_session_t *mpy_session(int handle); /* NULL for 0 and for any other value that is not a session */
MPY_HIDDEN bool mpy_session_any(void);             /* is a session open? */
MPY_HIDDEN int mpy_session_error(mpy_session_t *session_or_null, int code, const char *function);
/* initializes the real MPI, unless that has been done; returns an MPI error code */
MPY_HIDDEN int mpy_init_for_sessions(int thread_level);
MPY_HIDDEN int mpy_session_rebuild(char *error, uint64_t n);

/* ---- attached buffers (bsend.c) ---- */
/* Waits for the sends and forgets the buffer, if there is one; upper TLS. *address is NULL if there was none. */
MPY_HIDDEN void mpy_buffer_detach(mpy_buffer_t **slot, void **address, MPI_Count *size);

/* ---- attributes ---- */
/* How callbacks of another language are called: the Fortran library gives keyvals made there two functions of its own
 * (MPII_Keyval_set_proxy). */
typedef int mpy_attr_copy_proxy_t(MPI_Comm_copy_attr_function *function, int handle, int keyval, void *extra, int type,
                                  void *value, void **copy, int *flag);
typedef int mpy_attr_delete_proxy_t(MPI_Comm_delete_attr_function *function, int handle, int keyval, int type,
                                    void *value, void *extra);
typedef struct mpy_keyval {
    mpy_object_t obj;
    MPI_Comm_copy_attr_function *copy;
    MPI_Comm_delete_attr_function *remove;
    void *extra;
    mpy_attr_copy_proxy_t *copy_proxy; /* NULL: functions of C */
    mpy_attr_delete_proxy_t *remove_proxy;
} mpy_keyval_t;
/* Call the callbacks, on the upper TLS with in_lower = 0. Return the error of a callback that fails. As in MPICH,
 * deleting then continues and leaves an empty list; copying stops and deletes the copies. */
MPY_HIDDEN int mpy_attrs_copy(int from_handle, mpy_attr_t *const *from, mpy_attr_t **to);
MPY_HIDDEN int mpy_attrs_delete(int handle, mpy_attr_t **attrs);
MPY_HIDDEN void mpy_attr_read_predefined(void); /* in the lower half, after the real MPI_Init */
MPY_HIDDEN int mpy_real_tag_bound(void);        /* in the lower half: of the library that is there now */
MPY_HIDDEN void mpy_attr_read_last_code(void);  /* in the lower half: MPI_LASTUSEDCODE has changed */

/* ---- communicators (comm.h says more) ---- */
typedef struct mpy_topology mpy_topology_t;
MPY_HIDDEN void mpy_comm_init(void);      /* creates world and self, before the real MPI_Init */
MPY_HIDDEN int mpy_comm_init_internal(void); /* in the lower half, after the real MPI_Init */
MPY_HIDDEN void mpy_comm_finalize(void);  /* forgets all communicators */
/* see mpy_object_unref; returns the error of the real MPI_Comm_free */
MPY_HIDDEN int mpy_comm_unref(mpy_comm_t *c);
MPY_HIDDEN bool mpy_comm_gone(const mpy_comm_t *c); /* all members have freed it and know this */
MPY_HIDDEN uint64_t mpy_comm_cid(const mpy_comm_t *c);
/* All processes of the job, for our own messages. These can be waited for and checkpointed like the program's. No
 * wildcard of the program can match them, because the program never gets this handle. */
extern MPY_HIDDEN mpy_comm_t *mpy_internal_world;

/* Gives a new real communicator, intra or inter, a handle, an error handler and a row. In the lower half. A
 * communicator with members outside the job is `foreign`, and counts on a row of the members inside. `cid`: new, and
 * the same on all members inside the job. */
MPY_HIDDEN mpy_comm_t *mpy_comm_adopt(int real, uint64_t cid, int errhandler);
/* A constructor that all members of one communicator call; in the lower half from begin to end (comm_new.c):
 *     mpy_construction_t k = mpy_construct_begin(comm);      counts on the parent
 *     k.rc = MPY_REAL(Comm_...)(mpy_real_comm(comm), ..., &k.real);
 *     return mpy_construct_end(&k, newcomm, "MPI_Comm_..."); */
typedef struct mpy_construction {
    mpy_thread_t *t;
    mpy_comm_t *parent; /* NULL: bad handle; the real library returns the error */
    uint64_t seq;       /* the parent's SEQ including this call: it names the child */
    int errhandler;     /* the parent's, unless the constructor needs another */
    int rc, real;
    uint64_t record;    /* in the trace */
} mpy_construction_t;
MPY_HIDDEN mpy_construction_t mpy_construct_begin(MPI_Comm comm);
MPY_HIDDEN int mpy_construct_end(mpy_construction_t *k, MPI_Comm *newcomm, const char *name);

/* ---- connections (dynamic.c); in the lower half or a guard ---- */
/* a foreign communicator was created, removed or named: updates the obstacle */
MPY_HIDDEN void mpy_connections_changed(void);
MPY_HIDDEN void mpy_parent_adopt(void);        /* after the real MPI_Init */
MPY_HIDDEN void mpy_obstacle(const char *line); /* from now on no checkpoint is possible, for this reason */
MPY_HIDDEN int mpy_port_rebuild(char *error, uint64_t n);

/* Arguments that are weights of a graph: MPI_UNWEIGHTED and MPI_WEIGHTS_EMPTY have different addresses in the real
 * library. */
extern __attribute__((visibility("default"))) int *const MPI_UNWEIGHTED, *const MPI_WEIGHTS_EMPTY;
static inline int *mpy_real_weights(const int *weights) {
    if (weights == MPI_UNWEIGHTED) return MPY_LOWER->mpi_data[MPY_DATA_UNWEIGHTED];
    if (weights == MPI_WEIGHTS_EMPTY) return MPY_LOWER->mpi_data[MPY_DATA_WEIGHTS_EMPTY];
    return (int *)weights;
}

/* ---- rebuild: real handles of predefined objects; in a hook, in the lower half ---- */
MPY_HIDDEN int mpy_world_group(void);

/* ---- text without libc ---- */
static inline size_t mpy_text_length(const char *s) {
    size_t n = 0;
    while (s[n] != 0) n++;
    return n;
}
MPY_HIDDEN char *mpy_text_copy(const char *s); /* from mpy_alloc; free it with mpy_text_free */
MPY_HIDDEN void mpy_text_free(char *s);
MPY_HIDDEN bool mpy_text_equal(const char *a, const char *b);
/* formats with %s and %d into a buffer; truncates */
MPY_HIDDEN void mpy_text_format(char *to, size_t n, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
