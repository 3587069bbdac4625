/* partitioned.c - partitioned communication: Psend_init, Precv_init, Pready*, Parrived.
 *
 * Upper half, no libc. The real library's partitioned requests aren't used, because they could not be drained. When all
 * partitions of a started send are ready, its data goes as one internal message (internal_messages.c) to the receiver,
 * which keeps it until the matching receive is started. So there is nothing to recreate after a restart.
 *
 * Matching (MPI-4 4.2): the k-th Psend_init of a rank for (communicator, destination, tag) matches the k-th Precv_init
 * there for (communicator, source, tag). Then the n-th start of one matches the n-th start of the other. The internal
 * message contains these numbers.
 *
 * Invariants
 *  1. A send is complete when its data is in an internal message and the message of the previous start has been
 *     received. So a sender is at most one start ahead of the network, and doesn't depend on what its receiver does in
 *     between.
 *  2. Partitions aren't sent separately: all have arrived, or none.
 *  3. The lists and the counts of ready partitions change with mpy_p2p_lock.
 */
#include "request.h"
#include "p2p.h"
#include "clock/clock.h"
#include "core/objects.h"
#include "environment/errors.h"
#include "messages/internal_messages.h"

typedef struct heading { /* of an internal message; the packed data follows */
    uint64_t cid, number, start;
    int64_t tag;
} heading_t;

typedef struct partitioned {
    heading_t heading; /* of the next message */
    int world;         /* of the peer, or MPI_PROC_NULL */
    int partitions, nready;
    bool sent;
    uint32_t under_way; /* number of internal messages in progress */
    uint8_t ready[];
} partitioned_t;

typedef struct stream { /* counts the calls of Psend_init or Precv_init */
    struct stream *next;
    uint64_t cid, calls;
    int world, tag;
    bool sends;
} stream_t;

/* Hash tables of lists. If the network takes messages at once, a sender may be many starts ahead of its receiver. */
enum { LISTS = 1024 };
static stream_t *streams[LISTS];
static mpy_internal_message_t *arrived[LISTS]; /* arrived, but not received by the program */

static const mpy_request_family_t sends, receives;

static unsigned list_of(const heading_t *h, int world) {
    const uint64_t factor = 0x9e3779b97f4a7c15ul;
    uint64_t stream = h->cid ^ (uint64_t)(uint32_t)world << 32 ^ (uint32_t)h->tag;
    return (unsigned)(((stream * factor ^ h->number << 32 ^ h->start) * factor >> 32) % LISTS);
}

static int real_type(const mpy_request_t *r) {
    return r->flags & MPY_RF_REF_TYPE ? r->type->real : mpy_real_datatype(r->datatype);
}

/* ---- internal messages; in the lower half ---- */

static int send(mpy_request_t *r) {
    partitioned_t *p = r->more;
    MPI_Count size, position = 0;
    int rc = MPY_REAL(Type_size_c)(real_type(r), &size); /* packed elements have this length: invariant 4 of fold.c */
    if (rc != 0) return rc;
    size *= r->count;
    mpy_internal_message_t *l = mpy_internal_message_alloc(sizeof p->heading + (size_t)size);
    if (l == NULL) return MPI_ERR_NO_MEM;
    __builtin_memcpy(l->data, &p->heading, sizeof p->heading);
    if (size > 0)
        rc = MPY_REAL(Pack_c)(r->buf, r->count, real_type(r), l->data + sizeof p->heading, size, &position,
                              MPI_COMM_SELF);
    if (rc == 0) return mpy_internal_message_send(l, p->world, MPY_TAG_PARTITIONED, &p->under_way);
    mpy_internal_message_free(l);
    return rc;
}

static void keep(mpy_internal_message_t *l) {
    mpy_internal_message_t **list = &arrived[list_of((const heading_t *)l->data, l->world)];
    l->next = *list;
    *list = l;
}

bool mpy_partitioned_take(int *rc) { return mpy_internal_messages_take(MPY_TAG_PARTITIONED, keep, rc); }

