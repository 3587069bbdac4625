/* slow_path.c - the default state of queue pairs and completion queues: how it is left, and entered again.
 *
 * In the default state the data verbs (post.c, poll.c) are *straight*: they are the provider's own, inside a section
 * (sections.h). Nothing is recorded, because the requests that are outstanding when a path fails are read back from the
 * provider's queues (rewind.h). If the provider's queues can't be read, the verbs are *noted*: a post also appends the
 * request to the journal, under the queue pair's spinlock, and a poll, under the CQ's, retires what has completed. In
 * all other states the verbs are slow and run under the device's lock. A CQ is `special` while one of its queue pairs
 * is away from the default state or completions wait in `stash` or `ready`; then its completions are first gathered
 * from all paths.
 *
 * Invariant: a thread that ends the default state waits, without delaying others, until the straight verbs that began
 * before are finished: for a queue pair before its leg is fenced, for a CQ before another thread polls it.
 *
 * With the device's lock held.
 */
#include "objects/slow_path.h"

/* A straight section of an object continues from one data verb to the next; between them only `section` shows it.
 * `section` changes while its thread's slot names the object, so one of the three tests detects it. */
static bool under_way(const bool *section, const void *object) {
    shift_barrier();
    return __atomic_load_n(section, __ATOMIC_ACQUIRE) || shift_inside(object) ||
           __atomic_load_n(section, __ATOMIC_ACQUIRE);
}

bool shift_qp_busy(const shift_qp_t *q) { return under_way(&q->writing, q->qp); }
bool shift_cq_busy(const shift_cq_t *c) { return under_way(&c->reading, c->cq); }

void shift_cq_mode(shift_cq_t *c) {
    bool special = c->away > 0 || c->count > 0 || shift_stashed(c);
    if (!special)
        c->settled = false;
    __atomic_store_n(&c->special, special, __ATOMIC_RELEASE);
    __atomic_store_n(&c->straight, !special && !c->noted && !c->shared && !c->foreign, __ATOMIC_RELEASE);
}

static void count_away(const shift_qp_t *q, int by) {
    shift_cq_t *both[] = {q->send_cq, q->recv_cq};
    for (int i = 0; i < (both[0] == both[1] ? 1 : 2); i++) {
        both[i]->away += by;
        shift_cq_mode(both[i]);
    }
}

/* Invariant: every queue pair that needs attention is in the list; the worker removes those that no longer need it. */
bool shift_needs_attention(const shift_qp_t *q) {
    bool lost = false;
    for (int p = 0; p < q->o.device->paths; p++)
        lost |= q->legs[p].fenced || (p && q->legs[p].early && q->state == IBV_QPS_RTS);
    return q->states.sq != SHIFT_SQ_RELEASED && (!q->direct || lost);
}

void shift_attend(shift_qp_t *q, bool active) {
    shift_device_t *d = q->o.device;
    if (q->active == active)
        return;
    q->active = active;
    if (active) {
        q->previous_active = NULL;
        q->next_active = d->active;
        if (d->active)
            d->active->previous_active = q;
        d->active = q;
    } else {
        if (d->next_step == q)
            d->next_step = q->next_active;
        *(q->previous_active ? &q->previous_active->next_active : &d->active) = q->next_active;
        if (q->next_active)
            q->next_active->previous_active = q->previous_active;
    }
}

/* While a journal changes its meaning, the CQs are special: no poll retires anything. */
void shift_set_slow(shift_qp_t *q, bool away) {
    if (q->direct == !away)
        return;
    if (away) {
        count_away(q, 1);
        shift_attend(q, true);
    }
    /* a noted post in progress on the default leg ends first; for a straight one, see shift_qp_busy */
    shift_spin_lock(&q->lock);
    q->direct = !away;
    if (!away && q->rewinds) { /* the requests in flight are in the provider's queue and also in the journal */
        q->sends.first = q->sends.next;
        q->recvs.first = q->recvs.next;
        q->unread = true;
    }
    __atomic_store_n(&q->straight, q->plain || (q->direct && q->rewinds), __ATOMIC_RELEASE);
    shift_spin_unlock(&q->lock);
    if (!away) {
        shift_spin_lock(&q->send_cq->lock); /* (the thread that finds the error that begins a switch holds it) */
        if (q->recv_cq != q->send_cq)
            shift_spin_lock(&q->recv_cq->lock);
        count_away(q, -1);
        if (q->recv_cq != q->send_cq)
            shift_spin_unlock(&q->recv_cq->lock);
        shift_spin_unlock(&q->send_cq->lock);
    }
}
