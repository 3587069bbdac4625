/* offer.c - data that other ranks receive when they need it: contributions to reductions (fold.c).
 *
 * Upper half, no libc; functions are called in the lower half (lower TLS) or in hooks.
 *
 * An offer is a copy of the data. Each of its pieces is sent to each rank by a synchronous send on the private
 * communicator. The real library continues a send in any call once its receive is posted, so the receiver does not
 * depend on what this rank's program does.
 *
 * Invariants
 *  1. A piece's send is complete if and only if its receive was posted. While nobody requests a piece, it exists only
 *     here.
 *  2. A drain completes the receives that were posted, and waits until as many sends are complete as their receivers
 *     have requested (drain.c). Sends that nobody has requested stay open, like a receive that nothing matches; a
 *     restart sends them again.
 *  3. Tags of the open offers of a rank differ. The pieces for a rank are sent, and received, in their order.
 *  4. The list and the counts change with mpy_p2p_lock.
 *  5. A sender may learn that a piece was received only while the receiver calls the real library, and the real
 *     MPI_Finalize isn't such a call. So a rank enters MPI_Finalize only when all ranks from which it has received have
 *     told it (by an internal message) that they know.
 */
#include "offer.h"
#include "p2p/request.h"
#include "internal_messages.h"

typedef struct sending {
    int real; /* MPI_REQUEST_NULL: received */
    int32_t world;
    size_t at;
} sending_t;

struct mpy_offer {
    mpy_offer_t *next;
    char *data;
    sending_t *sendings;
    size_t bytes, piece, pieces;
    int readers;
    size_t n, open; /* number of sends that were started, and of those that are not complete */
    int32_t tag;
    bool left;
};

uint64_t *mpy_offers_received, *mpy_offers_asked;

static mpy_offer_t *offers;
static int32_t last_tag;

static size_t sendings_bytes(const mpy_offer_t *o) { return (size_t)o->readers * o->pieces * sizeof(sending_t); }

static void destroy(mpy_offer_t *o) {
    mpy_free(o->data, o->bytes);
    mpy_free(o->sendings, sendings_bytes(o));
    mpy_free(o, sizeof *o);
}

static int send(const mpy_offer_t *o, sending_t *s) {
    size_t left = o->bytes - s->at, bytes = left < o->piece ? left : o->piece;
    return mpy_real_isend_of(MPY_FN_Issend, MPY_FN_Issend_c, o->data + s->at, (MPI_Count)bytes, MPI_BYTE, s->world,
                             MPY_TAG_OFFER + o->tag, mpy_private_comm, &s->real);
}

/* Call all of these with the lock. */
static bool tag_used(int32_t tag) {
    const mpy_offer_t *o = offers;
    while (o != NULL && o->tag != tag) o = o->next;
    return o != NULL;
}

static bool take_tag(int32_t *tag) {
    int32_t tries = 0;
    do last_tag = (last_tag + 1) % MPY_OFFERS_MAX;
    while (tag_used(last_tag) && ++tries < MPY_OFFERS_MAX);
    *tag = last_tag;
    return tries < MPY_OFFERS_MAX;
}

static bool look(mpy_offer_t *o) {
    size_t before = o->open;
    for (size_t i = 0; i < o->n && o->open > 0; i++) {
        sending_t *s = &o->sendings[i];
        int done = 0;
        if (s->real != MPI_REQUEST_NULL) MPY_REAL(Test)(&s->real, &done, MPI_STATUS_IGNORE);
        if (!done) continue;
        s->real = MPI_REQUEST_NULL;
        mpy_offers_received[s->world]++;
        o->open--;
    }
    return o->open < before;
}

static bool look_at_all(void) {
    bool moved = false;
    for (mpy_offer_t **link = &offers; *link != NULL;) {
        mpy_offer_t *o = *link;
        moved |= look(o);
        if (o->open > 0 || !o->left) {
            link = &o->next;
        } else {
            *link = o->next;
            destroy(o);
        }
    }
    return moved;
}

