/* legs.c - operations on a queue pair that are the same on every path, whether it carries the program's traffic or a
 * link's. */
#include "objects/legs.h"

#include <errno.h>

/* The attributes that a reliable connected queue pair needs for each state (InfiniBand specification 11.2.5.2;
 * ibv_modify_qp(3)). */
int shift_qp_step(struct ibv_qp *qp, struct ibv_qp_attr *attr, enum ibv_qp_state to) {
    static const int masks[] = {
        [IBV_QPS_INIT] = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        [IBV_QPS_RTR] = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                        IBV_QP_MIN_RNR_TIMER,
        [IBV_QPS_RTS] = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
    };
    attr->qp_state = to;
    return shift_real()->modify_qp(qp, attr, IBV_QP_STATE | masks[to]);
}

void shift_qp_fence(struct ibv_qp *qp) {
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    shift_real()->modify_qp(qp, &error, IBV_QP_STATE);
}

/* Path 0 is the program's context, whose table has our own data verbs: the provider's are in the device's record. */
const struct ibv_context_ops *shift_verbs_on(const shift_device_t *d, int path) {
    return path ? &d->path[path].context->ops : &d->ops;
}

int shift_elements_on(const shift_device_t *d, int path, struct ibv_sge *sge, int n) {
    for (int i = 0; path && i < n; i++) {
        if (sge[i].length == 0) /* any key will do */
            continue;
        const shift_mr_t *m = shift_map_get(&d->mrs, sge[i].lkey);
        if (!m || !m->on[path])
            return m && m->o.waiting ? -EAGAIN : -ENOKEY;
        sge[i].lkey = m->on[path]->lkey;
    }
    return 0;
}

/* Requests that the provider has accepted but can't send (its RNIC is gone) come back flushed. */
int shift_leg_send(shift_qp_t *q, int path, struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad = NULL;
    int r = shift_verbs_on(q->o.device, path)->post_send(q->legs[path].qp, wr, &bad);
    return bad ? r : 0;
}

int shift_leg_recv(shift_qp_t *q, int path, struct ibv_recv_wr *wr) {
    struct ibv_recv_wr *bad;
    return shift_verbs_on(q->o.device, path)->post_recv(q->legs[path].qp, wr, &bad);
}

/* Number of packets that a request takes, that is, by how much it advances the packet sequence number (InfiniBand
 * specification, 9.7.2). */
static uint32_t packets_of(const shift_send_t *e, uint32_t mtu) {
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

/* Sets the packet numbers of the request on the leg in use, after those of earlier requests. */
void shift_number(shift_qp_t *q, shift_send_t *e) {
    shift_leg_t *leg = &q->legs[q->path];
    e->packets = packets_of(e, 128u << leg->mtu);
    e->first_psn = leg->next_psn;
    leg->next_psn = (leg->next_psn + e->packets) & SHIFT_PSN_MASK;
}
