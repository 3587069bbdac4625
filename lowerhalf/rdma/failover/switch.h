/* switch.h - the steps of a switch that only files of failover/ call. With the device's lock held. */
#ifndef MANAPY_RDMA_SWITCH_H
#define MANAPY_RDMA_SWITCH_H

#include "failover/failover.h"

/* begin.c */
void shift_phase(shift_qp_t *q, shift_phase_t to);
void shift_new_epoch(shift_qp_t *q);       /* a switch begins */
bool shift_turn(const shift_qp_t *q);      /* may a switch begin now? */
void shift_take_turn(const shift_qp_t *q); /* the switch begins */
void shift_fence(shift_qp_t *q);           /* step 1, as soon as no thread is in a data verb */

/* `b` of the FENCE (links.h) */
enum { SHIFT_FENCE_MOVED = 1 << 16, SHIFT_FENCE_UNKNOWN = 1 << 17 };

/* way_back.c */
void shift_mend_legs(shift_qp_t *q); /* makes legs that were lost ready again */
void shift_way_back(shift_qp_t *q);  /* as far as is possible now */

/* peer.c */
void shift_fence_in(shift_qp_t *q, uint32_t epoch, uint32_t a, uint32_t b); /* the peer's FENCE */
/* handles the FENCE that arrived too early */
void shift_take_early(shift_qp_t *q);

#endif
