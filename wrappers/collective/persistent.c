/* persistent.c - persistent collective requests: X_init, MPI_Start, and making them again after a restart. They
 * complete like any request (request.c): the real request is tested.
 *
 * Upper half, no libc. The real requests must be persistent ones: members may start two of them in different orders,
 * and nonblocking collectives on the same communicator would then be matched wrongly.
 *
 * Clock. X_init counts on its communicator. MPI_Start counts on a row of the request's own, so starts that cross on two
 * members are told apart. The row's identity is that of a child of (communicator, SEQ of the X_init).
 *
 * MPI_Request_free is local: when one member has freed its request, another may still have to start it, until both have
 * started it equally often. Therefore the record and the row of a freed request stay ("retired"), and a restart makes
 * the real request on all members or on none. Nothing is started on a retired request: at a safe state all members have
 * started it equally often. Retired records are removed with their communicator (comm_freed.c: when all members have
 * freed it and all their requests). They are also removed when the members agree, in some X_init calls, that all have
 * freed them. So the 65536 rows of the clock limit the number of requests of this process that at least one member
 * holds. On a connection (foreign) a record is removed when its request is freed: no checkpoint comes meanwhile, and
 * members outside the job take part in no agreement.
 *
 * Invariants
 *  1. The list is in ascending order of identity. The records of one communicator are the same on all its members: an
 *     X_init that fails on its arguments leaves no record and isn't counted (invariant 6 of clock.c). Otherwise an
 *     X_init fails only for lack of memory.
 *  2. A record holds references to its communicator, datatypes and operation, and copies of arrays and of the info: the
 *     program may free them all after the X_init.
 */
#include "twophase.h"
#include "clock/clock.h"
#include "comm/comm.h"
#include "persistent.h"
#include "environment/errors.h"
#include "environment/info.h"
#include "p2p/request.h"
#include "tools/trace.h"

enum {
    CHILD = -1,      /* replaces a communicator's smallest world rank: no child communicator has this identity */
    AGREE_EVERY = 256, /* agree after so many records of a communicator */
};

typedef struct kept { /* an argument */
    mpy_argument_t given; /* arrays: our copy */
    size_t bytes;         /* of the array */
    int64_t ntypes;
    mpy_object_t **types; /* derived datatypes; an entry is NULL for a predefined type */
    int *real_types;      /* MPY_ARG_TYPES */
    /* 1 + the number of an earlier argument that was given the same array and keeps it for both: MPI compares their
     * addresses to detect a wrongly used buffer */
    int same;
} kept_t;

typedef struct persistent {
    struct persistent *next;
    uint64_t cid;
    uint64_t seq; /* SEQ of the X_init on its communicator */
    uint32_t row;
    int info; /* our copy */
    int real;
    mpy_comm_t *comm;
    bool retired;
    mpy_fold_t *fold;
    mpy_object_t *op; /* of the program */
    const mpy_persistent_call_t *call;
    kept_t arguments[MPY_ARGUMENTS];
} persistent_t;

static persistent_t *first; /* with mpy_objects_lock */


/* ---- records; in the lower half ---- */

static int64_t length(const persistent_t *p, const mpy_argument_t *given, int i) {
    const mpy_comm_t *c = p->comm;
    int64_t peers = c->remote_size != 0 ? c->remote_size : c->size;
    switch ((mpy_argument_length_t)p->call->arguments[i].length) {
    case MPY_LENGTH_ONE:
        break;
    case MPY_LENGTH_LOCAL:
        return c->size;
    case MPY_LENGTH_PEERS:
        return peers;
    case MPY_LENGTH_SENT:
        return given[0].pointer == MPI_IN_PLACE ? 0 : peers;
    case MPY_LENGTH_ROOT:
        for (int k = 0; k < p->call->n; k++)
            if (p->call->arguments[k].kind == MPY_ARG_ROOT)
                return given[k].value == (c->remote_size != 0 ? MPI_ROOT : c->rank) ? peers : 0;
        break;
    case MPY_LENGTH_SOURCES:
        return c->indegree;
    case MPY_LENGTH_DESTINATIONS:
        return c->outdegree;
    }
    return 1;
}

