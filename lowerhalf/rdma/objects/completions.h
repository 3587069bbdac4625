/* completions.h - completions and events that SHIFT creates. For failover/ and verbs/; with the device's lock held. */
#ifndef MANAPY_RDMA_COMPLETIONS_H
#define MANAPY_RDMA_COMPLETIONS_H

#include "objects/objects.h"

void shift_deliver(shift_cq_t *c, const struct ibv_wc *wc);
void shift_complete_send(shift_qp_t *q, const shift_send_t *e, enum ibv_wc_status status);
void shift_ring_bell(shift_cq_t *c);
void shift_ring_bells(shift_qp_t *q); /* on both its CQs */
/* Lets a queue hold so many completions at once. Returns 0 or an errno. Needs no lock. For links/, too. */
int shift_cq_hold(struct ibv_cq *cq, uint32_t n);

#endif
