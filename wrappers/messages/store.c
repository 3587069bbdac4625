/* store.c - messages that a drain took off the network, until the program receives them; and synchronous sends across a
 * drain.
 *
 * Upper half, no libc; functions are called in the lower half (lower TLS) or in hooks.
 *
 * To deliver a stored message, its bytes are sent to ourselves on the private communicator and received there with the
 * program's buffer, count and datatype. So type maps and short messages behave as in the real library. Not truncation:
 * Open MPI 4.1 and 5.0 report no error of a message to oneself that is too long, or write beyond the buffer. So no more
 * is sent than the buffer holds.
 *
 * Synchronous sends. A drain receives a message although its receiver hasn't matched it; its sender must continue to
 * wait. To name the message to the receiver, the sender counts, per incomplete synchronous send, the later sends on the
 * same (communicator, destination, tag). MPI doesn't let messages of one such stream overtake each other. So the
 * unmatched ones are its last ones, and all of them are in the receiver's store after the drain. If `later` is below
 * their number, the message is the later-th from the end; otherwise it was matched (drain.c does this exchange). When
 * the program matches a marked message, the receiver sends an ack (internal_messages.c). A sender that waits or tests
 * receives acks.
 *
 * Invariants
 *  1. The list is in order of arrival per (communicator, source). Messages of older drains come first. Guarded by
 *     mpy_p2p_lock.
 *  2. mpy_store_count is the list's length. Messages held by an MPI_Message are in no list.
 */
#include "store.h"
#include "internal_messages.h"
#include "p2p/request.h"

volatile uint32_t mpy_store_count;
static mpy_stored_t *first, *last;

/* ---- the list ---- */

void mpy_store_append(mpy_stored_t *m) {
    m->next = NULL;
    m->prev = last;
    *(last ? &last->next : &first) = m;
    last = m;
    mpy_store_count++;
}

static void unlink_stored(mpy_stored_t *m) {
    *(m->prev ? &m->prev->next : &first) = m->next;
    *(m->next ? &m->next->prev : &last) = m->prev;
    mpy_store_count--;
}

static void free_stored(mpy_stored_t *m) {
    if (m->bytes) mpy_free(m->data, m->bytes);
    mpy_free(m, sizeof *m);
}

static mpy_stored_t *find(const mpy_comm_t *c, int source, int tag) {
    for (mpy_stored_t *m = first; m != NULL; m = m->next)
        if (m->comm == c && (source == m->source || source == MPI_ANY_SOURCE) && (tag == m->tag || tag == MPI_ANY_TAG))
            return m;
    return NULL;
}

/* Of the stored messages of a stream, the one with `position` later ones. NULL if there is none. */
mpy_stored_t *mpy_store_from_end(const mpy_comm_t *c, int source, int tag, uint32_t position) {
    for (mpy_stored_t *m = last; m != NULL; m = m->prev)
        if (m->comm == c && m->source == source && m->tag == tag && position-- == 0) return m;
    return NULL;
}

bool mpy_store_probe(const mpy_comm_t *c, int source, int tag, MPI_Status *status) {
    mpy_lock(&mpy_p2p_lock);
    const mpy_stored_t *m = find(c, source, tag);
    if (m != NULL && status != MPI_STATUS_IGNORE) mpy_status_set(status, m->source, m->tag, m->bytes);
    mpy_unlock(&mpy_p2p_lock);
    return m != NULL;
}

/* ---- acks ---- */

/* The program has matched a message that a synchronous send waits for. */
static void send_ack(const mpy_stored_t *m) {
    mpy_internal_message_send_short(&m->sync_id, sizeof m->sync_id, m->sync_world, MPY_TAG_ACK);
}

/* ---- matching ---- */

mpy_stored_t *mpy_store_extract(const mpy_comm_t *c, int source, int tag) {
    mpy_lock(&mpy_p2p_lock);
    mpy_stored_t *m = find(c, source, tag);
    if (m != NULL) unlink_stored(m);
    mpy_unlock(&mpy_p2p_lock);
    if (m != NULL && m->sync_id) {
        send_ack(m); /* a probe that extracts it is a match */
        m->sync_id = 0;
    }
    return m;
}

static int delivery_tag(const mpy_thread_t *t) { return MPY_TAG_DELIVER + (int)(t - MPY_UPPER->threads); }

typedef struct delivery {
    int real;       /* the posted receive */
    MPI_Count room; /* bytes */
} delivery_t;

static int post_delivery(const mpy_thread_t *t, void *buf, MPI_Count count, int datatype, delivery_t *d) {
    MPI_Count size = 0; /* Type_size_x: older libraries have no Type_size_c */
    int rc = MPY_REAL(Type_size_x)(datatype, &size);
    d->room = count * size;
    if (rc == MPI_SUCCESS)
        rc = mpy_real_irecv(buf, count, datatype, mpy_private_rank, delivery_tag(t), mpy_private_comm, &d->real);
    return rc;
}

/* The second half of a delivery. Frees m. */
static int deliver(mpy_thread_t *t, mpy_stored_t *m, delivery_t *d, MPI_Status *status) {
    int real_send;
    MPI_Status own;
    bool is_long = (MPI_Count)m->bytes > d->room;
    int rc = mpy_bytes_isend(m->data, is_long ? (size_t)d->room : m->bytes, mpy_private_rank, delivery_tag(t),
                             mpy_private_comm, &real_send);
    if (rc) MPY_LOWER->svc->die("can't deliver a stored message", 1);
    rc = MPY_REAL(Wait)(&d->real, &own);
    MPY_REAL(Wait)(&real_send, MPI_STATUS_IGNORE);
    mpy_status_set(status, m->source, m->tag, mpy_status_bytes(&own));
    if (m->sync_id) send_ack(m);
    free_stored(m);
    return rc == MPI_SUCCESS && is_long ? MPI_ERR_TRUNCATE : rc;
}

