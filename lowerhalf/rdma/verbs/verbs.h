/* verbs.h - the data verbs, which are put into the tables of a context, and shared declarations of the files of verbs/.
 * Only for these files. */
#ifndef MANAPY_RDMA_VERBS_H
#define MANAPY_RDMA_VERBS_H

#include "objects/objects.h"

#define EXPORT __attribute__((visibility("default")))

/* memory.c */
struct ibv_pd *shift_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);

/* post.c */
int shift_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int shift_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* For a straight section of posts that the provider has accepted completely: the error to return. */
int shift_post_failed(shift_qp_t *q, int error);

/* poll.c */
int shift_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int shift_req_notify_cq(struct ibv_cq *cq, int solicited_only);

/* extended.c */
bool shift_extend_qp(shift_qp_t *q, uint64_t operations);
bool shift_can_extend_cq(const struct ibv_cq_init_attr_ex *attr);
void shift_extend_cq(shift_cq_t *c, struct ibv_cq_ex *x);

#endif