static void keep_types(kept_t *k, const int *handles, int64_t n) {
    k->types = mpy_alloc((size_t)n * sizeof *k->types);
    k->ntypes = n;
    for (int64_t i = 0; i < n; i++) {
        k->types[i] = mpy_lookup(MPY_DATATYPE, handles[i]);
        if (k->types[i] != NULL) mpy_object_ref(k->types[i]);
    }
}

static void keep(persistent_t *p, const mpy_argument_t *given, int i) {
    static const size_t sizes[] = {
        [MPY_ARG_INTS] = sizeof(int), [MPY_ARG_COUNTS] = sizeof(MPI_Count), [MPY_ARG_TYPES] = sizeof(int)};
    mpy_argument_kind_t kind = p->call->arguments[i].kind;
    kept_t *k = &p->arguments[i];
    k->given = given[i];
    if (kind == MPY_ARG_OP && (p->op = mpy_lookup(MPY_OP, (int)given[i].value)) != NULL) mpy_object_ref(p->op);
    if (kind == MPY_ARG_TYPE) {
        const int handle = (int)given[i].value;
        keep_types(k, &handle, 1);
    }
    if (kind < MPY_ARG_INTS || given[i].pointer == NULL) return;
    int64_t n = length(p, given, i);
    k->bytes = (size_t)n * sizes[kind];
    for (int j = 0; j < i; j++)
        if (p->call->arguments[j].kind == kind && given[j].pointer == given[i].pointer &&
            p->arguments[j].bytes == k->bytes) {
            k->same = 1 + j;
            k->given.pointer = p->arguments[j].given.pointer;
            return;
        }
    k->given.pointer = mpy_alloc(k->bytes);
    __builtin_memcpy(k->given.pointer, given[i].pointer, k->bytes);
    if (kind != MPY_ARG_TYPES) return;
    keep_types(k, k->given.pointer, n);
    k->real_types = mpy_alloc(k->bytes);
}

static persistent_t *keep_call(const mpy_persistent_call_t *call, const mpy_argument_t *given, mpy_comm_t *comm,
                               mpy_fold_t *fold) {
    persistent_t *p = mpy_alloc(sizeof *p);
    p->call = call;
    p->comm = comm;
    p->fold = fold;
    p->info = MPI_INFO_NULL;
    mpy_object_ref(&comm->obj);
    __atomic_add_fetch(&((mpy_comm_record_t *)comm)->persistent, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < call->n; i++) keep(p, given, i);
    return p;
}

static void destroy(persistent_t *p) {
    for (int i = 0; i < p->call->n; i++) {
        kept_t *k = &p->arguments[i];
        for (int64_t j = 0; j < k->ntypes; j++)
            if (k->types[j] != NULL) mpy_object_unref(MPY_DATATYPE, k->types[j]);
        mpy_free(k->types, (size_t)k->ntypes * sizeof *k->types);
        mpy_free(k->real_types, k->bytes);
        if (p->call->arguments[i].kind >= MPY_ARG_INTS && k->same == 0) mpy_free(k->given.pointer, k->bytes);
    }
    if (p->fold != NULL) mpy_fold_destroy(p->fold);
    if (p->op != NULL) mpy_object_unref(MPY_OP, p->op);
    if (p->info != MPI_INFO_NULL) mpy_info_drop(p->info);
    __atomic_sub_fetch(&((mpy_comm_record_t *)p->comm)->persistent, 1, __ATOMIC_RELAXED);
    mpy_object_unref(MPY_COMM, &p->comm->obj);
    mpy_free(p, sizeof *p);
}

/* Inserts it in order. */
static void insert(persistent_t *p) {
    mpy_lock(&mpy_objects_lock);
    persistent_t **link = &first;
    while (*link != NULL && (*link)->cid < p->cid) link = &(*link)->next;
    p->next = *link;
    *link = p;
    mpy_unlock(&mpy_objects_lock);
}