/* With mpy_p2p_lock. */
static mpy_internal_message_t *find(const partitioned_t *p) {
    mpy_internal_message_t **link = &arrived[list_of(&p->heading, p->world)], *l;
    while ((l = *link) != NULL && (l->world != p->world || __builtin_memcmp(l->data, &p->heading, sizeof p->heading)))
        link = &l->next;
    if (l != NULL) *link = l->next;
    return l;
}

static int unpack(mpy_request_t *r, mpy_internal_message_t *l) {
    MPI_Count size, position = 0, bytes = (MPI_Count)(l->bytes - sizeof(heading_t));
    int rc = MPY_REAL(Type_size_c)(real_type(r), &size);
    if (rc != 0 || bytes == 0) return rc;
    MPI_Count room = size * r->count;
    mpy_status_set(&r->status, r->peer, r->tag, (uint64_t)(bytes < room ? bytes : room));
    if (room > 0)
        rc = MPY_REAL(Unpack_c)(l->data + sizeof(heading_t), bytes, &position, r->buf,
                                bytes < room ? bytes / size : r->count, real_type(r), MPI_COMM_SELF);
    return rc == 0 && bytes > room ? MPI_ERR_TRUNCATE : rc;
}

/* ---- families ---- */

/* An orphan is tested with the lock held, by mpy_orphan_reap, or while all other threads are stopped, by the drain. */
static bool lock(const mpy_request_t *r) {
    bool own = !(r->flags & MPY_RF_ORPHAN);
    if (own) mpy_lock(&mpy_p2p_lock);
    return own;
}
static void unlock(bool own) {
    if (own) mpy_unlock(&mpy_p2p_lock);
}

static bool send_done(mpy_p2p_thread_t *th, mpy_request_t *r) {
    (void)th;
    const partitioned_t *p = r->more;
    if (!__atomic_load_n(&p->sent, __ATOMIC_ACQUIRE)) {
        mpy_real_progress(); /* as for a generalized request: a thread of the program makes the partitions */
        return false;
    }
    bool own = lock(r);
    mpy_internal_messages_reap();
    bool done = p->under_way <= 1;
    unlock(own);
    return done;
}

static bool receive_done(mpy_p2p_thread_t *th, mpy_request_t *r) {
    (void)th;
    int rc = MPI_SUCCESS;
    bool own = lock(r);
    mpy_internal_message_t *l = find(r->more);
    if (l == NULL && mpy_internal_messages_take_locked(MPY_TAG_PARTITIONED, keep, &rc)) l = find(r->more);
    unlock(own);
    /* In a drain a lack of memory makes the checkpoint fail, not this call (work() in drain.c). */
    if (l == NULL && (rc == MPI_SUCCESS || MPY_LOWER->phase == MPY_PHASE_FROZEN)) return false;
    mpy_status_set(&r->status, r->peer, r->tag, 0);
    r->error = l != NULL ? unpack(r, l) : rc;
    if (l != NULL) mpy_internal_message_free(l);
    return true;
}

static int start(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    (void)th;
    partitioned_t *p = r->more;
    mpy_cross_in(t);
    p->heading.start++;
    p->sent = false;
    p->nready = 0;
    __builtin_memset(p->ready, 0, (size_t)p->partitions);
    bool nothing = r->family == &receives && p->world == MPI_PROC_NULL;
    if (nothing) mpy_status_set(&r->status, MPI_PROC_NULL, MPI_ANY_TAG, 0);
    mpy_request_activate(r, nothing);
    mpy_cross_out(t);
    return MPI_SUCCESS;
}

static int no_cancel(mpy_thread_t *t, mpy_request_t *r) { /* MPI-4 4.2 forbids it */
    (void)t, (void)r;
    return MPI_ERR_REQUEST;
}

static void release(mpy_request_t *r) {
    partitioned_t *p = r->more;
    mpy_internal_messages_disown(&p->under_way);
    mpy_free(p, sizeof *p + (size_t)p->partitions);
}

static void send_peers(struct mpy_wait_peers *peers, const mpy_request_t *r) {
    /* Otherwise it waits for another thread of the program. */
    if (((const partitioned_t *)r->more)->sent) mpy_wait_peer(peers, r, r->peer);
}
static void receive_peers(struct mpy_wait_peers *peers, const mpy_request_t *r) { mpy_wait_peer(peers, r, r->peer); }

