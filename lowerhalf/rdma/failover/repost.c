/* repost.c - posts requests on the leg in use that were held back, or are outstanding after a switch.
 *
 * With the device's lock held. post.c has the invariants of the journals.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "objects/legs.h"

#include <errno.h>
#include <string.h>

/* Builds the request for this path: exchanges local and remote keys, and omits what the peer has already executed of
 * it. Returns 0; -EAGAIN: a key isn't known yet, of a local region or of the peer; -ENOKEY: a region isn't registered
 * there, and will not be. */
static int translate(shift_qp_t *q, const shift_send_t *e, struct ibv_send_wr *wr, struct ibv_sge *sge) {
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
        int r = e->wr.send_flags & IBV_SEND_INLINE ? 0 : shift_elements_on(d, q->path, &s, 1);
        if (r != 0)
            return r;
        if (s.length || off == 0)
            sge[n++] = s;
    }
    wr->num_sge = n;
    bool one_sided =
        wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr->opcode == IBV_WR_RDMA_READ;
    bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (one_sided)
        wr->wr.rdma.remote_addr += e->skip;
    if (q->path == 0 || !(one_sided || atomic) || (one_sided && e->length == 0))
        return 0;
    uint32_t *rkey = atomic ? &wr->wr.atomic.rkey : &wr->wr.rdma.rkey;
    const uint32_t *known = shift_link_rkey(q->link, *rkey);
    if (!known)
        return -EAGAIN;
    if (known[q->path] == 0)
        return -ENOKEY;
    *rkey = known[q->path];
    return 0;
}

/* A key isn't known yet. The worker looks for it; a peer that can't publish it (its agent is gone) never will. */
static void wait_for_key(shift_qp_t *q) {
    uint64_t now = shift_now();
    q->lacks_key = q->lacks_key ? q->lacks_key : now;
    if (now - q->lacks_key > q->o.device->longest_wait)
        shift_release(q, "a work request uses memory whose key on the backup is not known");
}

void shift_repost_sends(shift_qp_t *q) {
    if (q->phase != SHIFT_STEADY || q->states.sq == SHIFT_SQ_WAIT_SINKED || q->states.sq == SHIFT_SQ_RELEASED)
        return;
    shift_journal_t *j = &q->sends;
    struct ibv_sge sge[j->max_sge + 1];
    struct ibv_send_wr wr;
    while (q->posted_sends < j->next) {
        shift_send_t *e = shift_journal_at(j, q->posted_sends);
        if (!e->done) {
            int r = translate(q, e, &wr, sge);
            if (r == -EAGAIN)
                wait_for_key(q);
            else
                q->lacks_key = 0;
            if (r == -ENOKEY)
                shift_release(q, "a work request uses memory that is not registered on the backup");
            if (r != 0 || shift_leg_send(q, q->path, &wr) != 0) /* the queue is full: completions make room */
                return;
            if (e->skip) { /* post only the rest of it */
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

void shift_repost_recvs(shift_qp_t *q) {
    if (q->phase == SHIFT_BROKEN || q->phase == SHIFT_CLEARING || q->phase == SHIFT_DRAINING ||
        q->states.rq == SHIFT_RQ_RELEASED)
        return;
    shift_device_t *d = q->o.device;
    /* while we wait for the peer, they are already on the new leg */
    int path = q->phase == SHIFT_WAITING ? q->target : q->path;
    if (!q->legs[path].ready) /* the same leg, not renewed yet: the renewal would drop them */
        return;
    struct ibv_sge sge[q->recvs.max_sge + 1];
    for (; q->posted_recvs < q->recvs.next; q->posted_recvs++) {
        const shift_recv_t *e = shift_journal_at(&q->recvs, q->posted_recvs);
        struct ibv_recv_wr wr = {.wr_id = e->wr.wr_id, .sg_list = sge, .num_sge = e->wr.num_sge};
        memcpy(sge, e->wr.sg_list, (size_t)e->wr.num_sge * sizeof *sge);
        int r = shift_elements_on(d, path, sge, e->wr.num_sge);
        if (r == -ENOKEY)
            shift_release(q, "a receive uses memory that is not registered on the backup");
        if (r != 0)
            return;
        if (shift_leg_recv(q, path, &wr) != 0)
            return;
    }
}
