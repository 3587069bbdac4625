/* switch.c - moving a queue pair's traffic from one path to another, with nothing lost, doubled or reordered.
 *
 * One switch (an `epoch`, counted alike on both sides):
 *   1. fence: the leg in use goes to the error state, so that nothing more happens on it; its completions are drained, those of executed requests go to
 *      the program;
 *   2. the packet sequence number that the leg expected next says exactly how far the peer's requests were executed here: FENCE carries it to the peer,
 *      once our receives are posted on the new leg;
 *   3. the peer's FENCE says how far ours were executed there: those that were are completed without being sent again, a half-written RDMA write goes on
 *      behind its last packet, the rest is posted on the new leg.
 * Both sides do the same whoever began, so two that begin at once do one switch. shift.txt 4.2.2 replays everything that was not acknowledged; what is
 * different here closes the hole of its 4.3 (acknowledgements lost). The old leg may be reset only when both FENCEs are there: a reset forgets its number.
 *
 * When no other path is usable, but the link still works on this one, the switch is to the same leg, made ready again on both sides (*renewed*) between
 * the FENCEs and the replay: a path that was only too slow for a moment doesn't cost the connection.
 *
 * While no path at all is up, a switch waits where it is until the link has found one (links.h) or gives up: then the connections are released, and the
 * programs get the standard error.
 *
 * The way back is the same switch, begun when both sides' legs on the default path are ready again and their send queues have sunk (4.2.3), so that it
 * finds nothing to replay; a peer that waits for us in the meantime would wait for ever, so sinking has a time limit: then the replay does its work.
 */
#include "links.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    DRAIN_MS = 1000,
    UNREAD_MS = 5000,
    PEER_MS = 10000, /* for its answer, while a path is up */
    RECEIVES_MS = 200, /* receives of a shared queue on the way to another path */
    SETTLE_NS = 1000000,
    SINK_MS = 100,
    READY_MS = 3000, /* a backup that is still being set up, or made ready again, is waited for */
};

bool shift_transport_error(const shift_qp_t *q, const struct ibv_wc *wc)
{
    switch (wc->status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_WR_FLUSH_ERR: /* the state was left without the program's doing */
    case IBV_WC_FATAL_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_GENERAL_ERR:
        return true;
    case IBV_WC_LOC_QP_OP_ERR: /* Soft-RoCE: the network device would not take a packet */
        return q->o.device->rxe;
    default:
        return false;
    }
}

static void phase(shift_qp_t *q, shift_phase_t to)
{
    q->phase = to;
    q->since = shift_now();
}

static void gather_once(shift_cq_t *c, uint64_t round)
{
    if (c->gathered != round)
        shift_gather(c);
    c->gathered = round;
}

static void gather(shift_qp_t *q)
{
    shift_gather(q->send_cq);
    if (q->recv_cq != q->send_cq)
        shift_gather(q->recv_cq);
}

static void ring_bells(shift_qp_t *q)
{
    shift_ring_bell(q->send_cq);
    if (q->recv_cq != q->send_cq)
        shift_ring_bell(q->recv_cq);
}

static int choose_target(const shift_qp_t *q)
{
    for (int p = 0; p < q->o.device->paths; p++)
        if (p != q->path && shift_leg_usable(q, p))
            return p;
    return -1;
}

static void new_epoch(shift_qp_t *q)
{
    q->epoch++;
    q->target = -1;
    q->peer_fenced = false;
    q->times = (shift_times_t){.begun = shift_now()};
}

/* The error completion is kept for the program, should there be no way out. Device lock held. */
void shift_fail(shift_qp_t *q, const struct ibv_wc *wc)
{
    if (q->states.sq == SHIFT_SQ_RELEASED || q->phase != SHIFT_STEADY)
        return;
    if (wc) {
        q->trouble = *wc;
        q->trouble.qp_num = q->qp->qp_num;
        q->has_trouble = true;
    }
    if (wc)
        q->moved = false;
    shift_away(q, true);
    shift_transition(&q->states, SHIFT_FAIL);
    new_epoch(q);
    phase(q, SHIFT_BROKEN);
    shift_wake(q->o.device);
}

