/* nullverbs_driver.c - a program over nullverbs (tests/programs/rdma) that checks whether it behaves as a provider
 * would. Prints "ok". */
#include "check.h"
#include "nullverbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static char memory[4096];

static void to(enum ibv_qp_state state) {
    CHECK(!ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = state, .port_num = 1}, IBV_QP_STATE));
}

static void to_rts(void) {
    to(IBV_QPS_RESET), to(IBV_QPS_INIT), to(IBV_QPS_RTR), to(IBV_QPS_RTS);
}

static void set_up(void) {
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(n == 3 && !strcmp(ibv_get_device_name(list[2]), "null2") && !list[3]);
    CHECK(context = ibv_open_device(list[1]));
    ibv_free_device_list(list);
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE && ibv_query_port(context, 2, &port));
    union ibv_gid gid;
    CHECK(!ibv_query_gid(context, 1, 0, &gid) && gid.raw[14] == 1 && ibv_query_gid(context, 1, 1, &gid));
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
    CHECK(mr->lkey != mr->rkey && mr->length == sizeof memory);
    CHECK(channel = ibv_create_comp_channel(context));
    CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
    CHECK(cq = ibv_create_cq(context, 64, (void *)7, channel, 0));
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {8, 8, 4, 4, 32}, .pd = pd};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND;
    CHECK(qp = ibv_create_qp_ex(context, &init));
    CHECK(nullverbs_next_qp(NULL) == qp && !nullverbs_next_qp(qp));
}

static int post(uint64_t id, enum ibv_wr_opcode opcode, unsigned flags, uint32_t length) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = length, .lkey = mr->lkey};
    struct ibv_send_wr *bad = NULL,
                       second = {.wr_id = id + 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags},
                       first = {.wr_id = id,
                                .next = &second,
                                .sg_list = &sge,
                                .num_sge = 1,
                                .opcode = opcode,
                                .send_flags = flags};
    int rc = ibv_post_send(qp, &first, &bad);
    CHECK(!rc == !bad);
    return rc ? rc * 1000 + (int)(bad->wr_id - id) : 0;
}

static int receive(uint64_t id) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    return ibv_post_recv(qp, &wr, &bad);
}

static void completes(uint64_t id, enum ibv_wc_status status, enum ibv_wc_opcode opcode) {
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 1);
    CHECK(wc.wr_id == id && wc.status == status && wc.opcode == opcode && wc.qp_num == qp->qp_num);
}

static void silent(void) { CHECK(ibv_poll_cq(cq, 1, &(struct ibv_wc){0}) == 0); }

static void posts_and_completions(void) {
    CHECK(post(1, IBV_WR_SEND, 0, 8) == EINVAL * 1000); /* in RESET */
    CHECK(ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RTR}, IBV_QP_STATE) == EINVAL);
    CHECK(ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE) == EINVAL);
    CHECK(receive(1) == EINVAL);
    to_rts();
    memset(memory, 5, 32);
    CHECK(!post(10, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8) && !post(20, IBV_WR_SEND, IBV_SEND_INLINE, 32));
    CHECK(post(30, IBV_WR_SEND, IBV_SEND_INLINE, 33) == EINVAL * 1000);
    memset(memory, 6, 32);
    CHECK(nullverbs_sends(qp) == 4 && nullverbs_send(qp, 3)->wr_id == 21 && !nullverbs_send(qp, 4));
    CHECK(nullverbs_send(qp, 1)->sg_list->addr == (uintptr_t)memory &&
          *(char *)(uintptr_t)nullverbs_send(qp, 2)->sg_list->addr == 5);
    silent();
    nullverbs_complete(qp, 3);
    /* 20 isn't signaled */
    completes(10, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE), completes(11, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE), silent();
    CHECK(!post(40, IBV_WR_SEND, 0, 1) && !post(42, IBV_WR_SEND, 0, 1) && !post(44, IBV_WR_SEND, 0, 1) &&
          post(46, IBV_WR_SEND, 0, 1) == ENOMEM * 1000 + 1);
    CHECK(!receive(50) && !receive(51) && nullverbs_recvs(qp) == 2 && nullverbs_recv(qp, 1)->wr_id == 51);
    struct ibv_wc message = {.opcode = IBV_WC_RECV_RDMA_WITH_IMM,
                             .wc_flags = IBV_WC_WITH_IMM,
                             .imm_data = 77,
                             .byte_len = 9},
                  wc;
    CHECK(nullverbs_receive(qp, &message) && ibv_poll_cq(cq, 1, &wc) == 1);
    CHECK(wc.wr_id == 50 && wc.imm_data == 77 && wc.byte_len == 9 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
          wc.wc_flags == IBV_WC_WITH_IMM);
}

static void failures(void) {
    nullverbs_fail(qp, IBV_WC_RETRY_EXC_ERR);
    completes(21, IBV_WC_RETRY_EXC_ERR, IBV_WC_SEND);
    for (uint64_t id = 40; id < 47; id++)
        completes(id, IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND);
    completes(51, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV), silent();
    CHECK(!nullverbs_receive(qp, &(struct ibv_wc){.opcode = IBV_WC_RECV}));
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR &&
          init.cap.max_inline_data == 32);
    CHECK(!post(60, IBV_WR_SEND, 0, 1));
    completes(60, IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND), completes(61, IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND), silent();
    to_rts();
    CHECK(!post(70, IBV_WR_SEND, 0, 1));
    to(IBV_QPS_RESET), silent(); /* forgotten */
    nullverbs_refuse("create_cq", EMFILE, 1);
    CHECK(!ibv_create_cq(context, 1, NULL, NULL, 0) && errno == EMFILE);
    nullverbs_refuse("modify_qp", EIO, 2);
    for (int i = 0; i < 2; i++)
        CHECK(ibv_modify_qp(qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE) == EIO);
    to_rts();
    nullverbs_refuse("post_send", EIO, 1);
    CHECK(post(80, IBV_WR_SEND, 0, 1) == EIO * 1000);
}

