/* datapath.c - the data verbs.
 *
 * In the default state they are *straight*: the provider's own, within a section (sections.h), and nothing is noted, for the requests that are outstanding
 * when a path fails are read back from the provider's queues (rewind.h). Where the provider's queues can't be read, a post appends the request to
 * the journal, too, under the queue pair's spinlock, and a poll, under the CQ's, retires what has completed (`noted`). Everything else is slow and under the
 * device's lock: a CQ is `special` while one of its queue pairs is away from the default state or completions wait in `stash` or `ready`; then its
 * completions are first gathered from all paths.
 *
 * Invariants:
 * - Journal entries [first, posted) are on the leg in use, [posted, next) are held back. In the default state none is held back. While a queue pair is
 *   `unread` its journals hold only what is held back: what is outstanding comes before it.
 * - Who ends the default state waits, without holding up others, until the straight verbs that began before it are over: for a queue pair before its leg is
 *   fenced, for a CQ before it is polled by another.
 * - A leg's receives complete in order, each exactly once; a leg's sends complete in order, unsignaled ones with the next signaled one.
 * - `first` of a journal is changed under the lock of the CQ that it completes to, `next` under the queue pair's; a switch holds the device's and both.
 * - The program gets a queue pair's completions in posting order, with the number of its own queue pair, whichever leg they came from.
 */
#include "links.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENT_YIELDS = 100 };

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

static const struct ibv_context_ops *ops_of(const struct ibv_context *context)
{
    return &((const shift_device_t *)shift_map_get(&shift_devices, (uintptr_t)context))->ops;
}

static bool signaled(const shift_qp_t *q, const shift_send_t *e) { return q->init.sq_sig_all || (e->wr.send_flags & IBV_SEND_SIGNALED); }

/* ---- posting ---- */

/* Packets that a request takes, that is: by how much it advances the packet sequence number (InfiniBand specification, 9.7.2). */
static uint32_t packets_of(const shift_send_t *e, uint32_t mtu)
{
    switch (e->wr.opcode) {
    case IBV_WR_LOCAL_INV:
    case IBV_WR_BIND_MW:
        return 0;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return 1;
    default:
        return e->length ? (uint32_t)((e->length + mtu - 1) / mtu) : 1;
    }
}

/* For people. Threads that post at the same time may lose a few: not worth a lock. */
static void count(shift_qp_t *q, const struct ibv_send_wr *wr, const struct ibv_send_wr *end)
{
    uint64_t posted = 0, bytes = 0;
    for (; wr != end; wr = wr->next, posted++)
        for (int i = 0; i < wr->num_sge; i++)
            bytes += wr->sg_list[i].length;
    __atomic_store_n(&q->posted, q->posted + posted, __ATOMIC_RELAXED);
    __atomic_store_n(&q->bytes, q->bytes + bytes, __ATOMIC_RELAXED);
}

void shift_number(shift_qp_t *q, shift_send_t *e)
{
    shift_leg_t *leg = &q->legs[q->path];
    e->packets = packets_of(e, 128u << leg->mtu);
    e->first_psn = leg->next_psn;
    leg->next_psn = (leg->next_psn + e->packets) & SHIFT_PSN_MASK;
}

/* A post that can't go straight to the default leg: into the journal, and on from there as far as the state allows. */
static int post_send_slowly(shift_qp_t *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
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
    shift_pump_sends(q);
    if (q->states.sq == SHIFT_SQ_WAIT_SIGNALED || q->missing_rkey)
        shift_wake(q->o.device);
    pthread_mutex_unlock(&q->o.device->lock);
    return r;
}

/* The journal is as deep as the queue that the program has asked for. A provider may take more (Soft-RoCE frees a slot at the acknowledgement, not at the
 * poll): then the oldest requests are acknowledged, and their completions, not polled yet, will find nothing to retire. */
static bool make_room(shift_qp_t *q)
{
    shift_spin_lock(&q->send_cq->lock);
    shift_spin_lock(&q->lock);
    bool room = q->direct && shift_journal_full(&q->sends);
    if (room) {
        q->overtaken += signaled(q, shift_journal_at(&q->sends, q->sends.first));
        shift_journal_drop(&q->sends, 1);
    }
    shift_spin_unlock(&q->lock);
    shift_spin_unlock(&q->send_cq->lock);
    return room;
}

/* An RNIC that is gone, not a request that can't be posted (or not now). */
static bool gone(int error) { return error != 0 && error != ENOMEM && error != EINVAL && error != ENOSPC && error != EOPNOTSUPP && error != EAGAIN; }

