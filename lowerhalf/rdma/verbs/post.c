/* post.c - the data verbs that post: straight, noted or slow (slow_path.c).
 *
 * Invariants:
 * 1. Journal entries [first, posted) are on the leg in use, [posted, next) are held back. In the default state none is
 *    held back. While a queue pair is `unread` its journals hold only what is held back; the outstanding requests come
 *    before that.
 * 2. `first` of a journal is changed under the lock of the CQ that it completes to, `next` under the queue pair's lock.
 *    A switch holds the device's lock and both of these.
 */
#include "failover/failover.h"
#include "objects/device.h"
#include "objects/legs.h"
#include "verbs/verbs.h"

#include <errno.h>

/* For status displays. Threads that post at the same time may lose a few counts; a lock would cost too much. */
static void count(shift_qp_t *q, const struct ibv_send_wr *wr, const struct ibv_send_wr *end) {
    uint64_t posted = 0, bytes = 0;
    for (; wr != end; wr = wr->next, posted++)
        for (int i = 0; i < wr->num_sge; i++)
            bytes += wr->sg_list[i].length;
    __atomic_store_n(&q->posted, q->posted + posted, __ATOMIC_RELAXED);
    __atomic_store_n(&q->bytes, q->bytes + bytes, __ATOMIC_RELAXED);
}

/* A post that can't go directly to the default leg: appends it to the journal, and posts as many entries as the state
 * allows. */
static int post_send_slowly(shift_qp_t *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    int r = 0;
    pthread_mutex_lock(&q->o.device->lock);
    if (q->states.sq == SHIFT_SQ_RELEASED || q->straight) {
        bool released = !q->straight;
        pthread_mutex_unlock(&q->o.device->lock);
        return released ? q->post_send(q->qp, wr, bad) : shift_post_send(q->qp, wr, bad);
    }
    shift_spin_lock(&q->lock);
    const struct ibv_send_wr *first = wr;
    for (; wr && r == 0; wr = wr->next)
        if (!shift_journal_send(&q->sends, wr)) {
            *bad = wr;
            r = ENOMEM;
        }
    count(q, first, r == 0 ? NULL : *bad);
    shift_spin_unlock(&q->lock);
    shift_repost_sends(q);
    if (q->states.sq == SHIFT_SQ_WAIT_SIGNALED || q->lacks_key)
        shift_wake(q->o.device);
    pthread_mutex_unlock(&q->o.device->lock);
    return r;
}

/* The journal has the depth that the program requested for the queue. A provider may accept more (Soft-RoCE frees a
 * slot at the acknowledgement, not at the poll). Then the oldest requests are acknowledged. Their completions have not
 * been polled yet, and will find nothing to retire. */
static bool make_room(shift_qp_t *q) {
    shift_spin_lock(&q->send_cq->lock);
    shift_spin_lock(&q->lock);
    bool room = q->direct && shift_journal_full(&q->sends);
    if (room) {
        q->overtaken += shift_signaled(q, shift_journal_at(&q->sends, q->sends.first));
        shift_journal_drop(&q->sends, 1);
    }
    shift_spin_unlock(&q->lock);
    shift_spin_unlock(&q->send_cq->lock);
    return room;
}

/* True for errors that mean that the RNIC is gone; false if a request can't be posted (or not now). */
static bool gone(int error) {
    return error != 0 && error != ENOMEM && error != EINVAL && error != ENOSPC && error != EOPNOTSUPP &&
           error != EAGAIN;
}

/* The provider has refused a post permanently: begins a switch. False: no other path is left. */
static bool fails_over(shift_qp_t *q, int error) {
    if (!gone(error) || q->plain)
        return false;
    pthread_mutex_lock(&q->o.device->lock);
    if (q->linked && q->direct)
        shift_fail(q, NULL);
    bool away = q->linked && !q->direct && q->states.sq != SHIFT_SQ_RELEASED;
    pthread_mutex_unlock(&q->o.device->lock);
    return away;
}

int shift_post_failed(shift_qp_t *q, int error) { return fails_over(q, error) ? 0 : error; }

/* Handles the requests from `left` on. NULL: the provider has accepted all, but can't send them. */
static int post_send_refused(shift_qp_t *q, int r, struct ibv_send_wr *left, struct ibv_send_wr **bad) {
    if (fails_over(q, r))
        return left ? post_send_slowly(q, left, bad) : 0;
    *bad = left;
    return r;
}