bool mpy_store_deliver(mpy_thread_t *t, mpy_stored_t *m, void *buf, MPI_Count count, int datatype, MPI_Status *status,
                       int *rc) {
    delivery_t d;
    *rc = post_delivery(t, buf, count, datatype, &d);
    if (*rc) return false;
    *rc = deliver(t, m, &d, status);
    return true;
}

bool mpy_store_receive(mpy_thread_t *t, void *buf, MPI_Count count, int datatype, int source, int tag, mpy_comm_t *c,
                       MPI_Status *status, int *rc) {
    delivery_t d;
    mpy_lock(&mpy_p2p_lock);
    mpy_stored_t *m = find(c, source, tag);
    /* Wrong arguments: the caller's own attempt fails in the same way and does not consume the message. */
    if (m != NULL && post_delivery(t, buf, count, datatype, &d) != MPI_SUCCESS) m = NULL;
    if (m != NULL) unlink_stored(m);
    mpy_unlock(&mpy_p2p_lock);
    if (m == NULL) return false;
    *rc = deliver(t, m, &d, status);
    return true;
}

mpy_stored_t *mpy_stored_make(mpy_comm_t *c, const MPI_Status *probed) {
    size_t bytes = mpy_status_bytes(probed);
    void *data = bytes ? mpy_try_alloc(bytes) : NULL;
    if (bytes && data == NULL) return NULL;
    mpy_bytes_t as;
    if (mpy_bytes_describe(bytes, &as) != MPI_SUCCESS) {
        if (bytes) mpy_free(data, bytes);
        return NULL;
    }
    mpy_stored_t *m = mpy_alloc(sizeof *m);
    m->as = as;
    m->comm = c;
    m->source = probed->MPI_SOURCE;
    m->tag = probed->MPI_TAG;
    m->bytes = bytes;
    m->data = data;
    return m;
}

void mpy_stored_mrecv(mpy_stored_t *m, int *real_message) {
    int rc = MPY_REAL(Mrecv)(m->data, m->as.count, m->as.datatype, real_message, MPI_STATUS_IGNORE);
    mpy_bytes_free(&m->as);
    if (rc != MPI_SUCCESS) MPY_LOWER->svc->die("can't receive a message of the program for a checkpoint", 1);
}

void mpy_stored_drop(mpy_stored_t *m) {
    mpy_bytes_free(&m->as);
    free_stored(m);
}

/* ---- synchronous sends ---- */

static mpy_request_t *ssends; /* incomplete, as the program sees them; newest first */

void mpy_ssend_add(mpy_request_t *r) {
    r->order = __atomic_add_fetch(&mpy_request_order, 1, __ATOMIC_RELAXED);
    r->later = 0;
    mpy_lock(&mpy_p2p_lock);
    r->prev = NULL;
    r->next = ssends;
    if (ssends) ssends->prev = r;
    ssends = r;
    r->flags |= MPY_RF_LISTED;
    r->comm->incomplete_ssends++;
    mpy_unlock(&mpy_p2p_lock);
}

void mpy_ssend_remove(mpy_request_t *r) {
    mpy_lock(&mpy_p2p_lock);
    *(r->prev ? &r->prev->next : &ssends) = r->next;
    if (r->next) r->next->prev = r->prev;
    r->flags &= ~(uint32_t)MPY_RF_LISTED;
    r->comm->incomplete_ssends--;
    mpy_unlock(&mpy_p2p_lock);
}

void mpy_ssend_later_slow(const mpy_comm_t *c, int dest, int tag) {
    mpy_lock(&mpy_p2p_lock);
    for (mpy_request_t *r = ssends; r != NULL; r = r->next)
        if (r->comm == c && r->peer == dest && r->tag == tag) r->later++;
    mpy_unlock(&mpy_p2p_lock);
}

mpy_request_t *mpy_ssend_first(void) { return ssends; }

static void acknowledge(mpy_internal_message_t *l) {
    uint64_t id;
    __builtin_memcpy(&id, l->data, sizeof id);
    for (mpy_request_t *r = ssends; r != NULL; r = r->next) /* not found: the program has freed the request */
        if (r->order == id) r->flags = (r->flags & ~(uint32_t)MPY_RF_SYNC) | MPY_RF_COMPLETE;
    mpy_internal_message_free(l);
}

bool mpy_ack_poll(void) {
    int unused; /* without memory, the message is received at a later poll */
    return mpy_internal_messages_take(MPY_TAG_ACK, acknowledge, &unused);
}

/* ---- a communicator is freed ---- */

void mpy_p2p_comm_free(mpy_comm_t *comm) {
    mpy_lock(&mpy_p2p_lock);
    for (uint32_t i = 0; i < mpy_request_limit; i++) {
        mpy_request_t *r = mpy_request_at(i);
        if (r->kind == MPY_REQ_FREE || r->comm != comm || r->flags & MPY_RF_REF_COMM) continue;
        mpy_object_ref(&comm->obj);
        r->flags |= MPY_RF_REF_COMM;
    }
    for (mpy_stored_t *m = first, *next; m != NULL; m = next) {
        next = m->next;
        if (m->comm != comm) continue;
        unlink_stored(m);
        free_stored(m);
    }
    mpy_unlock(&mpy_p2p_lock);
}