/* With the lock. */
static void unlist(const persistent_t *p) {
    persistent_t **link = &first;
    while (*link != p) link = &(*link)->next;
    *link = p->next;
}

/* Removes the row and frees the record, which must not be in a list any more. */
static void discard(persistent_t *p) {
    mpy_row_remove(p->row);
    destroy(p);
}

static void drop(persistent_t *p) {
    mpy_lock(&mpy_objects_lock);
    unlist(p);
    mpy_unlock(&mpy_objects_lock);
    discard(p);
}

/* Lists the records of a communicator; `records` may be NULL. Returns their number. */
static int list(const mpy_comm_t *c, persistent_t **records) {
    int n = 0;
    mpy_lock(&mpy_objects_lock);
    for (persistent_t *p = first; p != NULL; p = p->next)
        if (p->comm == c) {
            if (records != NULL) records[n] = p;
            n++;
        }
    mpy_unlock(&mpy_objects_lock);
    return n;
}

/* Calls the real X_init, with the real handles of this generation. */
static int make(persistent_t *p, int real_info) {
    mpy_argument_t a[MPY_ARGUMENTS];
    for (int i = 0; i < p->call->n; i++) {
        const kept_t *k = &p->arguments[i];
        a[i] = k->same != 0 ? a[k->same - 1] : k->given;
        if (p->call->arguments[i].kind == MPY_ARG_OP) a[i].value = mpy_real_op((int)k->given.value);
        if (p->call->arguments[i].kind == MPY_ARG_TYPE)
            a[i].value = k->types[0] != NULL ? k->types[0]->real : mpy_real_datatype((int)k->given.value);
        if (k->real_types == NULL) continue;
        const int *handles = k->given.pointer;
        for (int64_t j = 0; j < k->ntypes; j++)
            k->real_types[j] = k->types[j] != NULL ? k->types[j]->real : mpy_real_datatype(handles[j]);
        a[i].pointer = k->real_types;
    }
    return p->call->make(a, p->comm->obj.real, real_info, &p->real);
}

/* ---- MPI_Start, completion, MPI_Request_free ---- */

static int start(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    (void)th;
    persistent_t *p = r->more;
    mpy_clock_enter(t, mpy_row(p->row));
    mpy_cross_in_collective(t);
    int rc = p->fold != NULL ? mpy_fold_begin(p->fold) : MPI_SUCCESS;
    if (rc == 0) rc = MPY_REAL(Start)(&p->real);
    if (rc == 0) {
        r->real = p->real;
        mpy_request_activate(r, false);
    }
    mpy_collective_leave(t, mpy_row(p->row), rc);
    return rc;
}

static bool finish(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    const persistent_t *p = r->more;
    return p->fold == NULL || mpy_fold_finish(t, th, p->fold, &r->error);
}

static bool let_go(mpy_thread_t *t, mpy_request_t *r) {
    const persistent_t *p = r->more;
    return mpy_fold_let_go(t, p->fold, r);
}

/* Identifies the request on all members, and counts its starts, because the trace's record of the X_init may be
 * overwritten. */
static void traced(const mpy_request_t *r, mpy_trace_call_t *call) {
    const persistent_t *p = r->more;
    call->flags = p->call->op << MPY_TRACE_STARTS;
    call->tag = (int32_t)(mpy_row(p->row)->seq + 1);
    call->context = p->seq;
}

static void release(mpy_request_t *r) {
    persistent_t *p = r->more;
    if (p->real != MPI_REQUEST_NULL) MPY_REAL(Request_free)(&p->real);
    /* The addresses of its buffers remain arguments of the X_init, which does not use what is there. */
    if (p->fold != NULL) mpy_fold_destroy(p->fold);
    p->fold = NULL;
    mpy_lock(&mpy_objects_lock);
    p->retired = true;
    bool gone = p->comm->foreign;
    if (gone) unlist(p);
    mpy_unlock(&mpy_objects_lock);
    if (gone) discard(p);
}