/* For a queue pair with a journal. */
static int post_send_noted(shift_qp_t *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    shift_spin_lock(&q->lock);
    if (unlikely(!q->direct || q->unread)) {
        shift_spin_unlock(&q->lock);
        return post_send_slowly(q, wr, bad);
    }
    shift_journal_t *j = &q->sends;
    uint64_t before = j->next;
    uint32_t psn = q->legs[0].next_psn;
    for (struct ibv_send_wr *w = wr; w; w = w->next) {
        shift_send_t *e = shift_journal_send(j, w);
        if (unlikely(!e)) {
            if (shift_journal_full(j) && w == wr) {
                shift_spin_unlock(&q->lock);
                return make_room(q) ? post_send_noted(q, wr, bad) : (*bad = wr, ENOMEM);
            }
            break; /* the provider won't accept more, either */
        }
        shift_number(q, e);
    }
    struct ibv_send_wr *left = NULL;
    int r = q->post_send(q->qp, wr, &left);
    if (unlikely(r != 0)) { /* the provider refused `left` and the rest */
        uint64_t taken = before;
        for (struct ibv_send_wr *w = wr; w && w != left; w = w->next)
            taken++;
        j->next = taken;
        q->legs[0].next_psn = psn;
        for (uint64_t s = before; s < taken; s++)
            shift_number(q, shift_journal_at(j, s));
    }
    count(q, wr, r == 0 ? NULL : left);
    q->posted_sends = j->next;
    shift_spin_unlock(&q->lock);
    return likely(r == 0) ? 0 : post_send_refused(q, r, left, bad);
}

int shift_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    shift_thread_t *me = shift_enter(qp);
    shift_qp_t *q = shift_map_get(&shift_qps, (uintptr_t)qp);
    if (likely(q && __atomic_load_n(&q->straight, __ATOMIC_ACQUIRE))) {
        struct ibv_send_wr *left = NULL;
        int r = q->post_send(qp, wr, &left);
        count(q, wr, likely(r == 0) ? NULL : left);
        shift_leave(me);
        return likely(r == 0) ? 0 : post_send_refused(q, r, left, bad);
    }
    shift_leave(me);
    return q ? post_send_noted(q, wr, bad) : shift_provider_verbs(qp->context)->post_send(qp, wr, bad);
}

static int post_recv_slowly(shift_qp_t *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    int r = 0;
    pthread_mutex_lock(&q->o.device->lock);
    if (q->states.rq == SHIFT_RQ_RELEASED || q->straight) {
        bool released = !q->straight;
        pthread_mutex_unlock(&q->o.device->lock);
        return released ? q->post_recv(q->qp, wr, bad) : shift_post_recv(q->qp, wr, bad);
    }
    shift_spin_lock(&q->lock);
    for (; wr && r == 0; wr = wr->next)
        if (!shift_journal_recv(&q->recvs, wr)) {
            *bad = wr;
            r = ENOMEM;
        }
    shift_spin_unlock(&q->lock);
    shift_repost_recvs(q);
    pthread_mutex_unlock(&q->o.device->lock);
    return r;
}

static int post_recv_noted(shift_qp_t *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    shift_spin_lock(&q->lock);
    if (unlikely(!q->direct || q->unread)) {
        shift_spin_unlock(&q->lock);
        return post_recv_slowly(q, wr, bad);
    }
    shift_journal_t *j = &q->recvs;
    uint64_t before = j->next;
    for (struct ibv_recv_wr *w = wr; w; w = w->next)
        if (unlikely(!shift_journal_recv(j, w)))
            break;
    int r = q->post_recv(q->qp, wr, bad);
    if (unlikely(r != 0)) {
        uint64_t taken = before;
        for (struct ibv_recv_wr *w = wr; w && w != *bad; w = w->next)
            taken++;
        j->next = taken;
    }
    q->posted_recvs = j->next;
    shift_spin_unlock(&q->lock);
    return r;
}

int shift_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    shift_thread_t *me = shift_enter(qp);
    shift_qp_t *q = shift_map_get(&shift_qps, (uintptr_t)qp);
    if (likely(q && __atomic_load_n(&q->straight, __ATOMIC_ACQUIRE))) {
        int r = q->post_recv(qp, wr, bad);
        shift_leave(me);
        return r;
    }
    shift_leave(me);
    return q ? post_recv_noted(q, wr, bad) : shift_provider_verbs(qp->context)->post_recv(qp, wr, bad);
}
