/* switch.c - moves a queue pair's traffic from one path to another; nothing is lost, duplicated or reordered.
 *
 * One switch (an `epoch`, with the same number on both sides):
 *   1. Fence: the leg in use goes to the error state, so that nothing more happens on it. Its completions are drained;
 *      those of executed requests go to the program.
 *   2. The packet sequence number that the leg expected next says exactly how far the peer's requests were executed
 *      here. FENCE carries it to the peer, once our receives are posted on the new leg.
 *   3. The peer's FENCE says how far our requests were executed there. Executed ones are completed without being sent
 *      again, a half-written RDMA write continues after its last packet, the rest is posted on the new leg.
 * Both sides do the same, whichever began. So if both begin at the same time, they make one switch. Section 4.2.2 of
 * the SHIFT paper replays everything that was not acknowledged. The difference here closes the hole described in its
 * section 4.3 (lost acknowledgements). The old leg may be reset only when both FENCEs have arrived: a reset loses its
 * number.
 *
 * If no other path is usable, but the link still works on this one, the switch goes to the same leg. Both sides make
 * the leg ready again (*renewed*) between the FENCEs and the replay. So a path that was only too slow for a moment
 * doesn't cost the connection.
 *
 * On each side one thread switches all queue pairs that have lost a path. So only a few of a link are begun at the same
 * time; otherwise each would wait for its answer as long as the peer needs for all. The others wait their turn.
 * Switches that the peer has begun don't wait: the peer decides about its own.
 *
 * While no path at all is up, a switch waits where it is until the link has found a path (links.h) or gives up. In the
 * second case the connections are released, and the programs get the usual error of verbs.
 */
#include "common/report.h"
#include "failover/srq.h"
#include "failover/switch.h"
#include "journal/journal.h"
#include "objects/slow_path.h"
#include "objects/completions.h"
#include "objects/legs.h"

enum {
    DRAIN_MS = 1000,
    UNREAD_MS = 5000,
    /* for the peer's answer while a path is up: the peer may have a thousand others, or an SRQ of many receives to
     * move */
    PEER_MS = 60000,
    RECEIVES_MS = 200, /* for receives of a shared queue to be moved to another path */
    LAST_NS = 20000000,  /* for LAST_WQE_REACHED: for leg 0 the program receives it, and may not read it */
    SETTLE_NS = 1000000, /* if there is no such event */
    READY_MS = 3000, /* for a backup that is still being set up or made ready again */
};

static void gather_once(shift_cq_t *c, uint64_t round) {
    if (c->gathered != round)
        shift_gather(c);
    c->gathered = round;
}

static void gather(shift_qp_t *q) {
    shift_gather(q->send_cq);
    if (q->recv_cq != q->send_cq)
        shift_gather(q->recv_cq);
}

static int choose_target(const shift_qp_t *q) {
    for (int p = 0; p < q->o.device->paths; p++)
        if (p != q->path && shift_leg_usable(q, p))
            return p;
    return -1;
}

/* ---- step 1: fence and drain ---- */

/* Returns true while no path is up, unless the queue pair is released. Time limits start when a path is up. */
static bool wait_for_link(shift_qp_t *q) {
    if (!q->linked || shift_link_alive(q->link))
        return false;
    q->since = shift_now();
    if (shift_link_lost(q->link)) {
        shift_release(q, "no path to its peer is left");
    } else if (!q->cut_off) {
        q->cut_off = true;
        shift_tell(q, "cut-off");
    }
    return true;
}

/* False: no path is usable yet, or none will be (then the queue pair is released). */
static bool find_target(shift_qp_t *q) {
    if (wait_for_link(q))
        return false;
    bool hope = !q->linked ? q->o.waiting : !q->link->connected;
    if (q->linked && q->target < 0)
        q->target = choose_target(q);
    for (int p = 0; q->linked && p < q->o.device->paths; p++)
        hope |= p != q->path && q->legs[p].peer_qpn && q->link->on[p].up; /* its leg is being made ready */
    if (q->target < 0 && hope && shift_now() - q->since < READY_MS * 1000000u)
        return false;
    if (q->target < 0 && q->linked && q->link->on[q->path].up)
        q->target = q->path;
    if (q->target < 0)
        shift_release(q, q->linked ? "no path to its peer is left" : "its backup was not ready");
    else if (q->target != q->path && !q->moved)
        shift_link_down(q->link, q->path, true);
    return q->target >= 0;
}

