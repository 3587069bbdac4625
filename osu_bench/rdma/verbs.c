/* verbs.c - the cost of one data verb: verbs [MS]
 *
 * An ordinary verbs program on the first device, which must complete every request at once
 * (tests/programs/rdma/nullverbs.h with NULLVERBS_INSTANT=1). So the measured time is that of the provider (a few
 * nanoseconds) and of everything between it and the program. One thread.
 */
#include "../batches.h"

#include <infiniband/verbs.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { CALLS = 256, LIST = 16, QPS = 64, DEPTH = 512, SETTLE = 300000 /* us */ };
enum { ENTRIES = QPS * 2 * (DEPTH + 1) }; /* room for all requests that may be outstanding */

static void check(int right, const char *what) {
    if (right) return;
    fprintf(stderr, "verbs: %s failed\n", what);
    exit(1);
}

/* Batches of COUNT executions of CALL, after one batch to warm up. PREPARE comes before each batch and CLEAN after it;
 * neither is timed. ns per execution, divided by PER. */
#define VERB(NAME, COUNT, PER, PREPARE, CALL, CLEAN) \
    do { \
        static double samples_[BENCH_BATCHES_MAX]; \
        int n_ = -1; \
        for (double used_ = 0; bench_more(n_, used_); n_++) { \
            PREPARE; \
            double begin_ = bench_now_ns(), batch_; \
            for (int i = 0; i < (COUNT); i++) { CALL; } \
            batch_ = bench_now_ns() - begin_; \
            used_ += batch_; \
            CLEAN; \
            if (n_ >= 0) samples_[n_] = batch_ / (COUNT) / (PER); \
        } \
        double median_ = bench_median(samples_, n_); \
        bench_print(NAME, 0, "ns", median_, samples_[0]); \
    } while (0)

static char memory[4096];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp[QPS];

static void connect_qp(struct ibv_qp *q) { /* to itself */
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    check(!ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
          "ibv_modify_qp to INIT");
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = q->qp_num, .max_dest_rd_atomic = 1};
    a.ah_attr.is_global = a.ah_attr.port_num = 1;
    check(!ibv_query_gid(context, 1, 0, &a.ah_attr.grh.dgid), "ibv_query_gid");
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    check(!ibv_modify_qp(q, &a, mask), "ibv_modify_qp to RTR");
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 6, .max_rd_atomic = 1};
    mask =
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    check(!ibv_modify_qp(q, &a, mask), "ibv_modify_qp to RTS");
}

