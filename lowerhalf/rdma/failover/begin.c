/* begin.c - how a switch begins: a leg is found to be broken, the queue pair waits its turn, the leg is fenced.
 *
 * Nothing here continues a switch: switch.c does that. So all functions that meet an error may call it: posts, polls,
 * shared receive queues, the peer's messages.
 *
 * With the device's lock held.
 */
#include "common/report.h"
#include "failover/switch.h"
#include "objects/slow_path.h"
#include "objects/device.h"
#include "objects/legs.h"

enum {
    AT_ONCE = 32,           /* largest number of switches of a link that are in progress at any time */
    STALLED_NS = 250000000, /* no answer for this long: waiting for a turn is useless then */
};

bool shift_transport_error(const shift_qp_t *q, const struct ibv_wc *wc) {
    switch (wc->status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_WR_FLUSH_ERR: /* the leg has left its state, but the program did not cause this */
    case IBV_WC_FATAL_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_GENERAL_ERR:
        return true;
    case IBV_WC_LOC_QP_OP_ERR: /* Soft-RoCE: the network device did not accept a packet */
        return q->o.device->rxe;
    default:
        return false;
    }
}

void shift_phase(shift_qp_t *q, shift_phase_t to) {
    q->phase = to;
    q->since = shift_now();
}

void shift_new_epoch(shift_qp_t *q) {
    q->epoch++;
    q->target = -1;
    q->peer_fenced = q->cut_off = false;
    q->lacks_key = 0;
    q->times = (shift_times_t){.begun = shift_now()};
}

/* `wc`: the error completion that shows it, or NULL. Device lock held. */
void shift_fail(shift_qp_t *q, const struct ibv_wc *wc) {
    if (q->states.sq == SHIFT_SQ_RELEASED || q->phase != SHIFT_STEADY)
        return;
    if (wc)
        q->moved = false;
    shift_set_slow(q, true);
    shift_transition(&q->states, SHIFT_FAIL);
    shift_new_epoch(q);
    shift_phase(q, SHIFT_BROKEN);
    shift_wake(q->o.device);
}

static bool stalled(const shift_link_t *l) { return shift_now() - l->answered > STALLED_NS; }

/* May a switch of q begin now? */
bool shift_turn(const shift_qp_t *q) { return !q->linked || q->link->switching < AT_ONCE || stalled(q->link); }

/* A peer that does not answer in time may only be slow, and starting all switches at once would make it slower. So this
 * starts only a limited number again, and then gives the peer its time again. */
void shift_take_turn(const shift_qp_t *q) {
    shift_link_t *l = q->link;
    if (!q->linked)
        return;
    if (stalled(l))
        l->switching = 0;
    if (l->switching++ == 0)
        l->answered = shift_now();
}

/* A switch of q is in progress between its two sides: one of them may wait for the other's next step. */
bool shift_under_way(const shift_qp_t *q) {
    return (q->phase != SHIFT_STEADY && q->phase != SHIFT_BROKEN) || q->states.sq == SHIFT_SQ_WAIT_SIGNALED ||
           q->states.sq == SHIFT_SQ_WAIT_SINKED;
}

/* The worker calls this before each round. */
void shift_count_turns(shift_device_t *d) {
    for (shift_link_t *l = d->links; l; l = l->next)
        l->switching = 0;
    for (const shift_qp_t *q = d->active; q; q = q->next_active)
        if (q->linked && shift_under_way(q))
            q->link->switching++;
}

void shift_fence(shift_qp_t *q) {
    shift_leg_t *leg = &q->legs[q->path];
    if (q->unread && shift_qp_busy(q)) {
        if (q->phase != SHIFT_CLEARING)
            shift_phase(q, SHIFT_CLEARING);
        return;
    }
    leg->fenced = true;
    leg->lost_in = q->epoch;
    leg->ready = leg->peer_ready = false;
    shift_qp_fence(leg->qp);
    shift_phase(q, SHIFT_DRAINING);
    q->times.fenced = q->since;
}

void shift_last_reached(shift_qp_t *q, int path) {
    q->o.device->tells_last = q->legs[path].last_reached = true;
    shift_wake(q->o.device);
}
