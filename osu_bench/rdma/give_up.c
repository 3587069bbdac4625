/* give_up.c - a library to preload. With it Soft-RoCE gives up, as an RNIC does.
 *
 * With the 7 retries that perftest requests, rdma_rxe (Linux 6.1) repeats a packet for ever, where RNICs report
 * IBV_WC_RETRY_EXC_ERR. SHIFT requests 6 retries instead (lowerhalf/rdma/soft-roce.md). This library does the same for
 * a program without SHIFT, which otherwise would wait for ever.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
    static int (*real)(struct ibv_qp *, struct ibv_qp_attr *, int);
    if (!real)
        real = (int (*)(struct ibv_qp *, struct ibv_qp_attr *, int))dlvsym(RTLD_NEXT, "ibv_modify_qp", "IBVERBS_1.1");
    struct ibv_qp_attr mine = *attr;
    if ((mask & IBV_QP_RETRY_CNT) && mine.retry_cnt == 7) mine.retry_cnt = 6;
    return real(qp, &mine, mask);
}