mpy_offer_t *mpy_offer_make(size_t bytes, size_t piece, int n) {
    mpy_offer_t *o = mpy_alloc(sizeof *o);
    o->bytes = bytes;
    o->piece = piece;
    o->pieces = bytes / piece + (bytes % piece > 0);
    o->readers = n;
    o->data = mpy_try_alloc(bytes);
    o->sendings = mpy_try_alloc(sendings_bytes(o));
    mpy_lock(&mpy_p2p_lock);
    look_at_all();
    bool made = o->data != NULL && o->sendings != NULL && take_tag(&o->tag);
    if (made) {
        o->next = offers;
        offers = o;
    }
    mpy_unlock(&mpy_p2p_lock);
    if (made) return o;
    destroy(o);
    return NULL;
}

char *mpy_offer_data(mpy_offer_t *o) { return o->data; }
int32_t mpy_offer_tag(const mpy_offer_t *o) { return o->tag; }

int mpy_offer_post(mpy_offer_t *o, const int32_t *worlds) {
    int rc = MPI_SUCCESS;
    mpy_lock(&mpy_p2p_lock);
    for (size_t k = 0; k < o->pieces && rc == 0; k++)
        for (int i = 0; i < o->readers && rc == 0; i++) {
            sending_t *s = &o->sendings[o->n];
            *s = (sending_t){.world = worlds[i], .at = k * o->piece};
            if ((rc = send(o, s)) == 0) o->n++, o->open++;
        }
    mpy_unlock(&mpy_p2p_lock);
    return rc;
}

void mpy_offer_leave(mpy_offer_t *o) {
    mpy_lock(&mpy_p2p_lock);
    o->left = true;
    look_at_all();
    mpy_unlock(&mpy_p2p_lock);
}

int mpy_offer_ask(int32_t world, int32_t tag, void *to, size_t bytes, int *real) {
    int rc = mpy_real_irecv(to, (MPI_Count)bytes, MPI_BYTE, world, MPY_TAG_OFFER + tag, mpy_private_comm, real);
    if (rc == 0) __atomic_add_fetch(&mpy_offers_asked[world], 1, __ATOMIC_RELAXED);
    return rc;
}

bool mpy_offers_look(void) {
    if (MPY_LIKELY(offers == NULL)) return false;
    mpy_lock(&mpy_p2p_lock);
    bool moved = look_at_all();
    mpy_unlock(&mpy_p2p_lock);
    return moved;
}

/* ---- the end ---- */

static bool said;
static int heard; /* number of ranks that have told us */

static void hear(mpy_internal_message_t *l) {
    heard++;
    mpy_internal_message_free(l);
}

bool mpy_offers_take_ends(void) {
    int unused; /* without memory, the message is received at a later call */
    return mpy_internal_messages_take(MPY_TAG_OFFERS_END, hear, &unused);
}

static bool any_open(void) {
    bool open = false;
    mpy_lock(&mpy_p2p_lock);
    look_at_all();
    for (const mpy_offer_t *o = offers; o != NULL; o = o->next) open |= o->open > 0;
    mpy_unlock(&mpy_p2p_lock);
    return open;
}

static void say(void) {
    const char nothing = 0;
    for (int p = 0; p < mpy_world->size; p++)
        if (mpy_offers_received[p] > 0)
            mpy_internal_message_send_short(&nothing, sizeof nothing, p, MPY_TAG_OFFERS_END);
}

bool mpy_offers_end(void) {
    int waited_for = 0;
    if (any_open()) return false;
    if (!said) say();
    said = true;
    for (int p = 0; p < mpy_world->size; p++) waited_for += mpy_offers_asked[p] > 0;
    /* a rank that waits for no other makes no call of the real library here */
    if (heard < waited_for) mpy_offers_take_ends();
    return heard == waited_for;
}

int mpy_offers_rebuild(void) {
    int rc = MPI_SUCCESS;
    for (mpy_offer_t *o = offers; o != NULL; o = o->next)
        for (size_t i = 0; i < o->n && rc == 0; i++)
            if (o->sendings[i].real != MPI_REQUEST_NULL) rc = send(o, &o->sendings[i]);
    return rc;
}