/* The provider has refused a post for good: that begins a switch. False: there is no way out. */
static bool fails_over(shift_qp_t *q, int error)
{
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

/* From `left` on; NULL: it has taken all, but can't send them. */
static int post_send_refused(shift_qp_t *q, int r, struct ibv_send_wr *left, struct ibv_send_wr **bad)
{
    if (fails_over(q, r))
        return left ? post_send_slowly(q, left, bad) : 0;
    *bad = left;
    return r;
}

/* With a journal. */
static int post_send_noted(shift_qp_t *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
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
            break; /* the provider won't take more either */
        }
        shift_number(q, e);
    }
    struct ibv_send_wr *left = NULL;
    int r = q->post_send(q->qp, wr, &left);
    if (unlikely(r != 0)) { /* the provider refused `left` and what follows */
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

int shift_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
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
    return q ? post_send_noted(q, wr, bad) : ops_of(qp->context)->post_send(qp, wr, bad);
}

static int post_recv_slowly(shift_qp_t *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
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
    shift_pump_recvs(q);
    pthread_mutex_unlock(&q->o.device->lock);
    return r;
}

static int post_recv_noted(shift_qp_t *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
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

int shift_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    shift_thread_t *me = shift_enter(qp);
    shift_qp_t *q = shift_map_get(&shift_qps, (uintptr_t)qp);
    if (likely(q && __atomic_load_n(&q->straight, __ATOMIC_ACQUIRE))) {
        int r = q->post_recv(qp, wr, bad);
        shift_leave(me);
        return r;
    }
    shift_leave(me);
    return q ? post_recv_noted(q, wr, bad) : ops_of(qp->context)->post_recv(qp, wr, bad);
}

/* ---- posting on the leg in use, device lock held ---- */

/* The request as this path must have it: local and remote keys exchanged, and what the peer has already executed of it left out. 0, -EAGAIN: the peer's
 * key isn't known yet (q->missing_rkey), -ENOKEY: a local region isn't registered there. */
static int translate(shift_qp_t *q, const shift_send_t *e, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
    shift_device_t *d = q->o.device;
    *wr = e->wr;
    wr->next = NULL;
    wr->sg_list = sge;
    int n = 0;
    uint64_t skip = e->skip;
    for (int i = 0; i < e->wr.num_sge; i++) {
        struct ibv_sge s = e->wr.sg_list[i];
        uint64_t off = skip < s.length ? skip : s.length;
        skip -= off;
        s.addr += off;
        s.length -= (uint32_t)off;
        if (!(e->wr.send_flags & IBV_SEND_INLINE) && !shift_elements_on(d, q->path, &s, 1))
            return -ENOKEY;
        if (s.length || off == 0)
            sge[n++] = s;
    }
    wr->num_sge = n;
    bool one_sided = wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr->opcode == IBV_WR_RDMA_READ;
    bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (one_sided)
        wr->wr.rdma.remote_addr += e->skip;
    if (q->path == 0 || !(one_sided || atomic) || (one_sided && e->length == 0))
        return 0;
    uint32_t *rkey = atomic ? &wr->wr.atomic.rkey : &wr->wr.rdma.rkey;
    const uint32_t *known = shift_link_rkey(q->link, *rkey);
    if (!known) {
        q->missing_rkey = *rkey;
        return -EAGAIN;
    }
    if (known[q->path] == 0)
        return -ENOKEY;
    *rkey = known[q->path];
    return 0;
}

void shift_pump_sends(shift_qp_t *q)
{
    if (q->phase != SHIFT_STEADY || q->states.sq == SHIFT_SQ_WAIT_SINKED || q->states.sq == SHIFT_SQ_RELEASED)
        return;
    shift_journal_t *j = &q->sends;
    struct ibv_sge sge[j->max_sge + 1];
    struct ibv_send_wr wr;
    q->missing_rkey = 0;
    while (q->posted_sends < j->next) {
        shift_send_t *e = shift_journal_at(j, q->posted_sends);
        if (!e->done) {
            int r = translate(q, e, &wr, sge);
            if (r == -ENOKEY)
                shift_release(q, "a work request uses memory that is not registered on the backup");
            if (r != 0 || shift_leg_send(q, q->path, &wr) != 0) /* full: completions make room */
                return;
            if (e->skip) { /* the rest of it only */
                shift_send_t rest = *e;
                rest.length -= e->skip;
                shift_number(q, &rest);
                e->packets = rest.packets;
                e->first_psn = rest.first_psn;
                e->base = e->skip;
            } else {
                shift_number(q, e);
                e->base = 0;
            }
        }
        q->posted_sends++;
    }
}