static void set_up(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(list && *list, "ibv_get_device_list");
    check((context = ibv_open_device(*list)) != NULL, "ibv_open_device");
    check((pd = ibv_alloc_pd(context)) != NULL, "ibv_alloc_pd");
    check((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL,
          "ibv_reg_mr");
    check((cq = ibv_create_cq(context, ENTRIES, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    for (int i = 0; i < QPS; i++) {
        struct ibv_qp_init_attr init = {
            .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 4, 4, 64}};
        check((qp[i] = ibv_create_qp(pd, &init)) != NULL, "ibv_create_qp");
        connect_qp(qp[i]);
    }
}

static void drain(void) {
    struct ibv_wc wc[LIST];
    while (ibv_poll_cq(cq, LIST, wc) > 0) {}
}

/* All memory of the queues has been used. */
static void warm_up(struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad;
    for (int i = 0; i < 4 * ENTRIES; i++) {
        ibv_post_send(qp[i % QPS], wr, &bad);
        if (i % CALLS == 0) drain();
    }
    drain();
}

static void posts(struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad;
    struct ibv_sge parts[4];
    for (int i = 0; i < 4; i++)
        parts[i] = (struct ibv_sge){.addr = (uintptr_t)memory + 100 * i, .length = 8, .lkey = mr->lkey};

    VERB("post_send", CALLS, 1, , ibv_post_send(qp[0], wr, &bad), drain());
    VERB("post_send, every 16th signaled", CALLS, 1, ,
         (wr->send_flags = i % 16 == 15 ? IBV_SEND_SIGNALED : 0, ibv_post_send(qp[0], wr, &bad)), drain());
    wr->send_flags = IBV_SEND_SIGNALED;
    VERB("post_send, 64 queue pairs in turn", CALLS, 1, , ibv_post_send(qp[i % QPS], wr, &bad), drain());

    struct ibv_send_wr list[LIST], other = *wr;
    for (int i = 0; i < LIST; i++) list[i] = *wr, list[i].next = i + 1 < LIST ? &list[i + 1] : NULL;
    VERB("post_send, each of a list of 16", CALLS / LIST, LIST, , ibv_post_send(qp[0], list, &bad), drain());
    other.sg_list = parts, other.num_sge = 4;
    VERB("post_send, 4 elements", CALLS, 1, , ibv_post_send(qp[0], &other, &bad), drain());
    struct ibv_sge text = {.addr = (uintptr_t)memory, .length = 28};
    other.sg_list = &text, other.num_sge = 1, other.send_flags |= IBV_SEND_INLINE;
    VERB("post_send, inline, 28 B", CALLS, 1, , ibv_post_send(qp[0], &other, &bad), drain());

    struct ibv_recv_wr receive = {.sg_list = parts, .num_sge = 1}, *bad_receive;
    VERB("post_recv", CALLS, 1, , ibv_post_recv(qp[0], &receive, &bad_receive), drain());
}

static void polls(struct ibv_send_wr *wr) {
    struct ibv_wc wc[LIST];
    struct ibv_send_wr *bad;
    struct ibv_recv_wr receive = {0}, *bad_receive;
    VERB("poll_cq, nothing there", CALLS, 1, , ibv_poll_cq(cq, 1, wc), );
    VERB("poll_cq, a send", CALLS, 1, for (int k = 0; k < CALLS; k++) ibv_post_send(qp[0], wr, &bad),
         ibv_poll_cq(cq, 1, wc), drain());
    VERB("poll_cq, each of 16 sends", CALLS / LIST, LIST,
         for (int k = 0; k < CALLS; k++) ibv_post_send(qp[0], wr, &bad), ibv_poll_cq(cq, LIST, wc), drain());
    VERB("poll_cq, sends of 64 queue pairs", CALLS, 1,
         for (int k = 0; k < CALLS; k++) ibv_post_send(qp[k % QPS], wr, &bad), ibv_poll_cq(cq, 1, wc), drain());
    VERB("poll_cq, a receive", CALLS, 1, for (int k = 0; k < CALLS; k++) ibv_post_recv(qp[0], &receive, &bad_receive),
         ibv_poll_cq(cq, 1, wc), drain());
    VERB("post_send + poll_cq", CALLS, 1, , (ibv_post_send(qp[0], wr, &bad), ibv_poll_cq(cq, 1, wc)), drain());
    VERB("req_notify_cq", CALLS, 1, , ibv_req_notify_cq(cq, 0), );
}

static void write_one(struct ibv_qp_ex *x) {
    ibv_wr_start(x);
    x->wr_id = 1, x->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(x, mr->rkey, (uintptr_t)memory);
    ibv_wr_set_sge(x, mr->lkey, (uintptr_t)memory, 8);
    ibv_wr_complete(x);
}

static void extended(void) {
    struct ibv_cq_ex *queue = ibv_create_cq_ex(
        context, &(struct ibv_cq_init_attr_ex){.cqe = 4096, .wc_flags = IBV_WC_STANDARD_FLAGS & ~IBV_WC_EX_WITH_SLID});
    check(queue != NULL, "ibv_create_cq_ex");
    cq = ibv_cq_ex_to_cq(queue);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 4, 4, 64}, .pd = pd};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    struct ibv_qp *q = ibv_create_qp_ex(context, &init);
    check(q != NULL, "ibv_create_qp_ex");
    connect_qp(q);
    usleep(SETTLE);
    struct ibv_qp_ex *x = ibv_qp_to_qp_ex(q);
    struct ibv_poll_cq_attr none = {0};
    VERB("ibv_wr_rdma_write, start to complete", CALLS, 1, , write_one(x), drain());
    VERB("ibv_start_poll, a send", CALLS, 1, for (int k = 0; k < CALLS; k++) write_one(x),
         (ibv_start_poll(queue, &none), ibv_end_poll(queue)), drain());
}

int main(int argc, char **argv) {
    bench_ns = 1e6 * (argc > 1 ? atof(argv[1]) : 50);
    set_up();
    usleep(SETTLE); /* other threads that set something up at the same time */
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr wr = {
        .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = (uintptr_t)memory, wr.wr.rdma.rkey = mr->rkey;
    warm_up(&wr);
    posts(&wr);
    polls(&wr);
    extended();
    return 0;
}