/* Requests posted to a queue pair in the error state come back flushed, after all that were posted before. So when
 * these two have come back, no completion is missing. For a queue pair with a shared receive queue, none can be
 * posted as a receive. Instead its RNIC reports when it has taken the last one (LAST_WQE_REACHED; InfiniBand
 * specification 10.3.1). If this event isn't received, we wait for a moment; completions that come even later are
 * detected (srq.c). */
static bool drained(shift_qp_t *q) {
    shift_leg_t *leg = &q->legs[q->path];
    struct ibv_send_wr send = {
        .wr_id = (uintptr_t)&leg->drained_sends, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_recv_wr recv = {.wr_id = (uintptr_t)&leg->drained_recvs};
    if (q->unread && !leg->sentinel_send && !leg->sentinel_recv)
        q->rewind->fenced(q->queues);
    if (!leg->sentinel_send)
        leg->sentinel_send = shift_leg_send(q, q->path, &send) == 0;
    if (!q->srq && !leg->sentinel_recv && shift_leg_recv(q, q->path, &recv) == 0) {
        leg->sentinel_recv = true;
        /* Soft-RoCE checks its receive queue when the state is set, not when it is posted to */
        shift_qp_fence(leg->qp);
    }
    gather(q);
    if (q->srq && leg->drained_sends && !leg->settled)
        leg->settled = shift_now() + (q->o.device->tells_last ? LAST_NS : SETTLE_NS);
    if (leg->drained_sends && (q->srq ? leg->last_reached || shift_now() > leg->settled : leg->drained_recvs))
        return true;
    /* A dead RNIC flushes nothing, so what has not completed counts as outstanding. If only the RNIC knows what is
     * outstanding, we wait longer. */
    return shift_now() - q->since > (uint64_t)(q->unread ? UNREAD_MS : DRAIN_MS) * 1000000u;
}

/* Are receives posted on the new path? False: not yet, or (then the queue pair is released) never. */
static bool receives_ready(shift_qp_t *q) {
    if (!q->srq)
        return true;
    uint64_t ms = (shift_now() - q->since) / 1000000;
    shift_srq_move(q, q->target);
    if (shift_srq_ready(q->srq, q->target))
        return true;
    if (shift_srq_clean(q->srq, q->target))
        return ms > DRAIN_MS + RECEIVES_MS;
    if (ms > PEER_MS)
        shift_release(q, "its shared receive queue cannot be emptied for the return");
    return false;
}

/* ---- step 2 ---- */

static void tell_progress(shift_qp_t *q) {
    struct ibv_qp_attr a = {0};
    struct ibv_qp_init_attr init;
    q->times.drained = shift_now();
    bool unknown = shift_real()->query_qp(q->legs[q->path].qp, &a, IBV_QP_RQ_PSN, &init) != 0;
    if (unknown)
        shift_report("%s does not say how far it got: connections with outstanding requests to it are lost",
                     q->o.device->path[q->path].name);
    q->legs[q->path].closed = true;
    q->posted_recvs = q->recvs.first;
    shift_phase(q, SHIFT_WAITING);
    if (q->target != q->path)
        shift_repost_recvs(q);
    if (q->states.sq == SHIFT_SQ_RELEASED)
        return;
    shift_link_send(q->link, &(shift_message_t){.type = SHIFT_FENCE,
                                                .epoch = q->epoch,
                                                .from_qpn = q->qp->qp_num,
                                                .to_qpn = q->legs[0].peer_qpn,
                                                .a = a.rq_psn & SHIFT_PSN_MASK,
                                                .b = (q->moved ? SHIFT_FENCE_MOVED : 0) |
                                                     (unknown ? SHIFT_FENCE_UNKNOWN : 0) |
                                                     (uint32_t)(q->path << 8 | q->target)});
    q->times.told = shift_now();
}

/* True: keep waiting. */
static bool wait_for_peer(shift_qp_t *q) {
    if (wait_for_link(q))
        return true;
    if (shift_now() - q->since <= (uint64_t)PEER_MS * 1000000u)
        return false;
    shift_release(q, "its peer doesn't answer");
    return true;
}

/* ---- step 3 ---- */

static bool answers(enum ibv_wr_opcode o) {
    return o == IBV_WR_RDMA_READ || o == IBV_WR_ATOMIC_CMP_AND_SWP || o == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* Number of packets that the peer has executed, from the first one of this entry on, which is the oldest outstanding.
 * It is as large as it seems to be: more than half of all numbers may be outstanding. Only the request of ours that may
 * come before (wash) can be the one that wasn't executed. */
static int64_t executed_from(const shift_qp_t *q, const shift_send_t *first) {
    return (int64_t)((q->peer_psn - first->first_psn + q->washing) & SHIFT_PSN_MASK) - q->washing;
}

/* Finds out how much of our outstanding requests the peer has executed. Returns NULL, or why they can't be
 * completed. */
static const char *settle(shift_qp_t *q) {
    static const char *const lost = "a request was executed, but its result was lost, and it cannot be repeated";
    shift_journal_t *j = &q->sends;
    uint32_t mtu = 128u << q->legs[q->path].mtu;
    const shift_send_t *unanswered = NULL, *before = NULL;
    int64_t executed = 0; /* packets that were executed, from the first one of `before` on */
    for (uint64_t s = j->first; s < q->posted_sends; s++) {
        shift_send_t *e = shift_journal_at(j, s);
        if (e->done || e->packets == 0)
            continue;
        if (q->peer_unknown)
            return "its peer's RNIC does not say which requests it has executed";
        executed = before ? executed - ((e->first_psn - before->first_psn) & SHIFT_PSN_MASK) : executed_from(q, e);
        before = e;
        if (answers(e->wr.opcode)) {
            if (e->wr.opcode != IBV_WR_RDMA_READ && executed > 0)
                return lost; /* an atomic was executed, but its result is lost */
            if (executed > 0)
                unanswered = unanswered ? unanswered : e;
            continue;
        }
        if (executed >= (int64_t)e->packets) {
            if (unanswered && e->wr.opcode == IBV_WR_RDMA_WRITE && e->wr.wr.rdma.rkey == unanswered->wr.wr.rdma.rkey &&
                e->wr.wr.rdma.remote_addr < unanswered->wr.wr.rdma.remote_addr + unanswered->length &&
                unanswered->wr.wr.rdma.remote_addr < e->wr.wr.rdma.remote_addr + e->length)
                return lost; /* the read would see data that was written after it */
            e->done = true;
        } else if (executed > 0 && (e->wr.opcode == IBV_WR_RDMA_WRITE || e->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)) {
            e->skip = e->base + (uint64_t)executed * mtu;
        }
    }
    return NULL;
}

/* At a reset, Soft-RoCE (Linux 6.1) keeps the state that it was in the middle of a READ's answer: the first
 * acknowledgement afterwards completes the oldest request, executed or not (soft-roce.md). To compensate, the first
 * request is an empty READ. */
static void wash(shift_qp_t *q) {
    struct ibv_send_wr wr = {
        .wr_id = (uintptr_t)&q->washing, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED};
    shift_leg_t *leg = &q->legs[q->path];
    if (q->o.device->rxe && leg->generation && shift_leg_send(q, q->path, &wr) == 0) {
        leg->next_psn = (leg->next_psn + 1) & SHIFT_PSN_MASK;
        q->washing = true;
    }
}

/* Returns to the default state, once nothing is held back, no completion has to be created, and no completion of our
 * own can arrive in the program's queue. */
static void leave(shift_qp_t *q) {
    if (q->path != 0 || q->washing || q->posted_sends != q->sends.next || q->posted_recvs != q->recvs.next)
        return;
    for (uint64_t s = q->sends.first; s < q->sends.next; s++)
        if (((shift_send_t *)shift_journal_at(&q->sends, s))->done)
            return;
    if (shift_draft_ends(q)) {
        shift_set_slow(q, false);
        shift_draft_ended(q);
    }
}

static void resume(shift_qp_t *q) {
    shift_phase(q, SHIFT_STEADY);
    wash(q);
    if (q->path == 0) {
        while (q->states.sq != SHIFT_SQ_WAIT_SINKED)
            shift_transition(&q->states, q->states.sq == SHIFT_SQ_FALLBACK ? SHIFT_RECOVERED : SHIFT_SIGNALED);
        shift_transition(&q->states, SHIFT_RETURNED);
        q->moved = false;
    }
    shift_repost_sends(q);
    if (q->states.sq == SHIFT_SQ_RELEASED)
        return;
    q->times.replayed = shift_now();
    leave(q);
    shift_ring_bells(q);
}

static void switched(shift_qp_t *q) {
    const char *why = settle(q);
    bool renewed = q->target == q->path;
    q->posted_sends = q->sends.first;
    shift_retire_done(q);
    q->path = q->target;
    if (why) {
        shift_release(q, why);
        return;
    }
    q->trouble = IBV_WC_SUCCESS;
    q->marker_posted = q->marker_done = q->peer_sunk = q->sunk_told = q->washing = false;
    if (renewed) {
        shift_phase(q, SHIFT_RENEWING);
        if (shift_leg_connect(q, q->path, q->epoch) == 0)
            shift_repost_recvs(q);
        else
            shift_link_down(q->link, q->path, true);
        return;
    }
    q->path == 0 ? q->returns++ : q->switches++;
    resume(q);
    if (q->states.sq != SHIFT_SQ_RELEASED)
        shift_tell(q, q->path ? "fallback" : "return");
}

/* ---- the worker's steps ---- */

void shift_switch_step(shift_qp_t *q) {
    if (q->plain || (!q->linked && q->phase != SHIFT_BROKEN) || q->states.sq == SHIFT_SQ_RELEASED)
        return;
    if (q->direct) { /* the program's threads use its queues */
        shift_mend_legs(q);
        return;
    }
    if (q->srq && q->srq->on[q->receives_on].lacks_memory) {
        shift_release(q, "a receive of its shared queue uses memory that is not registered on the backup");
        return;
    }
    gather_once(q->send_cq, q->o.device->round); /* the program may not be polling */
    gather_once(q->recv_cq, q->o.device->round);
    if (q->phase == SHIFT_BROKEN) {
        if (q->linked)
            shift_mend_legs(q);
        if (!q->peer_fenced && !shift_turn(q)) {
            q->since = shift_now();
        } else if (find_target(q)) {
            shift_take_turn(q);
            shift_fence(q);
        }
    } else if (q->phase == SHIFT_CLEARING) {
        shift_fence(q);
    }
    if (q->phase == SHIFT_DRAINING && drained(q) && receives_ready(q)) {
        const char *why = q->unread ? shift_read_back(q) : NULL;
        if (why) {
            shift_release(q, why);
            return;
        }
        q->errors_count = 0;
        tell_progress(q);
    }
    if (q->phase == SHIFT_WAITING) {
        if (q->peer_fenced)
            switched(q);
        else
            wait_for_peer(q);
    }
    if (q->phase == SHIFT_RENEWING) {
        if (shift_leg_usable(q, q->path)) {
            resume(q);
            shift_tell(q, "renewed");
        } else if (!wait_for_peer(q) && !q->link->on[q->path].up) { /* another path is up */
            shift_new_epoch(q);
            shift_phase(q, SHIFT_BROKEN);
        }
    }
    if (q->has_early && (q->phase == SHIFT_STEADY || q->phase == SHIFT_RENEWING) && q->states.sq != SHIFT_SQ_RELEASED)
        shift_take_early(q);
    if (q->phase != SHIFT_STEADY || q->states.sq == SHIFT_SQ_RELEASED || q->direct)
        return;
    shift_repost_sends(q);
    shift_repost_recvs(q);
    if (q->states.sq == SHIFT_SQ_RELEASED)
        return;
    shift_mend_legs(q);
    if (q->path != 0)
        shift_way_back(q);
    else
        leave(q);
    if (q->send_cq->count)
        shift_ring_bell(q->send_cq);
    if (q->recv_cq != q->send_cq && q->recv_cq->count)
        shift_ring_bell(q->recv_cq);
}
