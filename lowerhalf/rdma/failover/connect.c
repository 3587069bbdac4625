/* connect.c - connects one leg of a queue pair: for the first time, or again with the packet sequence numbers of a new
 * generation. */
#include "common/report.h"
#include "failover/failover.h"
#include "objects/gids.h"
#include "objects/legs.h"

#include <errno.h>
#include <string.h>

enum { PSN_STEP = 0x13579b /* odd: within 2^24 switches no two generations have the same first number */ };

bool shift_leg_usable(const shift_qp_t *q, int path) {
    const shift_leg_t *leg = &q->legs[path];
    return leg->qp && leg->ready && leg->peer_ready && leg->generation == leg->peer_generation && q->link &&
           q->link->on[path].up;
}

uint32_t shift_leg_psn(uint32_t first, uint32_t generation) { return (first + generation * PSN_STEP) & SHIFT_PSN_MASK; }

/* Attributes of a leg in RTS, with the sequence numbers of a generation. */
struct ibv_qp_attr shift_leg_attributes(const shift_qp_t *q, int path, uint32_t generation) {
    const shift_device_t *d = q->o.device;
    const shift_path_t *via = &d->path[path];
    const shift_leg_t *leg = &q->legs[path];
    struct ibv_qp_attr a = q->attr;
    if (q->state != IBV_QPS_RTS) { /* so far it only receives */
        a.timeout = 14;
        a.retry_cnt = 6;
        a.rnr_retry = 7;
        a.max_rd_atomic = 1;
    }
    if (d->rxe && generation) { /* for the empty READ of switch.c */
        a.qp_access_flags |= IBV_ACCESS_REMOTE_READ;
        a.max_rd_atomic += a.max_rd_atomic == 0;
        a.max_dest_rd_atomic += a.max_dest_rd_atomic == 0;
    }
    if (q->peer_shares)
        a.rnr_retry = 7; /* its receives may be on another path for a moment: srq.c */
    if (path) {
        a.ah_attr.port_num = a.port_num = via->port;
        a.ah_attr.grh.sgid_index = (uint8_t)via->gid.gid_index;
        a.ah_attr.grh.dgid = leg->peer_gid;
        a.ah_attr.dlid = leg->peer_lid;
        a.ah_attr.src_path_bits = 0;
        a.dest_qp_num = leg->peer_qpn;
        a.pkey_index = 0;
        if (leg->mtu && leg->mtu < (uint8_t)a.path_mtu)
            a.path_mtu = (enum ibv_mtu)leg->mtu;
    }
    a.rq_psn = shift_leg_psn(leg->recv_psn, generation);
    a.sq_psn = shift_leg_psn(leg->send_psn, generation);
    return a;
}

/* Moves a leg from any state to RTS. Returns 0 or an errno. */
int shift_leg_bring_up(shift_qp_t *q, int path, struct ibv_qp_attr *a) {
    static const char *const names[] = {"RESET", "INIT", "RTR", "RTS"};
    shift_path_t *via = &q->o.device->path[path];
    struct ibv_gid_entry *gid = path ? &via->gid : &q->gid;
    if (path ? via->ethernet : q->has_gid) {
        if (!shift_gid_find(path ? via->context : q->qp->context, gid)) {
            shift_report("%s has lost the address that its connections use; they wait until it returns", via->name);
            return EADDRNOTAVAIL;
        }
        a->ah_attr.grh.sgid_index = (uint8_t)gid->gid_index;
    }
    for (int to = IBV_QPS_RESET; to <= IBV_QPS_RTS; to++) {
        int r = shift_qp_step(q->legs[path].qp, a, (enum ibv_qp_state)to);
        if (r != 0) {
            shift_report("a queue pair on %s can't be brought to %s: %s", via->name, names[to], strerror(r));
            return r;
        }
    }
    return 0;
}

/* The leg is connected; tells the peer. */
void shift_leg_make_ready(shift_qp_t *q, int path, uint32_t generation, const struct ibv_qp_attr *a) {
    shift_leg_t *leg = &q->legs[path];
    leg->mtu = (uint8_t)a->path_mtu;
    leg->next_psn = a->sq_psn;
    leg->generation = generation;
    leg->closed = leg->fenced = leg->sentinel_send = leg->sentinel_recv = leg->drained_sends = leg->drained_recvs =
        leg->last_reached = false;
    leg->settled = 0;
    leg->ready = true;
    leg->early = q->state != IBV_QPS_RTS;
    shift_link_send(q->link, &(shift_message_t){.type = SHIFT_LEG_READY,
                                                .from_qpn = q->qp->qp_num,
                                                .to_qpn = q->legs[0].peer_qpn,
                                                .a = (uint32_t)path,
                                                .b = generation});
}

int shift_leg_connect(shift_qp_t *q, int path, uint32_t generation) {
    struct ibv_qp_attr a = shift_leg_attributes(q, path, generation);
    int r = shift_leg_bring_up(q, path, &a);
    if (r == 0)
        shift_leg_make_ready(q, path, generation, &a);
    return r;
}
