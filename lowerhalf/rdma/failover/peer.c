/* peer.c - the peer's FENCE: it has begun a switch, or answers ours. messages.c handles the other messages.
 *
 * Invariants:
 * 1. Both sides choose the same leg, whichever side began and whatever each has chosen before (agree).
 * 2. A message may arrive twice, or before one that was sent earlier. The epochs show this.
 */
#include "common/report.h"
#include "failover/srq.h"
#include "failover/switch.h"
#include "objects/slow_path.h"
#include "objects/legs.h"

/* Reads the progress from the peer's FENCE (links.h): a is the sequence number of its leg; b says which leg it was and
 * to which leg the peer goes. */
static void take_progress(shift_qp_t *q, uint32_t a, uint32_t b) {
    q->peer_fenced = true;
    q->peer_psn = a;
    q->peer_unknown = b & SHIFT_FENCE_UNKNOWN;
    q->times.answered = q->link->answered = shift_now();
}

static void peer_begins(shift_qp_t *q, uint32_t a, uint32_t b) {
    int from = (int)(b >> 8 & 0xff), to = (int)(b & 0xff);
    bool moved = b & SHIFT_FENCE_MOVED;
    if (from != q->path || to >= q->o.device->paths || !q->legs[to].qp || (!q->legs[to].ready && to != from)) {
        shift_release(q, "its peer has taken another path");
        return;
    }
    shift_set_slow(q, true);
    q->moved = moved;
    if (to && to != from && !moved)
        shift_link_down(q->link, from, false);
    if (to || to == from || q->states.sq == SHIFT_SQ_DEFAULT)
        shift_transition(&q->states, SHIFT_FAIL);
    shift_new_epoch(q);
    q->target = to;
    take_progress(q, a, b);
    shift_fence(q);
}

/* Gives up a leg that one side has chosen but to which the switch does not go. It has receives already. */
static void abandon(shift_qp_t *q, int path) {
    shift_leg_t *leg = &q->legs[path];
    leg->fenced = true;
    leg->ready = false;
    leg->lost_in = q->epoch;
    shift_qp_fence(leg->qp);
}

/* Both sides began, and each has made a choice. If the choices differ, both sides take the same one: another leg rather
 * than the same leg, a smaller number rather than a larger one. */
static void agree(shift_qp_t *q, uint32_t a, uint32_t b) {
    int to = (int)(b & 0xff), mine = q->target, from = q->path;
    bool told = q->phase == SHIFT_WAITING;
    bool theirs = mine < 0 || !told || mine == from || (to != from && to < mine);
    int chosen = theirs ? to : mine, other = theirs ? mine : to;
    if (to >= q->o.device->paths || (chosen != from && !q->legs[chosen].ready)) {
        shift_release(q, "its peer has taken another path");
        return;
    }
    if (told && other != chosen && other != from)
        abandon(q, other);
    q->target = chosen;
    take_progress(q, a, b);
    if (told && theirs && mine != to) {
        q->posted_recvs = q->recvs.first;
        shift_repost_recvs(q);
        shift_srq_move(q, chosen);
    }
}

void shift_fence_in(shift_qp_t *q, uint32_t epoch, uint32_t a, uint32_t b) {
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
    } /* otherwise the FENCE arrived twice */
}

/* Handles the FENCE that arrived too early. */
void shift_take_early(shift_qp_t *q) {
    q->has_early = false;
    shift_fence_in(q, q->early_epoch, q->early_a, q->early_b);
}

/* From now on the connection is protected here. The peer was first, and its path has failed since. */
void shift_linked(shift_qp_t *q) {
    q->linked = true;
    if (q->has_early)
        shift_take_early(q);
}
