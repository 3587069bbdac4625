/* messages.c - passes a message of the peer to its step: a FENCE to peer.c, a question to watch.c; then switch.c
 * continues.
 *
 * links.c calls shift_message_in for each message of a queue pair. It knows the function only as a pointer
 * (shift_link_find), because links/ is below this layer.
 */
#include "failover/switch.h"

void shift_message_in(shift_link_t *l, const shift_message_t *m) {
    shift_device_t *d = l->device;
    shift_qp_t *q = shift_map_get(&d->path[0].qps, m->to_qpn);
    /* the peer has found us before we have found it */
    bool early = q && !q->link && (m->type == SHIFT_LEG_READY || m->type == SHIFT_FENCE);
    if (!q || q->plain || (!early && (q->link != l || !q->linked)) || q->legs[0].peer_qpn != m->from_qpn ||
        q->states.sq == SHIFT_SQ_RELEASED) {
        if (m->type == SHIFT_FENCE)
            shift_link_send(l,
                            &(shift_message_t){
                                .type = SHIFT_GONE, .epoch = m->epoch, .from_qpn = m->to_qpn, .to_qpn = m->from_qpn});
        return;
    }
    switch (m->type) {
    case SHIFT_FENCE:
        shift_fence_in(q, m->epoch, m->a, m->b);
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
