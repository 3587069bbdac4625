/* poll.c - the data verbs that take completions and ask for events, straight, noted or slow (away.c).
 *
 * Invariants:
 * 1. A leg's receives complete in order, each exactly once; a leg's sends complete in order, unsignaled ones with the next signaled one.
 * 2. The program gets a queue pair's completions in posting order, with the number of its own queue pair, whichever leg they came from.
 */
#include "shift.h"

#include <stdlib.h>
#include <string.h>

enum { PATIENT_YIELDS = 100 };

void shift_deliver(shift_cq_t *c, const struct ibv_wc *wc)
{
    if (c->count == c->room) {
        uint32_t room = c->room ? c->room * 2 : 64;
        struct ibv_wc *ready = malloc(room * sizeof *ready);
        if (!ready) {
            shift_report("no memory for completions: the program will miss some");
            return;
        }
        for (uint32_t i = 0; i < c->count; i++)
            ready[i] = c->ready[(c->first + i) % c->room];
        free(c->ready);
        c->ready = ready;
        c->room = room;
        c->first = 0;
    }
    c->ready[(c->first + c->count++) % c->room] = *wc;
    shift_cq_mode(c);
}

static enum ibv_wc_opcode completed_opcode(enum ibv_wr_opcode opcode)
{
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    case IBV_WR_LOCAL_INV:
        return IBV_WC_LOCAL_INV;
    case IBV_WR_BIND_MW:
        return IBV_WC_BIND_MW;
    default:
        return IBV_WC_SEND;
    }
}

/* The completion of a request that no leg will complete. */
void shift_complete_send(shift_qp_t *q, const shift_send_t *e, enum ibv_wc_status status)
{
    bool read = e->wr.opcode == IBV_WR_RDMA_READ;
    struct ibv_wc wc = {.wr_id = e->wr.wr_id, .status = status, .opcode = completed_opcode(e->wr.opcode), .qp_num = q->qp->qp_num,
                        .byte_len = read ? (uint32_t)e->length : 0};
    if (status != IBV_WC_SUCCESS || shift_signaled(q, e))
        shift_deliver(q->send_cq, &wc);
}

/* The oldest request is over; its completion is made up if no leg has given it. */
static void finish_first(shift_qp_t *q)
{
    const shift_send_t *e = shift_journal_at(&q->sends, q->sends.first);
    if (e->done)
        shift_complete_send(q, e, IBV_WC_SUCCESS);
    shift_journal_drop(&q->sends, 1);
}

/* A good completion of a leg: the entries that it retires. Requests found executed at a switch (done) come before it in order: theirs are made up. */
static void retire(shift_qp_t *q, const struct ibv_wc *wc)
{
    if (q->unread)
        return;
    if (wc->opcode & IBV_WC_RECV) {
        shift_journal_drop(&q->recvs, 1);
        return;
    }
    if (q->overtaken) {
        q->overtaken--;
        return;
    }
    shift_journal_t *j = &q->sends;
    while (j->first < j->next) {
        const shift_send_t *e = shift_journal_at(j, j->first);
        bool last = shift_signaled(q, e) && !e->done;
        finish_first(q);
        if (last)
            break;
    }
}

/* Completions of requests executed before the switch, when nothing stands before them. */
void shift_retire_done(shift_qp_t *q)
{
    shift_journal_t *j = &q->sends;
    while (j->first < j->next && ((shift_send_t *)shift_journal_at(j, j->first))->done)
        finish_first(q);
    if (q->posted_sends < j->first)
        q->posted_sends = j->first;
}