static const mpy_request_family_t sends = {
    .name = "partitioned send", .persistent = true, .poke = send_done, .start = start,
    .cancel = no_cancel, .release = release, .peers = send_peers,
};
static const mpy_request_family_t receives = {
    .name = "partitioned receive", .persistent = true, .poke = receive_done, .start = start,
    .cancel = no_cancel, .release = release, .peers = receive_peers,
};

/* ---- Psend_init, Precv_init ---- */

/* In the lower half. The real library checks the arguments that persistent sends and receives also have. */
static int check(const mpy_request_family_t *family, const void *buf, int partitions, MPI_Count count, int datatype,
                 int peer, int tag, int comm, int info) {
    int request, rc;
    if (info != MPI_INFO_NULL && !mpy_is_builtin(info) && mpy_lookup(MPY_INFO, info) == NULL) return MPI_ERR_INFO;
    if (partitions <= 0) return MPI_ERR_ARG;
    if (peer == MPI_ANY_SOURCE) return MPI_ERR_RANK;
    if (tag == MPI_ANY_TAG) return MPI_ERR_TAG;
    if (family == &sends)
        rc = MPY_REAL(Send_init_c)(buf, count, mpy_real_datatype(datatype), peer, tag, mpy_real_comm(comm), &request);
    else
        rc = MPY_REAL(Recv_init_c)((void *)buf, count, mpy_real_datatype(datatype), peer, tag, mpy_real_comm(comm),
                                   &request);
    return rc != 0 ? rc : MPY_REAL(Request_free)(&request);
}

static uint64_t count_call(uint64_t cid, int world, int tag, bool sending) {
    mpy_lock(&mpy_p2p_lock);
    stream_t **list = &streams[list_of(&(heading_t){.cid = cid, .tag = tag}, world)], *s = *list;
    while (s != NULL && (s->cid != cid || s->world != world || s->tag != tag || s->sends != sending)) s = s->next;
    if (s == NULL) {
        s = mpy_alloc(sizeof *s);
        *s = (stream_t){*list, cid, 0, world, tag, sending};
        *list = s;
    }
    uint64_t n = ++s->calls;
    mpy_unlock(&mpy_p2p_lock);
    return n;
}

void mpy_partitioned_comm_free(const mpy_comm_t *comm) {
    uint64_t cid = mpy_row(comm->row)->cid;
    mpy_lock(&mpy_p2p_lock);
    for (int i = 0; i < LISTS; i++)
        for (stream_t **link = &streams[i]; *link != NULL;) {
            stream_t *s = *link;
            if (s->cid != cid) {
                link = &s->next;
                continue;
            }
            *link = s->next;
            mpy_free(s, sizeof *s);
        }
    mpy_unlock(&mpy_p2p_lock);
}

static int init(const mpy_request_family_t *family, const void *buf, int partitions, MPI_Count count, int datatype,
                int peer, int tag, MPI_Comm comm, MPI_Info info, MPI_Request *request, const char *name) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_cross_in(t);
    int rc = check(family, buf, partitions, count, datatype, peer, tag, comm, info);
    int world = rc != 0 || peer == MPI_PROC_NULL ? MPI_PROC_NULL : mpy_peer_world(c, peer);
    /* the private communicator contains only ranks of the job */
    if (world == MPY_FOREIGN) rc = MPI_ERR_UNSUPPORTED_OPERATION;
    partitioned_t *p = rc == 0 ? mpy_try_alloc(sizeof *p + (size_t)partitions) : NULL;
    if (rc == 0 && p == NULL) rc = MPI_ERR_NO_MEM;
    if (rc == 0) {
        p->heading = (heading_t){.cid = mpy_row(c->row)->cid, .tag = tag};
        p->heading.number = count_call(p->heading.cid, world, tag, family == &sends);
        p->world = world;
        p->partitions = partitions;
        mpy_request_t *r = mpy_request_of_family(th, family, MPY_REQ_FAMILY, c, p);
        r->buf = (void *)buf;
        r->count = partitions * count;
        r->datatype = datatype;
        r->peer = peer;
        r->tag = tag;
        if (!mpy_is_builtin(datatype)) mpy_request_ref_type(r);
        *request = r->handle;
    }
    mpy_cross_out(t);
    return rc == 0 ? rc : mpy_error(c, rc, name);
}