void shift_pump_recvs(shift_qp_t *q)
{
    if (q->phase == SHIFT_BROKEN || q->phase == SHIFT_CLEARING || q->phase == SHIFT_DRAINING || q->states.rq == SHIFT_RQ_RELEASED)
        return;
    shift_device_t *d = q->o.device;
    int path = q->phase == SHIFT_WAITING ? q->target : q->path; /* while the peer is awaited they are on the new leg already */
    if (!q->legs[path].ready) /* the same leg, not renewed yet: they would be lost with its state */
        return;
    struct ibv_sge sge[q->recvs.max_sge + 1];
    for (; q->posted_recvs < q->recvs.next; q->posted_recvs++) {
        const shift_recv_t *e = shift_journal_at(&q->recvs, q->posted_recvs);
        struct ibv_recv_wr wr = {.wr_id = e->wr.wr_id, .sg_list = sge, .num_sge = e->wr.num_sge};
        memcpy(sge, e->wr.sg_list, (size_t)e->wr.num_sge * sizeof *sge);
        if (!shift_elements_on(d, path, sge, e->wr.num_sge)) {
            shift_release(q, "a receive uses memory that is not registered on the backup");
            return;
        }
        if (shift_leg_recv(q, path, &wr) != 0)
            return;
    }
}

/* ---- completions ---- */

void shift_cq_mode(shift_cq_t *c)
{
    bool special = c->away > 0 || c->count > 0 || shift_stashed(c);
    if (!special)
        c->settled = false;
    __atomic_store_n(&c->special, special, __ATOMIC_RELEASE);
    __atomic_store_n(&c->straight, !special && !c->noted && !c->shared, __ATOMIC_RELEASE);
}

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
    if (status != IBV_WC_SUCCESS || signaled(q, e))
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
        bool last = signaled(q, e) && !e->done;
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
    for (shift_qp_t *q = r ? d->active : NULL; q; q = q->next_active) /* completions have made room */
        if (!q->direct && q->send_cq == c && q->posted_sends < q->sends.next)
            shift_pump_sends(q);
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
    return c ? poll_noted(c, n, wc) : ops_of(cq->context)->poll_cq(cq, n, wc);
}

/* ---- events ---- */

int shift_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    shift_cq_t *c = shift_map_get(&shift_cqs, (uintptr_t)cq);
    if (unlikely(!c))
        return ops_of(cq->context)->req_notify_cq(cq, solicited_only);
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

/* ---- entering and leaving the slow path, device lock held ---- */

/* An object's straight section goes from one data verb to another: in between, only `section` tells. It changes while its thread's slot names the object,
 * so one of the three looks meets it. */
static bool under_way(const bool *section, const void *object)
{
    shift_barrier();
    return __atomic_load_n(section, __ATOMIC_ACQUIRE) || shift_inside(object) || __atomic_load_n(section, __ATOMIC_ACQUIRE);
}

bool shift_qp_busy(const shift_qp_t *q) { return under_way(&q->writing, q->qp); }
bool shift_cq_busy(const shift_cq_t *c) { return under_way(&c->reading, c->cq); }

static void count_away(const shift_qp_t *q, int by)
{
    shift_cq_t *both[] = {q->send_cq, q->recv_cq};
    for (int i = 0; i < (both[0] == both[1] ? 1 : 2); i++) {
        both[i]->away += by;
        shift_cq_mode(both[i]);
    }
}

/* While a journal changes its meaning, the CQs are special: nobody retires anything. */
void shift_away(shift_qp_t *q, bool away)
{
    if (q->direct == !away)
        return;
    if (away) {
        count_away(q, 1);
        shift_attend(q, true);
    }
    shift_spin_lock(&q->lock); /* a noted post under way on the default leg ends first; for a straight one, see shift_qp_busy */
    q->direct = !away;
    if (!away && q->rewinds) { /* what is in flight is in the ring, too */
        q->sends.first = q->sends.next;
        q->recvs.first = q->recvs.next;
        q->unread = true;
    }
    __atomic_store_n(&q->straight, q->plain || (q->direct && q->rewinds), __ATOMIC_RELEASE);
    shift_spin_unlock(&q->lock);
    if (!away) {
        shift_spin_lock(&q->send_cq->lock); /* (whoever finds the error that begins a switch has it) */
        if (q->recv_cq != q->send_cq)
            shift_spin_lock(&q->recv_cq->lock);
        count_away(q, -1);
        if (q->recv_cq != q->send_cq)
            shift_spin_unlock(&q->recv_cq->lock);
        shift_spin_unlock(&q->send_cq->lock);
    }
}
