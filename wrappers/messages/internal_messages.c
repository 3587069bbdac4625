/* internal_messages.c - messages between the ranks' runtimes: acks of matched synchronous sends (store.c), data of
 * partitioned communication (partitioned.c). They use the private communicator and are not messages of the program.
 *
 * Upper half, no libc; functions are called in the lower half (lower TLS) or in hooks.
 *
 * Invariants
 *  1. Internal messages are counted by world rank, when the real library accepts them and when they are received. The
 *     drain receives all that are in progress, so that none is in the network at a snapshot.
 *  2. A message that is sent stays here until the real send has finished; then its sender is informed. mpy_p2p_lock
 *     guards them.
 */
#include "internal_messages.h"
#include "bytes.h"
#include "p2p/request.h"

int mpy_private_comm = MPI_COMM_NULL;
int mpy_private_rank;
uint64_t *mpy_internal_messages_sent, *mpy_internal_messages_received;

static mpy_internal_message_t *under_way, *arriving;

mpy_internal_message_t *mpy_internal_message_alloc(size_t bytes) {
    mpy_internal_message_t *l = mpy_try_alloc(sizeof *l + bytes);
    if (l != NULL) l->bytes = bytes;
    return l;
}

void mpy_internal_message_free(mpy_internal_message_t *l) { mpy_free(l, sizeof *l + l->bytes); }

void mpy_internal_messages_reap(void) {
    for (mpy_internal_message_t **link = &under_way; *link != NULL;) {
        mpy_internal_message_t *l = *link;
        int done = 0;
        MPY_REAL(Test)(&l->real, &done, MPI_STATUS_IGNORE);
        if (!done) {
            link = &l->next;
            continue;
        }
        *link = l->next;
        if (l->counter != NULL) --*l->counter;
        mpy_internal_message_free(l);
    }
}

bool mpy_internal_messages_all_sent(void) {
    mpy_lock(&mpy_p2p_lock);
    mpy_internal_messages_reap();
    bool gone = under_way == NULL;
    mpy_unlock(&mpy_p2p_lock);
    return gone;
}

int mpy_internal_message_send(mpy_internal_message_t *l, int world, int tag, uint32_t *counter) {
    mpy_lock(&mpy_p2p_lock);
    mpy_internal_messages_reap();
    int rc = mpy_bytes_isend(l->data, l->bytes, world, tag, mpy_private_comm, &l->real);
    if (rc == MPI_SUCCESS) {
        l->next = under_way;
        under_way = l;
        l->counter = counter;
        if (counter != NULL) ++*counter;
        mpy_internal_messages_sent[world]++;
    }
    mpy_unlock(&mpy_p2p_lock);
    if (rc != MPI_SUCCESS) mpy_internal_message_free(l);
    return rc;
}

int mpy_internal_message_send_short(const void *data, size_t bytes, int world, int tag) {
    mpy_internal_message_t *l = mpy_internal_message_alloc(bytes);
    if (l == NULL) MPY_LOWER->svc->die("out of memory in the MPI wrappers", 1);
    __builtin_memcpy(l->data, data, bytes);
    return mpy_internal_message_send(l, world, tag, NULL);
}

void mpy_internal_messages_disown(const uint32_t *counter) {
    mpy_lock(&mpy_p2p_lock);
    for (mpy_internal_message_t *l = under_way; l != NULL; l = l->next)
        if (l->counter == counter) l->counter = NULL;
    mpy_unlock(&mpy_p2p_lock);
}

/* Does not use a blocking receive: the sender of a long message may be frozen by now. */
static int accept_messages(int tag) {
    for (;;) {
        MPI_Status status;
        int found = 0, message, rc;
        rc = MPY_REAL(Iprobe)(MPI_ANY_SOURCE, tag, mpy_private_comm, &found, &status);
        if (rc != MPI_SUCCESS || !found) return MPI_SUCCESS;
        mpy_internal_message_t *l = mpy_internal_message_alloc(mpy_status_bytes(&status));
        if (l == NULL) return MPI_ERR_NO_MEM;
        mpy_bytes_t b;
        if (mpy_bytes_describe(l->bytes, &b) != MPI_SUCCESS) {
            mpy_internal_message_free(l);
            return MPI_ERR_NO_MEM;
        }
        rc = MPY_REAL(Improbe)(status.MPI_SOURCE, tag, mpy_private_comm, &found, &message, &status);
        if (rc != MPI_SUCCESS || !found) {
            mpy_bytes_free(&b);
            mpy_internal_message_free(l);
            return MPI_SUCCESS;
        }
        rc = MPY_REAL(Imrecv)(l->data, b.count, b.datatype, &message, &l->real);
        mpy_bytes_free(&b);
        if (rc != MPI_SUCCESS) MPY_LOWER->svc->die("can't receive a message of the runtime", 1);
        l->world = status.MPI_SOURCE;
        l->tag = tag;
        l->next = arriving;
        arriving = l;
    }
}

bool mpy_internal_messages_take_locked(int tag, void (*deliver)(mpy_internal_message_t *l), int *rc) {
    bool any = false;
    *rc = accept_messages(tag);
    for (mpy_internal_message_t **link = &arriving; *link != NULL;) {
        mpy_internal_message_t *l = *link;
        int done = 0;
        if (l->tag == tag) MPY_REAL(Test)(&l->real, &done, MPI_STATUS_IGNORE);
        if (!done) {
            link = &l->next;
            continue;
        }
        *link = l->next;
        mpy_internal_messages_received[l->world]++;
        deliver(l);
        any = true;
    }
    return any;
}

bool mpy_internal_messages_take(int tag, void (*deliver)(mpy_internal_message_t *l), int *rc) {
    mpy_lock(&mpy_p2p_lock);
    bool any = mpy_internal_messages_take_locked(tag, deliver, rc);
    mpy_unlock(&mpy_p2p_lock);
    return any;
}
