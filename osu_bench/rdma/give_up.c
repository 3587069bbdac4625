/* give_up.c - to be preloaded: Soft-RoCE gives up like an RNIC.
 *
 * With the 7 retries that perftest asks for, rdma_rxe (Linux 6.1) repeats a packet for ever, where RNICs report
 * IBV_WC_RETRY_EXC_ERR. SHIFT makes 6 of them (lowerhalf/rdma/soft-roce.md); so does this for a program without SHIFT,
 * which otherwise would wait for ever instead of failing.
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
