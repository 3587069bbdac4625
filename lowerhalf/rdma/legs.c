/* legs.c - what is done to a queue pair the same way whichever path it is on, and whether it carries the program's traffic or a link's. */
#include "shift.h"

/* The attributes that a reliable connected queue pair must be given for each state (InfiniBand specification 11.2.5.2; ibv_modify_qp(3)). */
int shift_qp_step(struct ibv_qp *qp, struct ibv_qp_attr *attr, enum ibv_qp_state to)
{
    static const int masks[] = {
        [IBV_QPS_INIT] = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        [IBV_QPS_RTR] = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        [IBV_QPS_RTS] = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
    };
    attr->qp_state = to;
    return shift_real()->modify_qp(qp, attr, IBV_QP_STATE | masks[to]);
}

void shift_qp_fence(struct ibv_qp *qp)
{
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
    shift_real()->modify_qp(qp, &error, IBV_QP_STATE);
}

/* Leg 0 is in the program's context, whose table holds our own data verbs: its provider's are in the device's record. */
static const struct ibv_context_ops *verbs_of(const shift_qp_t *q, int path) { return path ? &q->legs[path].qp->context->ops : &q->o.device->ops; }

/* What the provider has taken but can't send (its RNIC is gone) comes back flushed. */
int shift_leg_send(shift_qp_t *q, int path, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad = NULL;
    int r = verbs_of(q, path)->post_send(q->legs[path].qp, wr, &bad);
    return bad ? r : 0;
}

int shift_leg_recv(shift_qp_t *q, int path, struct ibv_recv_wr *wr)
{
    struct ibv_recv_wr *bad;
    return verbs_of(q, path)->post_recv(q->legs[path].qp, wr, &bad);
}
