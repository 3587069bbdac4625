/* legs.h - one queue pair, on any path. For every layer from objects/ up. */
#ifndef MANAPY_RDMA_LEGS_H
#define MANAPY_RDMA_LEGS_H

#include "objects/objects.h"

/* to: RESET, INIT, RTR or RTS. Returns 0 or an errno. */
int shift_qp_step(struct ibv_qp *qp, struct ibv_qp_attr *attr, enum ibv_qp_state to);
void shift_qp_fence(struct ibv_qp *qp); /* to the error state */
const struct ibv_context_ops *shift_verbs_on(const shift_device_t *d, int path); /* the provider's */
/* Sets this path's keys. Returns 0; -EAGAIN: the worker has not registered a region there yet; -ENOKEY: it isn't
 * registered, and will not be. */
int shift_elements_on(const shift_device_t *d, int path, struct ibv_sge *sge, int n);
int shift_leg_send(shift_qp_t *q, int path, struct ibv_send_wr *wr);
int shift_leg_recv(shift_qp_t *q, int path, struct ibv_recv_wr *wr);
void shift_number(shift_qp_t *q, shift_send_t *e); /* sets its packet numbers on the leg in use */

#endif