/* To the provider, which flushes it behind everything else. */
static void flush_held_back(shift_qp_t *q)
{
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
    shift_qp_fence(q->qp); /* Soft-RoCE looks at its receives when told to */
}

/* The provider's again: the program gets the error, then what a queue pair in the error state gives (IB 10.3.1): all its requests, flushed. */
void shift_release(shift_qp_t *q, const char *why)
{
    if (q->states.sq == SHIFT_SQ_RELEASED)
        return;
    bool on_default = q->path == 0 && !q->legs[0].closed;
    if (why) {
        shift_report("a connection of %s is lost: %s", q->o.device->path[0].name, why);
        shift_wake(q->o.device);
        if (q->link) /* it must not wait for us */
            shift_link_send(q->link, &(shift_message_t){.type = SHIFT_GONE, .epoch = q->epoch, .from_qpn = q->qp->qp_num, .to_qpn = q->legs[0].peer_qpn});
    }
    shift_away(q, true);
    shift_transition(&q->states, SHIFT_GIVE_UP);
    shift_srq_move(q, 0);
    phase(q, SHIFT_STEADY);
    for (int p = 1; p < SHIFT_PATHS; p++)
        if (q->legs[p].qp) {
            q->legs[p].fenced = true;
            shift_qp_fence(q->legs[p].qp);
        }
    if (on_default) { /* what is in the provider's queues comes from there, in order; behind it, what was held back */
        shift_tell_errors(q);
        q->has_trouble = false;
        if (q->unread) {
            q->posted_sends = q->sends.first;
            q->posted_recvs = q->recvs.first;
        }
        if (q->posted_sends < q->sends.next || q->posted_recvs < q->recvs.next || why)
            flush_held_back(q);
        if (why) {
            ring_bells(q);
            shift_tell(q, "lost");
        }
        return;
    }
    if (q->has_trouble) {
        shift_deliver(q->send_cq, &q->trouble);
        if (q->sends.first < q->sends.next && ((shift_send_t *)shift_journal_at(&q->sends, q->sends.first))->wr.wr_id == q->trouble.wr_id)
            shift_journal_drop(&q->sends, 1);
        q->has_trouble = false;
    }
    for (uint64_t s = q->sends.first; s < q->sends.next; s++)
        shift_complete_send(q, shift_journal_at(&q->sends, s), IBV_WC_WR_FLUSH_ERR);
    for (uint64_t s = q->recvs.first; s < q->recvs.next; s++) {
        const shift_recv_t *e = shift_journal_at(&q->recvs, s);
        struct ibv_wc wc = {.wr_id = e->wr.wr_id, .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV, .qp_num = q->qp->qp_num};
        shift_deliver(q->recv_cq, &wc);
    }
    shift_qp_fence(q->qp);
    ring_bells(q);
    shift_tell(q, "lost");
}

/* ---- step 1: fence and drain ---- */

/* No path is up: true, unless the queue pair is released. What has a time limit has it from when one is. */
static bool wait_for_link(shift_qp_t *q)
{
    if (!q->linked || shift_link_alive(q->link))
        return false;
    q->since = shift_now();
    if (shift_link_lost(q->link))
        shift_release(q, "no path to its peer is left");
    return true;
}

