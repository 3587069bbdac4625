/* poll.c - the data verbs that poll completions and request events: straight, noted or slow (slow_path.c).
 *
 * gather.c has the slow half: completions from all paths, and their order.
 */
#include "failover/failover.h"
#include "failover/srq.h"
#include "objects/slow_path.h"
#include "objects/completions.h"
#include "verbs/verbs.h"

static int poll_slowly(shift_cq_t *c, int n, struct ibv_wc *wc) {
    shift_device_t *d = c->o.device;
    pthread_mutex_lock(&d->lock);
    shift_gather(c);
    shift_spin_lock(&c->lock);
    int r = 0;
    for (; r < n && c->count; r++) {
        wc[r] = c->ready[c->first];
        c->first = (c->first + 1) % c->room;
        c->count--;
    }
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
    for (int i = 0; i < r; i++) { /* completions have made room */
        shift_qp_t *q = shift_map_get(&d->path[0].qps, wc[i].qp_num);
        if (q && !q->direct && q->posted_sends < q->sends.next)
            shift_repost_sends(q);
    }
    pthread_mutex_unlock(&d->lock);
    return r;
}

static bool all_good(int n, const struct ibv_wc *wc) {
    unsigned bad = 0;
    for (int i = 0; i < n; i++)
        bad |= wc[i].status;
    return bad == IBV_WC_SUCCESS;
}

/* For a CQ with a queue pair that keeps a journal. */
static int poll_noted(shift_cq_t *c, int n, struct ibv_wc *wc) {
    shift_device_t *d = c->o.device;
    shift_spin_lock(&c->lock);
    if (unlikely(__atomic_load_n(&c->special, __ATOMIC_ACQUIRE))) {
        shift_spin_unlock(&c->lock);
        return poll_slowly(c, n, wc);
    }
    int r = c->poll(c->cq, n, wc);
    if (unlikely(!all_good(r, wc) && shift_stash_locked(c, (uint32_t)r, wc))) {
        shift_spin_unlock(&c->lock);
        return poll_slowly(c, n, wc);
    }
    for (int i = 0; i < r; i++) {
        shift_qp_t *q = shift_map_get(&d->path[0].qps, wc[i].qp_num);
        if (likely(q != NULL) && wc[i].status == IBV_WC_SUCCESS && !(q->srq && (wc[i].opcode & IBV_WC_RECV)))
            shift_retire(q, &wc[i]);
    }
    if (unlikely(c->shared || c->foreign))
        shift_srq_translate(wc, r);
    shift_spin_unlock(&c->lock);
    return r;
}

int shift_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
    shift_thread_t *me = shift_enter(cq);
    shift_cq_t *c = shift_map_get(&shift_cqs, (uintptr_t)cq);
    if (likely(c && __atomic_load_n(&c->straight, __ATOMIC_ACQUIRE))) {
        int r = c->poll(cq, n, wc);
        bool stashed = unlikely(!all_good(r, wc)) && shift_stash(c, r, wc);
        shift_leave(me);
        return likely(!stashed) ? r : poll_slowly(c, n, wc);
    }
    shift_leave(me);
    return c ? poll_noted(c, n, wc) : shift_provider_verbs(cq->context)->poll_cq(cq, n, wc);
}

/* ---- events ---- */

int shift_req_notify_cq(struct ibv_cq *cq, int solicited_only) {
    shift_cq_t *c = shift_map_get(&shift_cqs, (uintptr_t)cq);
    if (unlikely(!c))
        return shift_provider_verbs(cq->context)->req_notify_cq(cq, solicited_only);
    shift_device_t *d = c->o.device;
    int r = d->ops.req_notify_cq(cq, solicited_only);
    __atomic_store_n(&c->armed, 1 + solicited_only, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (unlikely(__atomic_load_n(&shift_fences, __ATOMIC_RELAXED)))
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (unlikely(__atomic_load_n(&c->special, __ATOMIC_ACQUIRE))) {
        pthread_mutex_lock(&d->lock);
        if (c->count)
            shift_ring_bell(c);
        pthread_mutex_unlock(&d->lock);
    }
    return r;
}
