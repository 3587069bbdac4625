/* slow_path.h - which objects are away from the default state: slow_path.c, ex_builders.c. For failover/, worker/ and
 * verbs/, with the device's lock held. completions.c calls shift_cq_mode. */
#ifndef MANAPY_RDMA_SLOW_PATH_H
#define MANAPY_RDMA_SLOW_PATH_H

#include "objects/objects.h"

void shift_set_slow(shift_qp_t *q, bool away); /* enter or leave the slow path */
/* Call it after a change of anything that the mode depends on; with c->lock held, or before the CQ is used. */
void shift_cq_mode(shift_cq_t *c);
/* Is a straight post, or a section of posts, in progress that began before shift_set_slow? */
bool shift_qp_busy(const shift_qp_t *q);
/* Is a straight poll in progress that began before `straight` became false? */
bool shift_cq_busy(const shift_cq_t *c);
void shift_attend(shift_qp_t *q, bool active); /* adds to or removes from the worker's list */
bool shift_needs_attention(const shift_qp_t *q);

/* ex_builders.c */
void shift_build_with(struct ibv_qp_ex *x, const struct ibv_qp_ex *functions);
/* False: a draft is in progress, so it can't end yet. Otherwise the caller decides what the next section is, and then
 * calls shift_draft_ended. */
bool shift_draft_ends(shift_qp_t *q);
void shift_draft_ended(shift_qp_t *q);

#endif