/* False: there is no way out yet, or none (then the queue pair is released). */
static bool find_target(shift_qp_t *q)
{
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

static void fence(shift_qp_t *q)
{
    shift_leg_t *leg = &q->legs[q->path];
    if (q->unread && shift_qp_busy(q)) {
        if (q->phase != SHIFT_CLEARING)
            phase(q, SHIFT_CLEARING);
        return;
    }
    leg->fenced = true;
    leg->lost_in = q->epoch;
    leg->ready = leg->peer_ready = false;
    shift_qp_fence(leg->qp);
    phase(q, SHIFT_DRAINING);
    q->times.fenced = q->since;
}

/* Requests posted to a queue pair in the error state come back flushed, after all that were posted before: when these two are back, no completion is
 * missing. To a shared receive queue none can be posted for this queue pair: it gets a moment, and what is later still is noticed (srq.c). */
static bool drained(shift_qp_t *q)
{
    shift_leg_t *leg = &q->legs[q->path];
    struct ibv_send_wr send = {.wr_id = (uintptr_t)&leg->drained_sends, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_recv_wr recv = {.wr_id = (uintptr_t)&leg->drained_recvs};
    if (q->unread && !leg->sentinel_send && !leg->sentinel_recv)
        q->rewind->fenced(q->queues);
    if (!leg->sentinel_send)
        leg->sentinel_send = shift_leg_send(q, q->path, &send) == 0;
    if (!q->srq && !leg->sentinel_recv && shift_leg_recv(q, q->path, &recv) == 0) {
        leg->sentinel_recv = true;
        shift_qp_fence(leg->qp); /* Soft-RoCE looks at its receive queue when told to, not when it is posted to */
    }
    gather(q);
    if (q->srq && leg->drained_sends && !leg->settled)
        leg->settled = shift_now() + SETTLE_NS;
    if (leg->drained_sends && (q->srq ? shift_now() > leg->settled : leg->drained_recvs))
        return true;
    /* A dead RNIC flushes nothing: what has not completed counts as outstanding; if nobody else knows what that is, it is waited for longer. */
    return shift_now() - q->since > (uint64_t)(q->unread ? UNREAD_MS : DRAIN_MS) * 1000000u;
}

/* The new path has receives to give. False: not yet, or (then the queue pair is released) never. */
static bool receives_ready(shift_qp_t *q)
{
    if (!q->srq)
        return true;
    uint64_t ms = (shift_now() - q->since) / 1000000;
    shift_srq_move(q, q->target);
    if (shift_srq_ready(q->srq, q->target))
        return true;
    if (shift_srq_clean(q->srq, q->target))
        return ms > DRAIN_MS + RECEIVES_MS;
    if (ms > PEER_MS)
        shift_release(q, "its shared receive queue can't be emptied for the way back");
    return false;
}

/* ---- step 2 ---- */

static void tell_progress(shift_qp_t *q)
{
    struct ibv_qp_attr a = {0};
    struct ibv_qp_init_attr init;
    q->times.drained = shift_now();
    if (shift_real()->query_qp(q->legs[q->path].qp, &a, IBV_QP_RQ_PSN, &init) != 0)
        shift_report("%s can't be asked how far it got: trailing RDMA writes may be repeated", q->o.device->path[q->path].name);
    q->legs[q->path].closed = true;
    q->posted_recvs = q->recvs.first;
    phase(q, SHIFT_WAITING);
    if (q->target != q->path)
        shift_pump_recvs(q);
    if (q->states.sq == SHIFT_SQ_RELEASED)
        return;
    shift_link_send(q->link, &(shift_message_t){.type = SHIFT_FENCE, .epoch = q->epoch, .from_qpn = q->qp->qp_num, .to_qpn = q->legs[0].peer_qpn,
                                                .a = a.rq_psn & SHIFT_PSN_MASK, .b = (uint32_t)(q->moved << 16 | q->path << 8 | q->target)});
    q->times.told = shift_now();
}

/* ---- step 3 ---- */

static int32_t psn_distance(uint32_t from, uint32_t to) { return (int32_t)((to - from) << 8) >> 8; }

static bool answers(enum ibv_wr_opcode o) { return o == IBV_WR_RDMA_READ || o == IBV_WR_ATOMIC_CMP_AND_SWP || o == IBV_WR_ATOMIC_FETCH_AND_ADD; }

/* What the peer has executed of our outstanding requests. False: that can't be told without a doubt, or can't be made good. */
static bool settle(shift_qp_t *q)
{
    shift_journal_t *j = &q->sends;
    uint32_t mtu = 128u << q->legs[q->path].mtu;
    const shift_send_t *unanswered = NULL;
    for (uint64_t s = j->first; s < q->posted_sends; s++) {
        shift_send_t *e = shift_journal_at(j, s);
        if (e->done || e->packets == 0)
            continue;
        int32_t executed = psn_distance(e->first_psn, q->peer_psn);
        if (answers(e->wr.opcode)) {
            if (e->wr.opcode != IBV_WR_RDMA_READ && executed > 0)
                return false; /* an atomic was executed, its result is lost */
            if (executed > 0)
                unanswered = unanswered ? unanswered : e;
            continue;
        }
        if (executed >= (int32_t)e->packets) {
            if (unanswered && e->wr.opcode == IBV_WR_RDMA_WRITE && e->wr.wr.rdma.rkey == unanswered->wr.wr.rdma.rkey &&
                e->wr.wr.rdma.remote_addr < unanswered->wr.wr.rdma.remote_addr + unanswered->length &&
                unanswered->wr.wr.rdma.remote_addr < e->wr.wr.rdma.remote_addr + e->length)
                return false; /* the read would see what was written after it */
            e->done = true;
        } else if (executed > 0 && (e->wr.opcode == IBV_WR_RDMA_WRITE || e->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)) {
            e->skip = e->base + (uint64_t)executed * mtu;
        }
    }
    return true;
}

/* Soft-RoCE (Linux 6.1) doesn't forget at a reset that it was in the middle of a READ's answer: the first acknowledgement afterwards completes the oldest
 * request, executed or not (soft-roce.md). An empty READ as the first request makes up for it. */
static void wash(shift_qp_t *q)
{
    struct ibv_send_wr wr = {.wr_id = (uintptr_t)&q->washing, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED};
    shift_leg_t *leg = &q->legs[q->path];
    if (q->o.device->rxe && leg->generation && shift_leg_send(q, q->path, &wr) == 0) {
        leg->next_psn = (leg->next_psn + 1) & SHIFT_PSN_MASK;
        q->washing = true;
    }
}

/* Back to the default state, once nothing is held back, no completion has to be made up, and none of our own can come on the program's queue. */
static void leave(shift_qp_t *q)
{
    if (q->path != 0 || q->washing || q->posted_sends != q->sends.next || q->posted_recvs != q->recvs.next)
        return;
    for (uint64_t s = q->sends.first; s < q->sends.next; s++)
        if (((shift_send_t *)shift_journal_at(&q->sends, s))->done)
            return;
    if (shift_draft_ends(q)) {
        shift_away(q, false);
        shift_draft_ended(q);
    }
}

static void resume(shift_qp_t *q)
{
    phase(q, SHIFT_STEADY);
    wash(q);
    if (q->path == 0) {
        while (q->states.sq != SHIFT_SQ_WAIT_SINKED)
            shift_transition(&q->states, q->states.sq == SHIFT_SQ_FALLBACK ? SHIFT_RECOVERED : SHIFT_SIGNALED);
        shift_transition(&q->states, SHIFT_RETURNED);
        q->moved = false;
    }
    shift_pump_sends(q);
    if (q->states.sq == SHIFT_SQ_RELEASED)
        return;
    q->times.replayed = shift_now();
    leave(q);
    ring_bells(q);
}

static void switched(shift_qp_t *q)
{
    bool sound = settle(q), renewed = q->target == q->path;
    q->posted_sends = q->sends.first;
    shift_retire_done(q);
    q->path = q->target;
    if (!sound) {
        shift_release(q, "a request was executed whose result did not come back, and it can't be repeated");
        return;
    }
    q->has_trouble = false;
    q->marker_posted = q->marker_done = q->peer_sunk = q->sunk_told = q->washing = false;
    if (renewed) {
        phase(q, SHIFT_RENEWING);
        if (shift_leg_connect(q, q->path, q->epoch) == 0)
            shift_pump_recvs(q);
        else
            shift_link_down(q->link, q->path, true);
        return;
    }
    q->path == 0 ? q->returns++ : q->switches++;
    resume(q);
    if (q->states.sq != SHIFT_SQ_RELEASED)
        shift_tell(q, q->path ? "fallback" : "return");
}

/* ---- the way back ---- */

/* Legs that were lost are made ready again as soon as the link's control queue pair works on their path. */
static void mend_legs(shift_qp_t *q)
{
    for (int p = 0; p < q->o.device->paths; p++)
        if (p != q->path && q->legs[p].fenced && q->link->on[p].up)
            shift_leg_connect(q, p, q->legs[p].lost_in);
}

/* An empty signaled write of our own: when it completes, everything before it has. */
static void post_marker(shift_qp_t *q)
{
    struct ibv_send_wr wr = {.wr_id = (uintptr_t)&q->marker_done, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    shift_leg_t *leg = &q->legs[q->path];
    if (shift_leg_send(q, q->path, &wr) == 0) {
        leg->next_psn = (leg->next_psn + 1) & SHIFT_PSN_MASK;
        q->marker_posted = true;
    }
}

static void go_back(shift_qp_t *q)
{
    new_epoch(q);
    q->target = 0;
    fence(q);
}

static void way_back(shift_qp_t *q)
{
    switch (q->states.sq) {
    case SHIFT_SQ_FALLBACK:
        if (q->path == 0 || q->moved || !shift_leg_usable(q, 0) || q->posted_sends < q->sends.next)
            break;
        shift_transition(&q->states, SHIFT_RECOVERED);
            /* fall through */
    case SHIFT_SQ_WAIT_SIGNALED:
        if (!q->marker_posted)
            post_marker(q); /* the paper waits for the program's next signaled request; it might never post one, and the peer would wait with it */
        if (!q->marker_posted)
            break;
        shift_transition(&q->states, SHIFT_SIGNALED);
        q->since = shift_now();
        /* fall through */
    case SHIFT_SQ_WAIT_SINKED:
        if (q->marker_done && !q->sunk_told) {
            q->sunk_told = true;
            shift_link_send(q->link, &(shift_message_t){.type = SHIFT_SUNK, .epoch = q->epoch, .from_qpn = q->qp->qp_num, .to_qpn = q->legs[0].peer_qpn});
        }
        if ((q->sunk_told && q->peer_sunk) || shift_now() - q->since > SINK_MS * 1000000u)
            go_back(q);
        break;
    default:
        break;
    }
}

/* ---- the peer's part ---- */

/* True: the wait goes on. */
static bool wait_for_peer(shift_qp_t *q)
{
    if (wait_for_link(q))
        return true;
    if (shift_now() - q->since <= (uint64_t)PEER_MS * 1000000u)
        return false;
    shift_release(q, "its peer doesn't answer");
    return true;
}

/* The progress that its FENCE tells (links.h): a is its leg's number, b which leg that was and which one it goes to. */
static void take_progress(shift_qp_t *q, uint32_t a)
{
    q->peer_fenced = true;
    q->peer_psn = a;
    q->times.answered = shift_now();
}

static void peer_begins(shift_qp_t *q, uint32_t a, uint32_t b)
{
    int from = (int)(b >> 8 & 0xff), to = (int)(b & 0xff);
    bool moved = b >> 16 & 1;
    if (from != q->path || to >= q->o.device->paths || !q->legs[to].qp || (!q->legs[to].ready && to != from)) {
        shift_release(q, "its peer went another way");
        return;
    }
    shift_away(q, true);
    q->moved = moved;
    if (to && to != from && !moved)
        shift_link_down(q->link, from, false);
    if (to || to == from || q->states.sq == SHIFT_SQ_DEFAULT)
        shift_transition(&q->states, SHIFT_FAIL);
    new_epoch(q);
    q->target = to;
    take_progress(q, a);
    fence(q);
}

/* A leg that one side has chosen, and the switch doesn't go to: it has receives already. */
static void abandon(shift_qp_t *q, int path)
{
    shift_leg_t *leg = &q->legs[path];
    leg->fenced = true;
    leg->ready = false;
    leg->lost_in = q->epoch;
    shift_qp_fence(leg->qp);
}

/* Both began, and each has made a choice. Where they differ both take the same one: rather another leg than the same again, rather a smaller number. */
static void agree(shift_qp_t *q, uint32_t a, uint32_t b)
{
    int to = (int)(b & 0xff), mine = q->target, from = q->path;
    bool told = q->phase == SHIFT_WAITING;
    bool theirs = mine < 0 || !told || mine == from || (to != from && to < mine);
    int chosen = theirs ? to : mine, other = theirs ? mine : to;
    if (to >= q->o.device->paths || (chosen != from && !q->legs[chosen].ready)) {
        shift_release(q, "its peer went another way");
        return;
    }
    if (told && other != chosen && other != from)
        abandon(q, other);
    q->target = chosen;
    take_progress(q, a);
    if (told && theirs && mine != to) {
        q->posted_recvs = q->recvs.first;
        shift_pump_recvs(q);
        shift_srq_move(q, chosen);
    }
}

static void fence_in(shift_qp_t *q, uint32_t epoch, uint32_t a, uint32_t b)
{
    bool settled = q->phase == SHIFT_STEADY || q->phase == SHIFT_RENEWING;
    if (!q->linked || (epoch == q->epoch + 1 && !settled)) {
        q->has_early = true;
        q->early_epoch = epoch;
        q->early_a = a;
        q->early_b = b;
    } else if (epoch == q->epoch + 1) {
        peer_begins(q, a, b);
    } else if (epoch == q->epoch && !settled && !q->peer_fenced) {
        agree(q, a, b);
    } /* else it came twice */
}

/* The FENCE that came too early, now. */
static void take_early(shift_qp_t *q)
{
    q->has_early = false;
    fence_in(q, q->early_epoch, q->early_a, q->early_b);
}

/* The connection is protected here now; the peer was first, and its path has failed since. */
void shift_linked(shift_qp_t *q)
{
    q->linked = true;
    if (q->has_early)
        take_early(q);
}

/* ---- the worker's part ---- */

/* Invariant: whoever needs attention is in the list; the worker takes out who doesn't any more. */
bool shift_needs_attention(const shift_qp_t *q)
{
    bool lost = false;
    for (int p = 0; p < q->o.device->paths; p++)
        lost |= q->legs[p].fenced;
    return q->states.sq != SHIFT_SQ_RELEASED && (!q->direct || lost);
}

void shift_attend(shift_qp_t *q, bool active)
{
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
        *(q->previous_active ? &q->previous_active->next_active : &d->active) = q->next_active;
        if (q->next_active)
            q->next_active->previous_active = q->previous_active;
    }
}

void shift_switch_step(shift_qp_t *q)
{
    if (q->plain || (!q->linked && q->phase != SHIFT_BROKEN) || q->states.sq == SHIFT_SQ_RELEASED)
        return;
    if (q->direct) { /* its queues are the program's threads' */
        mend_legs(q);
        return;
    }
    gather_once(q->send_cq, q->o.device->round); /* the program may not be polling */
    gather_once(q->recv_cq, q->o.device->round);
    if (q->phase == SHIFT_BROKEN) {
        if (q->linked)
            mend_legs(q);
        if (find_target(q))
            fence(q);
    } else if (q->phase == SHIFT_CLEARING) {
        fence(q);
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
        } else if (!wait_for_peer(q) && !q->link->on[q->path].up) { /* another one is */
            new_epoch(q);
            phase(q, SHIFT_BROKEN);
        }
    }
    if (q->has_early && (q->phase == SHIFT_STEADY || q->phase == SHIFT_RENEWING) && q->states.sq != SHIFT_SQ_RELEASED)
        take_early(q);
    if (q->phase != SHIFT_STEADY || q->states.sq == SHIFT_SQ_RELEASED || q->direct)
        return;
    shift_pump_sends(q);
    shift_pump_recvs(q);
    if (q->states.sq == SHIFT_SQ_RELEASED)
        return;
    mend_legs(q);
    if (q->path != 0)
        way_back(q);
    else
        leave(q);
    if (q->send_cq->count)
        shift_ring_bell(q->send_cq);
    if (q->recv_cq != q->send_cq && q->recv_cq->count)
        shift_ring_bell(q->recv_cq);
}

/* `which`: number of a queue pair, or "*". Moving to the default RNIC is the way back, taken as soon as it can be. */
void shift_move(shift_device_t *d, const char *which, const char *device)
{
    int to = -1;
    for (int p = 0; p < d->paths; p++)
        if (strcmp(d->path[p].name, device) == 0)
            to = p;
    if (to < 0) {
        shift_report("asked to move to %s, which is not a backup of %s", device, d->path[0].name);
        return;
    }
    for (shift_object_t *o = d->objects; o; o = o->next) {
        shift_qp_t *q = (shift_qp_t *)o;
        if (o->kind != SHIFT_QP || q->plain || !q->linked || q->path == to || (strcmp(which, "*") != 0 && strtoul(which, NULL, 0) != q->qp->qp_num))
            continue;
        if (to == 0) {
            q->moved = false;
        } else if (q->phase == SHIFT_STEADY && shift_leg_usable(q, to)) {
            q->moved = true;
            shift_fail(q, NULL);
            q->target = to;
        } else {
            shift_report("a connection of %s can't move to %s now", d->path[0].name, device);
        }
    }
}

void shift_message_in(shift_link_t *l, const shift_message_t *m)
{
    shift_device_t *d = l->device;
    shift_qp_t *q = shift_map_get(&d->path[0].qps, m->to_qpn);
    bool early = q && !q->link && (m->type == SHIFT_LEG_READY || m->type == SHIFT_FENCE); /* the peer has found us first */
    if (!q || q->plain || (!early && (q->link != l || !q->linked)) || q->legs[0].peer_qpn != m->from_qpn || q->states.sq == SHIFT_SQ_RELEASED) {
        if (m->type == SHIFT_FENCE)
            shift_link_send(l, &(shift_message_t){.type = SHIFT_GONE, .epoch = m->epoch, .from_qpn = m->to_qpn, .to_qpn = m->from_qpn});
        return;
    }
    switch (m->type) {
    case SHIFT_FENCE:
        fence_in(q, m->epoch, m->a, m->b);
        break;
    case SHIFT_GONE:
        if (m->epoch == q->epoch)
            shift_release(q, "its peer has ended it");
        break;
    case SHIFT_LEG_READY:
        if (m->a < (uint32_t)d->paths && (int32_t)(m->b - q->legs[m->a].peer_generation) >= 0) {
            q->legs[m->a].peer_ready = true;
            q->legs[m->a].peer_generation = m->b;
        }
        break;
    case SHIFT_SUNK:
        q->peer_sunk = m->epoch == q->epoch;
        break;
    case SHIFT_ASK:
        shift_watch_asked(q, m->epoch);
        break;
    case SHIFT_RECEIVABLE:
        shift_watch_answered(q, m->epoch);
        break;
    }
    if (q->phase != SHIFT_STEADY || q->states.sq != SHIFT_SQ_DEFAULT)
        shift_switch_step(q);
}
