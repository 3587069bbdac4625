/* watch.c - finds queue pairs that have stopped without an error.
 *
 * Not every lost packet ends in an error completion: Soft-RoCE has a bug that makes a fenced request wait for itself
 * (soft-roce.md), and firmware may hang. So the worker checks from time to time how far each send queue has advanced.
 * The data path does nothing for this. In the default state it reads the provider's queues (rewind.h). In other states,
 * and where the queues don't tell, it reads the journal. A queue pair is stuck if it has requests outstanding and has
 * not advanced for longer than all its retries take. It is then switched as if it had failed.
 *
 * A journal advances when the program polls, and only signaled requests have completions. So a journal is watched only
 * while it holds a signaled request. In the default state, before the journal is believed, the worker takes the
 * completions that the program has left in the completion queue.
 *
 * A receiver that posts no receives may keep a sender waiting for ever; this is not a failure. So if the oldest request
 * needs a receive, the worker asks the peer whether it has posted some. Only if the peer says so, and nothing advances
 * for the same time again, is the queue pair stuck.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "journal/journal.h"

enum {
    LOOK_NS = 250000000,
    MARGIN_NS = 1000000000,
    AHEAD = 256, /* number of requests of a journal that are checked */
    /* bytes/s: for a journal's requests only completions are visible, and long requests may take their time */
    SLOWEST = 1 << 20,
};

static bool needs_receive(enum ibv_wr_opcode opcode) {
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV ||
           opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* Time for all its retries, twice, because RNICs may take longer (InfiniBand specification 9.7.6.1.3). ns */
static uint64_t patience(const shift_qp_t *q) {
    int timeout = q->attr.timeout ? q->attr.timeout : 14;
    return 2 * (uint64_t)(q->attr.retry_cnt + 1) * (UINT64_C(4096) << timeout) + MARGIN_NS;
}

/* For a queue pair that is away from the default state: what it has outstanding on the leg in use. */
static bool journal_pending(const shift_qp_t *q, shift_pending_t *p) {
    uint64_t bytes = 0;
    bool own = q->washing || (q->peer_takes_writes && q->marker_posted && !q->marker_done), signaled = false;
    for (uint64_t s = q->sends.first; s < q->posted_sends; s++) {
        const shift_send_t *e = shift_journal_at(&q->sends, s);
        bytes += e->length;
        signaled |= !e->done && shift_signaled(q, e);
    }
    const shift_send_t *oldest = q->sends.first < q->posted_sends ? shift_journal_at(&q->sends, q->sends.first) : NULL;
    *p = (shift_pending_t){.at = q->sends.first + q->washing + q->marker_done,
                           .opcode = oldest ? oldest->wr.opcode : IBV_WR_RDMA_WRITE,
                           .slack = bytes * 1000000000 / SLOWEST};
    return own || signaled;
}

/* Do the provider's queues tell how far it has advanced? */
static bool reads_queues(const shift_qp_t *q) { return q->rewind && q->rewind->pending && q->rewind->receivable; }

/* For a queue pair in the default state: the requests up to its oldest signaled one, if that isn't far away. Any
 * request before it may be the one that waits for a receive. */
static bool noted_pending(shift_qp_t *q, shift_pending_t *p) {
    bool found = false;
    *p = (shift_pending_t){.opcode = IBV_WR_RDMA_WRITE};
    shift_spin_lock(&q->send_cq->lock);
    shift_spin_lock(&q->lock);
    p->at = q->sends.first;
    uint64_t end = q->sends.next - p->at < AHEAD ? q->sends.next : p->at + AHEAD;
    for (uint64_t s = p->at; s < end && !found; s++) {
        const shift_send_t *e = shift_journal_at(&q->sends, s);
        p->slack += e->length * 1000000000 / SLOWEST;
        if (needs_receive(e->wr.opcode))
            p->opcode = e->wr.opcode;
        found = shift_signaled(q, e);
    }
    shift_spin_unlock(&q->lock);
    shift_spin_unlock(&q->send_cq->lock);
    return found;
}

static bool pending(shift_qp_t *q, shift_pending_t *p) {
    if (!q->direct)
        return journal_pending(q, p);
    return reads_queues(q) ? q->rewind->pending(q->queues, p) : noted_pending(q, p);
}

/* In the default state a journal may be out of date: is this one current? */
static bool is_up_to_date(shift_qp_t *q, const shift_pending_t *p) {
    shift_pending_t now;
    return !q->direct || reads_queues(q) ||
           (shift_catch_up(q->send_cq) && q->direct && noted_pending(q, &now) && now.at == p->at);
}

static void look(shift_qp_t *q, uint64_t now) {
    shift_watch_t *w = &q->watch;
    shift_pending_t p = {0};
    if (!pending(q, &p) || p.at != w->at || q->epoch != w->epoch) {
        *w = (shift_watch_t){.at = p.at, .since = now, .epoch = q->epoch};
        return;
    }
    uint64_t enough = patience(q) + p.slack;
    if (now - w->since < enough || !is_up_to_date(q, &p))
        return;
    if (needs_receive(p.opcode) && !w->answered) {
        if (now - w->asked >= enough) {
            shift_link_send(q->link, &(shift_message_t){.type = SHIFT_ASK,
                                                        .epoch = q->epoch,
                                                        .from_qpn = q->qp->qp_num,
                                                        .to_qpn = q->legs[0].peer_qpn});
            w->asked = now;
        }
        return;
    }
    shift_tell(q, "stuck");
    shift_fail(q, NULL);
}

void shift_watch_step(shift_device_t *d) {
    uint64_t now = shift_now();
    if (now < d->next_watch)
        return;
    d->next_watch = now + LOOK_NS;
    shift_record_begin(d);
    for (shift_object_t *o = d->objects; o; o = o->next) {
        shift_qp_t *q = (shift_qp_t *)o;
        if (o->kind != SHIFT_QP || !q->linked)
            continue;
        shift_record_moved(q);
        if (q->phase == SHIFT_STEADY && q->states.sq != SHIFT_SQ_RELEASED)
            look(q, now);
    }
}

static bool receives(shift_qp_t *q) {
    if (q->direct && reads_queues(q))
        return q->rewind->receivable(q->queues);
    return !q->srq && (!q->direct || shift_catch_up(q->recv_cq)) && q->recvs.first < q->posted_recvs;
}

void shift_watch_asked(shift_qp_t *q, uint32_t epoch) {
    if (receives(q))
        shift_link_send(q->link, &(shift_message_t){.type = SHIFT_RECEIVABLE,
                                                    .epoch = epoch,
                                                    .from_qpn = q->qp->qp_num,
                                                    .to_qpn = q->legs[0].peer_qpn});
}

void shift_watch_answered(shift_qp_t *q, uint32_t epoch) {
    if (!q->watch.asked || q->watch.answered || q->watch.epoch != epoch)
        return;
    q->watch.answered = true;
    q->watch.since = shift_now();
}