/* One completion from a path's queue, device lock and c->lock held. */
static void take(shift_cq_t *c, int path, const struct ibv_wc *wc)
{
    shift_device_t *d = c->o.device;
    if (path == 0 && c->bell && wc->qp_num == c->bell->qp_num)
        return;
    shift_qp_t *q = shift_map_get(&d->path[path].qps, wc->qp_num);
    struct ibv_wc mine = *wc;
    if (!q) { /* not protected, or destroyed meanwhile */
        shift_srq_take(path, path > 0, &mine);
        if (path == 0)
            shift_deliver(c, &mine);
        return;
    }
    shift_leg_t *leg = &q->legs[path];
    bool released = q->states.sq == SHIFT_SQ_RELEASED;
    mine.qp_num = q->qp->qp_num;
    switch (shift_srq_take(path, leg->fenced || (!released && shift_transport_error(q, wc)), &mine)) {
    case SHIFT_SRQ_KEPT:
        if (!leg->fenced && path == q->path)
            shift_fail(q, NULL);
        return;
    case SHIFT_SRQ_LATE:
        shift_release(q, "a message came in after its path was left");
        return;
    case SHIFT_SRQ_DELIVER:
        if (wc->status != IBV_WC_SUCCESS)
            shift_release(q, NULL); /* the program's own fault */
        shift_deliver(c, &mine);
        return;
    case SHIFT_SRQ_OTHER:
        break;
    }
    if (leg->closed && q->states.sq != SHIFT_SQ_RELEASED)
        return; /* too late: it counts as outstanding, or as the peer has said */
    if (wc->wr_id == (uintptr_t)&leg->drained_sends) {
        leg->drained_sends = true;
    } else if (wc->wr_id == (uintptr_t)&leg->drained_recvs) {
        leg->drained_recvs = true;
    } else if (wc->wr_id == (uintptr_t)&q->marker_done || wc->wr_id == (uintptr_t)&q->washing) {
        if (wc->wr_id == (uintptr_t)&q->marker_done)
            q->marker_done = wc->status == IBV_WC_SUCCESS;
        else
            q->washing = false;
        if (wc->status != IBV_WC_SUCCESS && !leg->fenced && q->states.sq != SHIFT_SQ_RELEASED && path == q->path && q->phase == SHIFT_STEADY)
            shift_fail(q, wc);
    } else if (q->states.sq == SHIFT_SQ_RELEASED) {
        if (path == 0 || !leg->fenced)
            shift_deliver(c, &mine);
    } else if (wc->status == IBV_WC_SUCCESS) {
        retire(q, wc);
        shift_deliver(c, &mine);
        shift_retire_done(q);
        if (q->times.replayed && !q->times.flowing && path == q->path) {
            q->times.flowing = shift_now();
            shift_tell_flowing(q);
        }
    } else if (path == q->path && (leg->fenced || shift_transport_error(q, wc))) {
        if (path == 0)
            shift_note_error(q, c, wc);
        if (q->phase == SHIFT_STEADY)
            shift_fail(q, wc);
    } else if (path == q->path) { /* the program's own fault: it has to know */
        shift_release(q, NULL);
        shift_deliver(c, wc);
    }
}

/* Device lock held, so not for long: the worker comes again. */
static bool settle(shift_cq_t *c)
{
    if (c->settled)
        return true;
    for (int i = 0; shift_cq_busy(c); i++) {
        if (i == PATIENT_YIELDS) {
            shift_wake(c->o.device);
            return false;
        }
        sched_yield();
    }
    return c->settled = true;
}

void shift_gather(shift_cq_t *c)
{
    shift_device_t *d = c->o.device;
    struct ibv_wc wc[16];
    int n;
    if (__atomic_load_n(&c->special, __ATOMIC_ACQUIRE) && !settle(c))
        return;
    shift_spin_lock(&c->lock);
    for (uint32_t i = 0; i < c->stashed; i++)
        take(c, 0, &c->stash[i]);
    __atomic_store_n(&c->stashed, 0, __ATOMIC_RELAXED);
    for (int p = 0; p < d->paths; p++) {
        struct ibv_cq *cq = p ? c->on[p] : c->cq;
        if (p && (!cq || !c->away))
            continue;
        while ((n = p ? cq->context->ops.poll_cq(cq, 16, wc) : c->poll(cq, 16, wc)) > 0)
            for (int i = 0; i < n; i++)
                take(c, p, &wc[i]);
    }
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
}

bool shift_catch_up(shift_cq_t *c)
{
    shift_spin_lock(&c->lock);
    c->away++;
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
    shift_gather(c);
    bool done = c->settled;
    shift_spin_lock(&c->lock);
    c->away--;
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
    return done;
}

static int poll_slowly(shift_cq_t *c, int n, struct ibv_wc *wc)
{
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
            shift_pump_sends(q);
    }
    pthread_mutex_unlock(&d->lock);
    return r;
}

