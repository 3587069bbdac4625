/* post.c - the data verbs that post, straight, noted or slow (away.c).
 *
 * Invariants:
 * 1. Journal entries [first, posted) are on the leg in use, [posted, next) are held back. In the default state none is held back. While a queue pair is
 *    `unread` its journals hold only what is held back: what is outstanding comes before it.
 * 2. `first` of a journal is changed under the lock of the CQ that it completes to, `next` under the queue pair's; a switch holds the device's and both.
 */
#include "links.h"

#include <errno.h>
#include <string.h>

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
        q->overtaken += shift_signaled(q, shift_journal_at(&q->sends, q->sends.first));
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
    return q ? post_send_noted(q, wr, bad) : shift_provider_verbs(qp->context)->post_send(qp, wr, bad);
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
    return q ? post_recv_noted(q, wr, bad) : shift_provider_verbs(qp->context)->post_recv(qp, wr, bad);
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