static const mpy_request_family_t family = {
    .name = "persistent collective",
    .persistent = true,
    .in_drain = true,
    .finish = finish,
    .start = start,
    .traced = traced,
    .let_go = let_go,
    .release = release,
};

/* ---- X_init ---- */

/* All members call this together: which requests are retired on all of them? In the lower half. */
static void agree(mpy_comm_t *c, int n) {
    persistent_t **records = mpy_alloc((size_t)n * sizeof *records);
    uint8_t *mine = mpy_alloc(2 * (size_t)n), *all = mine + n;
    int i;
    list(c, records);
    for (i = 0; i < n; i++) mine[i] = records[i]->retired;
    int rc = mpy_comm_reduce(mine, all, n, MPI_BYTE, MPI_BAND, c);
    if (rc == 0 && c->remote_size != 0) { /* exchange: what the other group found, and what it found of ours */
        for (i = 0; i < n; i++) mine[i] &= all[i];
        rc = mpy_comm_reduce(mine, all, n, MPI_BYTE, MPI_BAND, c);
    }
    for (i = 0; i < n && rc == 0; i++)
        if (all[i]) drop(records[i]);
    mpy_free(mine, 2 * (size_t)n);
    mpy_free(records, (size_t)n * sizeof *records);
}

int mpy_persistent_init(const mpy_persistent_call_t *call, const mpy_argument_t *arguments, MPI_Comm comm,
                        MPI_Info info, mpy_fold_t *fold, const char *name, MPI_Request *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    uint64_t record =
        MPY_TRACE(t, .op = call->op, .flags = MPY_TRACE_PERSISTENT, MPY_TRACE_POST, MPY_TRACE_COLLECTIVE(c));
    mpy_clock_start(t, mpy_row(c->row), name);
    mpy_cross_in_collective(t);
    persistent_t *p = keep_call(call, arguments, c, fold);
    int rc = make(p, mpy_real_info(info));
    if (rc != 0) {
        destroy(p);
    } else {
        mpy_info_merge(&p->info, info);
        const mpy_request_t *r = mpy_request_of_family(th, &family, MPY_REQ_OTHER, c, p);
        const mpy_clock_row_t *parent = mpy_row(c->row);
        p->seq = parent->seq;
        p->cid = mpy_child_cid(parent->cid, p->seq, CHILD);
        p->row = mpy_row_add(p->cid, parent->members, (int)parent->nmembers, r->handle);
        mpy_row(p->row)->name = name;
        insert(p);
        mpy_trace_posted(t, record, r);
        *request = r->handle;
        int n = list(c, NULL);
        if (n % AGREE_EVERY == 0 && !c->foreign) agree(c, n);
    }
    mpy_collective_leave(t, mpy_row(c->row), rc);
    mpy_traced(t, record, rc);
    return rc == 0 ? rc : mpy_error(c, rc, name);
}

static persistent_t *take_retired(const mpy_comm_t *comm) {
    mpy_lock(&mpy_objects_lock);
    persistent_t *p = first;
    while (p != NULL && !(p->comm == comm && p->retired)) p = p->next;
    if (p != NULL) unlist(p);
    mpy_unlock(&mpy_objects_lock);
    return p;
}

void mpy_persistent_comm_free(const mpy_comm_t *comm) {
    for (persistent_t *p; (p = take_retired(comm)) != NULL;) discard(p);
}

/* ---- rebuild ---- */

int mpy_persistent_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    const char *name = "";
    int rc = 0;
    mpy_hook_in(t);
    for (persistent_t *p = first; p != NULL && rc == 0; p = p->next) {
        name = p->call->name;
        p->real = MPI_REQUEST_NULL;
        if (mpy_comm_gone(p->comm)) continue;
        rc = make(p, mpy_real_info(p->info));
        if (rc == 0 && p->retired) rc = MPY_REAL(Request_free)(&p->real);
    }
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild a persistent collective (%s, MPI error %d)", name, rc);
    return -1;
}