/* There is an error among these: they all go the slow way, behind what other polls have stashed. False: they can't; c->lock held. */
static bool stash(shift_cq_t *c, uint32_t n, const struct ibv_wc *wc)
{
    if (c->stashed + n > c->stash_room) {
        uint32_t room = c->stash_room + n + 64;
        struct ibv_wc *more = realloc(c->stash, room * sizeof *more);
        if (!more) {
            shift_report("no memory for completions with an error: the program gets them");
            return false;
        }
        c->stash = more;
        c->stash_room = room;
    }
    memcpy(c->stash + c->stashed, wc, n * sizeof *wc);
    __atomic_store_n(&c->stashed, c->stashed + n, __ATOMIC_RELAXED);
    __atomic_store_n(&c->o.device->stashed, true, __ATOMIC_RELEASE);
    shift_cq_mode(c);
    return true;
}

static bool all_good(int n, const struct ibv_wc *wc)
{
    unsigned bad = 0;
    for (int i = 0; i < n; i++)
        bad |= wc[i].status;
    return bad == IBV_WC_SUCCESS;
}

/* Where some queue pair keeps a journal. */
static int poll_noted(shift_cq_t *c, int n, struct ibv_wc *wc)
{
    shift_device_t *d = c->o.device;
    shift_spin_lock(&c->lock);
    if (unlikely(__atomic_load_n(&c->special, __ATOMIC_ACQUIRE))) {
        shift_spin_unlock(&c->lock);
        return poll_slowly(c, n, wc);
    }
    int r = c->poll(c->cq, n, wc);
    if (unlikely(!all_good(r, wc) && stash(c, (uint32_t)r, wc))) {
        shift_spin_unlock(&c->lock);
        return poll_slowly(c, n, wc);
    }
    for (int i = 0; i < r; i++) {
        shift_qp_t *q = shift_map_get(&d->path[0].qps, wc[i].qp_num);
        if (likely(q != NULL) && wc[i].status == IBV_WC_SUCCESS && !(q->srq && (wc[i].opcode & IBV_WC_RECV)))
            retire(q, &wc[i]);
    }
    if (unlikely(c->shared))
        shift_srq_translate(wc, r);
    shift_spin_unlock(&c->lock);
    return r;
}

/* In the section in which they were polled, so that who waits for its end finds them. */
bool shift_stash(shift_cq_t *c, int n, const struct ibv_wc *wc)
{
    if (c->o.device->paths == 1)
        return false;
    shift_spin_lock(&c->lock);
    bool stashed = stash(c, (uint32_t)n, wc);
    shift_spin_unlock(&c->lock);
    return stashed;
}

int shift_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
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

int shift_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
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

/* A queue pair in the error state completes whatever is posted to it: so an event can be made on the program's own CQ and channel. Device lock held. */
void shift_ring_bell(shift_cq_t *c)
{
    if (!c->cq->channel)
        return;
    if (!c->armed)
        shift_barrier(); /* who arms it now either finds what is ready, or is seen */
    if (!__atomic_load_n(&c->armed, __ATOMIC_ACQUIRE))
        return;
    if (!c->bell) {
        shift_pd_t *pd = NULL;
        for (shift_object_t *o = c->o.device->objects; o && !pd; o = o->next)
            if (o->kind == SHIFT_PD)
                pd = (shift_pd_t *)o;
        struct ibv_qp_init_attr init = {.send_cq = c->cq, .recv_cq = c->cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
        struct ibv_qp_attr attr = {.port_num = c->o.device->path[0].port};
        c->bell = pd ? shift_real()->create_qp(pd->pd, &init) : NULL;
        if (!c->bell)
            return;
        shift_qp_step(c->bell, &attr, IBV_QPS_INIT);
        shift_qp_fence(c->bell);
    }
    /* A receive: its error is an event also for who waits for solicited ones only. Soft-RoCE flushes it when the state is set, not when it is posted. */
    struct ibv_recv_wr wr = {0}, *bad;
    c->o.device->ops.post_recv(c->bell, &wr, &bad);
    shift_qp_fence(c->bell);
}

void shift_ring_bells(shift_qp_t *q)
{
    shift_ring_bell(q->send_cq);
    if (q->recv_cq != q->send_cq)
        shift_ring_bell(q->recv_cq);
}