MPY_API int PMPI_Psend_init(const void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int dest, int tag,
                            MPI_Comm comm, MPI_Info info, MPI_Request *request) {
    return init(&sends, buf, partitions, count, datatype, dest, tag, comm, info, request, "MPI_Psend_init");
}

MPY_API int PMPI_Precv_init(void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int dest, int tag,
                            MPI_Comm comm, MPI_Info info, MPI_Request *request) {
    return init(&receives, buf, partitions, count, datatype, dest, tag, comm, info, request, "MPI_Precv_init");
}

/* ---- Pready ---- */

/* A request of the family, or NULL. */
static mpy_request_t *of_family(int handle, const mpy_request_family_t *family) {
    mpy_request_t *r = handle != MPI_REQUEST_NULL ? mpy_request_valid(handle) : NULL;
    return r != NULL && r->flags & MPY_RF_FAMILY && r->family == family ? r : NULL;
}

/* Marks partitions list[0 .. n-1] as ready; or n partitions from `first` on if there is no list. In the lower half. */
static int set_ready(mpy_request_t *r, int n, const int *list, int first) {
    partitioned_t *p = r->more;
    int rc = MPI_SUCCESS;
    mpy_lock(&mpy_p2p_lock);
    for (int i = 0; i < n && rc == 0; i++) {
        int partition = list != NULL ? list[i] : first + i;
        if (partition < 0 || partition >= p->partitions) rc = MPI_ERR_OTHER;
    }
    for (int i = 0; i < n && rc == 0; i++) {
        uint8_t *marked = &p->ready[list != NULL ? list[i] : first + i];
        if (*marked) rc = MPI_ERR_OTHER;
        p->nready += !*marked;
        *marked = 1;
    }
    bool all = rc == 0 && n > 0 && p->nready == p->partitions;
    mpy_unlock(&mpy_p2p_lock);
    if (!all) return rc;
    if (p->world != MPI_PROC_NULL) rc = send(r);
    __atomic_store_n(&p->sent, true, __ATOMIC_RELEASE);
    return rc;
}

static int ready(MPI_Request request, int n, const int *list, int first, const char *name) {
    mpy_request_t *r = of_family(request, &sends);
    if (r == NULL || r->flags & (MPY_RF_INACTIVE | MPY_RF_COMPLETE)) return mpy_error(NULL, MPI_ERR_REQUEST, name);
    const mpy_comm_t *c = mpy_request_comm(r);
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = set_ready(r, n, list, first);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(c, rc, name);
}

MPY_API int PMPI_Pready(int partition, MPI_Request request) { return ready(request, 1, NULL, partition, "MPI_Pready"); }

MPY_API int PMPI_Pready_range(int partition_low, int partition_high, MPI_Request request) {
    if (partition_low > partition_high) return mpy_error(NULL, MPI_ERR_OTHER, "MPI_Pready_range");
    return ready(request, partition_high - partition_low + 1, NULL, partition_low, "MPI_Pready_range");
}

MPY_API int PMPI_Pready_list(int length, const int array_of_partitions[], MPI_Request request) {
    if (length < 0) return mpy_error(NULL, MPI_ERR_ARG, "MPI_Pready_list");
    return ready(request, length, array_of_partitions, 0, "MPI_Pready_list");
}

/* ---- Parrived ---- */

MPY_API int PMPI_Parrived(MPI_Request request, int partition, int *flag) {
    mpy_request_t *r = of_family(request, &receives);
    if (r == NULL) return mpy_error(NULL, MPI_ERR_REQUEST, "MPI_Parrived");
    const partitioned_t *p = r->more;
    if (partition < 0 || partition >= p->partitions)
        return mpy_error(mpy_request_comm(r), MPI_ERR_OTHER, "MPI_Parrived");
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_cross_in(t);
    *flag = mpy_request_poke(th, r);
    mpy_cross_out(t);
    if (*flag) {
        mpy_p2p_done(t, th);
    } else {
        mpy_wait_t w = {.handles = &request, .n = 1, .mode = MPY_WAIT_ALL};
        mpy_poll_failed(t, th, &w);
    }
    return MPI_SUCCESS;
}