static bool event(void) {
    struct ibv_cq *which;
    void *context_of_it;
    if (ibv_get_cq_event(channel, &which, &context_of_it))
        return false;
    CHECK(which == cq && context_of_it == (void *)7);
    ibv_ack_cq_events(which, 1);
    return true;
}

static void events(void) {
    CHECK(!post(90, IBV_WR_SEND, IBV_SEND_SIGNALED, 1));
    nullverbs_complete(qp, 1);
    CHECK(!event() && !ibv_req_notify_cq(cq, 0) && !event()); /* not armed; armed too late */
    nullverbs_complete(qp, 1);
    CHECK(event() && !event() && !ibv_req_notify_cq(cq, 1) && !post(92, IBV_WR_SEND, IBV_SEND_SIGNALED, 1));
    nullverbs_complete(qp, 2);
    /* solicited only */
    CHECK(!event() && !receive(94) && nullverbs_receive(qp, &(struct ibv_wc){.opcode = IBV_WC_RECV}) && event());
    for (int i = 90; i < 95; i++)
        CHECK(ibv_poll_cq(cq, 1, &(struct ibv_wc){0}) == 1);
    struct ibv_async_event happened = {.event_type = IBV_EVENT_PORT_ERR, .element.port_num = 1}, seen;
    nullverbs_async(context, &happened);
    CHECK(!ibv_get_async_event(context, &seen) && seen.event_type == IBV_EVENT_PORT_ERR && seen.element.port_num == 1);
}

static void extended(void) {
    struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
    ibv_wr_start(x);
    x->wr_id = 100, x->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(x, 0x77, 0x1234);
    ibv_wr_set_sge(x, mr->lkey, (uintptr_t)memory, 16);
    x->wr_id = 101, x->wr_flags = 0;
    ibv_wr_send(x);
    ibv_wr_set_inline_data(x, memory, 4);
    CHECK(!ibv_wr_complete(x) && nullverbs_sends(qp) == 2);
    const struct ibv_send_wr *a = nullverbs_send(qp, 0), *b = nullverbs_send(qp, 1);
    CHECK(a->wr_id == 100 && a->opcode == IBV_WR_RDMA_WRITE && a->wr.rdma.rkey == 0x77 &&
          a->wr.rdma.remote_addr == 0x1234);
    CHECK(a->num_sge == 1 && a->sg_list->length == 16);
    CHECK(b->wr_id == 101 && b->opcode == IBV_WR_SEND && b->send_flags == IBV_SEND_INLINE && b->sg_list->length == 4);
    ibv_wr_start(x);
    ibv_wr_send(x);
    ibv_wr_abort(x);
    CHECK(nullverbs_sends(qp) == 2);
    nullverbs_complete(qp, 2);
    completes(100, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE), silent();
}

static void shared_receives(void) {
    struct ibv_srq *srq = ibv_create_srq(pd, &(struct ibv_srq_init_attr){.attr = {.max_wr = 8, .max_sge = 1}});
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1}};
    struct ibv_qp *other = ibv_create_qp(pd, &init);
    struct ibv_recv_wr *bad, wr = {.wr_id = 200};
    struct ibv_wc wc;
    CHECK(srq && other && nullverbs_next_qp(qp) == other && !ibv_qp_to_qp_ex(other));
    CHECK(!ibv_post_srq_recv(srq, &wr, &bad) && ibv_post_recv(other, &wr, &bad) == EINVAL);
    nullverbs_fail(other, IBV_WC_RETRY_EXC_ERR);
    silent(); /* a shared queue isn't flushed */
    CHECK(nullverbs_receive(other, &(struct ibv_wc){.opcode = IBV_WC_RECV}) && ibv_poll_cq(cq, 1, &wc) == 1 &&
          wc.wr_id == 200 && wc.qp_num == other->qp_num);
    CHECK(!ibv_destroy_qp(other) && !ibv_destroy_srq(srq) && !nullverbs_next_qp(qp));
}

static void instantly(void) {
    nullverbs_instant(true);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(context = ibv_open_device(list[0]));
    ibv_free_device_list(list);
    CHECK((pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, sizeof memory, 0)));
    struct ibv_cq_ex *x =
        ibv_create_cq_ex(context, &(struct ibv_cq_init_attr_ex){.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS});
    cq = ibv_cq_ex_to_cq(x);
    CHECK(qp = ibv_create_qp(pd, &(struct ibv_qp_init_attr){.send_cq = cq,
                                                            .recv_cq = cq,
                                                            .qp_type = IBV_QPT_RC,
                                                            .cap = {.max_send_wr = 1, .max_recv_wr = 1}}));
    CHECK(!post(300, IBV_WR_RDMA_READ, 0, 1) && !post(310, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 1));
    completes(310, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
    CHECK(!ibv_start_poll(x, &(struct ibv_poll_cq_attr){0}) && x->wr_id == 311 &&
          ibv_wc_read_opcode(x) == IBV_WC_RDMA_READ && ibv_next_poll(x) == ENOENT);
    ibv_end_poll(x);
    CHECK(!receive(320));
    completes(320, IBV_WC_SUCCESS, IBV_WC_RECV), silent();
}

int main(void) {
    set_up();
    posts_and_completions();
    failures();
    events();
    extended();
    shared_receives();
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    instantly();
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) &&
          !ibv_close_device(context));
    printf("ok\n");
    return 0;
}
