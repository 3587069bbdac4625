/* release.c - gives a connection back to the provider, because it cannot be saved or the program has ended it.
 *
 * Invariant: the program gets what a queue pair in the error state returns (InfiniBand specification 10.3.1): every
 * request once and in order, the oldest with the error, the others flushed.
 */
#include "common/report.h"
#include "failover/srq.h"
#include "failover/switch.h"
#include "journal/journal.h"
#include "objects/slow_path.h"
#include "objects/completions.h"
#include "objects/device.h"
#include "objects/legs.h"

/* Posts the requests to the provider, which flushes them after everything else. */
static void flush_held_back(shift_qp_t *q) {
    shift_qp_fence(q->qp);
    for (; q->posted_sends < q->sends.next; q->posted_sends++) {
        shift_send_t *e = shift_journal_at(&q->sends, q->posted_sends);
        if (e->done || shift_leg_send(q, 0, &e->wr) != 0)
            shift_complete_send(q, e, e->done ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR);
    }
    for (; q->posted_recvs < q->recvs.next; q->posted_recvs++) {
        shift_recv_t *e = shift_journal_at(&q->recvs, q->posted_recvs);
        shift_leg_recv(q, 0, &e->wr);
    }
    shift_qp_fence(q->qp); /* Soft-RoCE checks its receives only when the state is set */
}

/* Gives the queue pair back to the provider. The program gets the error, then what a queue pair in the error state
 * returns (IB 10.3.1): all its requests, flushed. */
void shift_release(shift_qp_t *q, const char *why) {
    if (q->states.sq == SHIFT_SQ_RELEASED)
        return;
    bool on_default = q->path == 0 && !q->legs[0].closed;
    if (why) {
        shift_report("a connection of %s is lost: %s", q->o.device->path[0].name, why);
        shift_wake(q->o.device);
        if (q->link) /* the peer must not wait for us */
            shift_link_send(q->link, &(shift_message_t){.type = SHIFT_GONE,
                                                        .epoch = q->epoch,
                                                        .from_qpn = q->qp->qp_num,
                                                        .to_qpn = q->legs[0].peer_qpn});
    }
    shift_set_slow(q, true);
    shift_transition(&q->states, SHIFT_GIVE_UP);
    shift_srq_move(q, 0);
    shift_phase(q, SHIFT_STEADY);
    for (int p = 1; p < SHIFT_PATHS; p++)
        if (q->legs[p].qp) {
            q->legs[p].fenced = true;
            shift_qp_fence(q->legs[p].qp);
        }
    /* requests in the provider's queues come from there, in order; those that were held back follow them */
    if (on_default) {
        shift_tell_errors(q);
        if (q->unread) {
            q->posted_sends = q->sends.first;
            q->posted_recvs = q->recvs.first;
        }
        if (q->posted_sends < q->sends.next || q->posted_recvs < q->recvs.next || why)
            flush_held_back(q);
        if (why) {
            shift_ring_bells(q);
            shift_tell(q, "lost");
        }
        return;
    }
    enum ibv_wc_status status = q->trouble ? q->trouble : why ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR;
    for (uint64_t s = q->sends.first; s < q->sends.next; s++, status = IBV_WC_WR_FLUSH_ERR)
        shift_complete_send(q, shift_journal_at(&q->sends, s), status);
    for (uint64_t s = q->recvs.first; s < q->recvs.next; s++) {
        const shift_recv_t *e = shift_journal_at(&q->recvs, s);
        struct ibv_wc wc = {
            .wr_id = e->wr.wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV, .qp_num = q->qp->qp_num};
        shift_deliver(q->recv_cq, &wc);
    }
    shift_qp_fence(q->qp);
    shift_ring_bells(q);
    shift_tell(q, "lost");
}
