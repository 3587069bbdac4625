/* srq.h - shared receive queues. For failover/, worker/ and verbs/. With the device's lock held, unless a line says
 * otherwise. */
#ifndef MANAPY_RDMA_SRQ_H
#define MANAPY_RDMA_SRQ_H

#include "objects/objects.h"

/* Data verbs of the program; called without the lock. */
int shift_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void shift_srq_translate(struct ibv_wc *wc, int n);

typedef enum shift_srq_fate {
    SHIFT_SRQ_OTHER,   /* not a receive of a shared queue */
    SHIFT_SRQ_DELIVER, /* for the program; it has the program's wr_id now */
    SHIFT_SRQ_KEPT,    /* the receive can still be filled */
    SHIFT_SRQ_LATE,    /* a message arrived in a receive that had been given up already */
} shift_srq_fate_t;
shift_srq_fate_t shift_srq_take(int path, bool again, struct ibv_wc *wc);
void shift_srq_move(shift_qp_t *q, int path);
bool shift_srq_clean(const shift_srq_t *s, int path);
bool shift_srq_ready(const shift_srq_t *s, int path); /* clean, and some of the receives are posted */
void shift_srq_step(shift_srq_t *s);                  /* called by the worker */
bool shift_srq_busy(const shift_srq_t *s);
bool shift_srq_is_tap(const shift_device_t *d, const struct ibv_qp *qp); /* on the program's RNIC */
/* called without the lock, like the next two */
shift_srq_t *shift_srq_add(struct ibv_srq *srq, shift_pd_t *pd, const struct ibv_srq_attr *attr);
void shift_srq_close_taps(shift_srq_t *s);
void shift_srq_remove(shift_srq_t *s);

#endif
