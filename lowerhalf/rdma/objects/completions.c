/* completions.c - completions that wait for the program's next poll, and events on the program's own completion
 * channel.
 *
 * The code that delivers a completion keeps the order: gather.c, release.c, readback.c.
 */
#include "common/report.h"
#include "objects/slow_path.h"
#include "objects/completions.h"
#include "objects/legs.h"

#include <stdlib.h>

void shift_deliver(shift_cq_t *c, const struct ibv_wc *wc) {
    if (c->count == c->room) {
        uint32_t room = c->room ? c->room * 2 : 64;
        struct ibv_wc *ready = malloc(room * sizeof *ready);
        if (!ready) {
            shift_report("no memory for completions: the program will miss some");
            return;
        }
        for (uint32_t i = 0; i < c->count; i++)
            ready[i] = c->ready[(c->first + i) % c->room];
        free(c->ready);
        c->ready = ready;
        c->room = room;
        c->first = 0;
    }
    c->ready[(c->first + c->count++) % c->room] = *wc;
    shift_cq_mode(c);
}

static enum ibv_wc_opcode completed_opcode(enum ibv_wr_opcode opcode) {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    case IBV_WR_LOCAL_INV:
        return IBV_WC_LOCAL_INV;
    case IBV_WR_BIND_MW:
        return IBV_WC_BIND_MW;
    default:
        return IBV_WC_SEND;
    }
}

/* Creates the completion of a request that no leg will complete. */
void shift_complete_send(shift_qp_t *q, const shift_send_t *e, enum ibv_wc_status status) {
    bool read = e->wr.opcode == IBV_WR_RDMA_READ;
    struct ibv_wc wc = {.wr_id = e->wr.wr_id,
                        .status = status,
                        .opcode = completed_opcode(e->wr.opcode),
                        .qp_num = q->qp->qp_num,
                        .byte_len = read ? (uint32_t)e->length : 0};
    if (status != IBV_WC_SUCCESS || shift_signaled(q, e))
        shift_deliver(q->send_cq, &wc);
}

/* A queue pair in the error state completes everything that is posted to it. So it can cause an event on the program's
 * own CQ and channel. Device lock held. */
void shift_ring_bell(shift_cq_t *c) {
    if (!c->cq->channel)
        return;
    if (!c->armed)
        shift_barrier(); /* a thread that arms it now either finds the ready completions or is seen here */
    if (!__atomic_load_n(&c->armed, __ATOMIC_ACQUIRE))
        return;
    if (!c->bell) {
        shift_device_t *d = c->o.device;
        if (!d->pd)
            d->pd = shift_real()->alloc_pd(d->context);
        struct ibv_qp_init_attr init = {
            .send_cq = c->cq,
            .recv_cq = c->cq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
        struct ibv_qp_attr attr = {.port_num = d->path[0].port};
        c->bell = d->pd ? shift_real()->create_qp(d->pd, &init) : NULL;
        if (!c->bell)
            return;
        shift_qp_step(c->bell, &attr, IBV_QPS_INIT);
        shift_qp_fence(c->bell);
    }
    /* Use a receive: its error is an event even for a program that waits only for solicited ones. Soft-RoCE flushes it
     * when the state is set, not when it is posted. */
    struct ibv_recv_wr wr = {0}, *bad;
    c->o.device->ops.post_recv(c->bell, &wr, &bad);
    shift_qp_fence(c->bell);
}

void shift_ring_bells(shift_qp_t *q) {
    shift_ring_bell(q->send_cq);
    if (q->recv_cq != q->send_cq)
        shift_ring_bell(q->recv_cq);
}

int shift_cq_hold(struct ibv_cq *cq, uint32_t n) {
    uint32_t room = 64;
    if (n <= (uint32_t)cq->cqe)
        return 0;
    while (room < n)
        room *= 2;
    return shift_real()->resize_cq(cq, (int)room) == 0 ? 0 : shift_real()->resize_cq(cq, (int)n);
}
