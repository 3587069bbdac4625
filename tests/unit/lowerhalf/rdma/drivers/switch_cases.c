/* switch_cases.c - single switches of one connection, and what the program gets then. The interposer's own code runs
 * over the null provider; both ends are in this process (switch_frame.c).
 *
 *   switch_cases LIBRARY CASE
 *
 * Prints the completions that the program gets: S (from the queue for sends) or R (for receives), the request's number,
 * the status. A queue pair of the program's own number is checked, not printed. `cases` at the end names the cases.
 */
#include "check.h"
#include "common/report.h"
#include "switch_frame.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 7, QUIET_US = 100000, FIRST_RECV = 100 };

static char memory[4096];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *sends, *recvs; /* the same one in some cases */
static struct ibv_qp *from, *to;
static struct ibv_srq *shared; /* of both ends, in some cases */
static uint64_t posted, received = FIRST_RECV;
static uint32_t rkey = 1;
static unsigned access_flags = IBV_ACCESS_REMOTE_WRITE;
static bool receives_first, with_channel;
static struct ibv_comp_channel *channel;
static unsigned seen; /* completions */

static shift_device_t *device(void) { return shift_map_get(&shift_devices, (uintptr_t)context); }

static struct ibv_qp *make_qp(void) {
    struct ibv_qp_init_attr init = {
        .send_cq = sends, .recv_cq = recvs, .srq = shared, .qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 2, 2, 64}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static void post_elements(struct ibv_sge *list, int n) {
    struct ibv_recv_wr *bad, wr = {.wr_id = received++, .sg_list = list, .num_sge = n};
    CHECK(!(shared ? ibv_post_srq_recv(shared, &wr, &bad) : ibv_post_recv(to, &wr, &bad)));
}

static void post_recv(void) {
    post_elements(&(struct ibv_sge){.addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey}, 1);
}

/* Nothing reads the memory, so a request may have any length. */
static void post(enum ibv_wr_opcode opcode, uint32_t length, bool signaled) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = length, .lkey = mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = posted++, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
    wr.wr.rdma.rkey = rkey;
    CHECK(!ibv_post_send(from, &wr, &bad));
}

static void poll_queue(struct ibv_cq *cq, char name) {
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) == 1) {
        CHECK(wc.qp_num == from->qp_num || wc.qp_num == to->qp_num);
        printf("%c%llu:%d ", name, (unsigned long long)wc.wr_id, wc.status);
        seen++;
    }
}

static void poll_queues(void) {
    poll_queue(sends, 'S');
    if (recvs != sends)
        poll_queue(recvs, 'R');
}

/* Waits for the n-th completion. */
static void poll_until(unsigned n) {
    uint64_t end = shift_now() + PATIENCE_S * 1000000000ull;
    for (; seen < n; usleep(200)) {
        poll_queues();
        CHECK(shift_now() < end);
    }
}

/* The program has finished to poll when nothing has come for a while. */
static void poll_all(void) {
    for (int i = 0; i < 10; i++, usleep(QUIET_US / 10))
        poll_queues();
}

static bool at(struct ibv_qp *qp, int path) {
    const shift_qp_t *q = shift_of(qp);
    const shift_leg_t *leg = &q->legs[1];
    return q->path == path && q->phase == SHIFT_STEADY && q->linked && leg->ready && leg->peer_ready &&
           (path || (q->direct && leg->generation == leg->peer_generation));
}

/* One message, or acknowledgement, on any path. */
static bool carry(void) {
    bool moved = false;
    for (int p = 0; p < 2; p++)
        if (shift_of(from)->legs[p].qp && shift_of(to)->legs[p].qp)
            moved |= deliver(shift_of(from)->legs[p].qp, shift_of(to)->legs[p].qp, true) ||
                     deliver(shift_of(to)->legs[p].qp, shift_of(from)->legs[p].qp, true);
    return moved;
}

/* Waits until both ends are in use on this path. network: does it carry anything meanwhile? */
static void wait_at(int path, bool network) {
    uint64_t end = shift_now() + PATIENCE_S * 1000000000ull;
    for (bool there = false; !there; usleep(200)) {
        CHECK(shift_now() < end);
        poll_queues();
        while (network && carry())
            ;
        pthread_mutex_lock(&device()->lock);
        there = at(from, path) && at(to, path);
        pthread_mutex_unlock(&device()->lock);
    }
    while (network && carry()) /* what they have posted there at last */
        ;
    poll_queues();
}

static void open_device(void) {
    CHECK(context = ibv_open_device(*real.get_device_list(NULL)));
    CHECK((pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
}

static void share(uint32_t max_wr) {
    open_device();
    CHECK(shared = ibv_create_srq(pd, &(struct ibv_srq_init_attr){.attr = {.max_wr = max_wr, .max_sge = 1}}));
}

static void begin(bool one_queue, enum ibv_mtu mtu) {
    if (!context)
        open_device();
    CHECK(!with_channel || (channel = real.create_comp_channel(context)));
    CHECK((sends = ibv_create_cq(context, 256, NULL, channel, 0)));
    CHECK(recvs = one_queue ? sends : ibv_create_cq(context, 256, NULL, NULL, 0));
    from = make_qp();
    to = make_qp();
    receive_only(from, to, mtu, access_flags);
    receive_only(to, from, mtu, access_flags);
    send_too(from);
    if (!receives_first)
        send_too(to);
    wait_at(0, false);
}

static struct ibv_qp *backup(struct ibv_qp *qp) { return shift_of(qp)->legs[1].qp; }

/* From now on no path works. */
static void cut(void) {
    pthread_mutex_lock(&device()->lock);
    ourselves.connected = false;
    pthread_mutex_unlock(&device()->lock);
}

/* Does the default path work? If it doesn't, there is no way back to it. */
static void set_default(bool up) {
    pthread_mutex_lock(&device()->lock);
    ourselves.on[0].up = up;
    pthread_mutex_unlock(&device()->lock);
}

/* ---- the cases ---- */

/* The receiver's RNIC doesn't say how far it got. One of three requests was executed. */
static void unknown(void) {
    begin(false, IBV_MTU_1024);
    for (int i = 0; i < 2; i++)
        post_recv();
    post(IBV_WR_SEND, 40, false);
    post(IBV_WR_SEND, 40, false);
    post(IBV_WR_SEND, 40, true);
    CHECK(deliver(from, to, false));
    refuse("query_qp", EIO, 1000);
    fail(from, IBV_WC_RETRY_EXC_ERR);
    poll_all();
}

/* The same, but nothing is outstanding: the connection moves. */
static void unknown_idle(void) {
    begin(false, IBV_MTU_1024);
    set_default(false);
    post_recv();
    refuse("query_qp", EIO, 1000);
    fail(to, IBV_WC_RETRY_EXC_ERR);
    wait_at(1, false);
    refuse("query_qp", EIO, 0);
    post(IBV_WR_SEND, 40, true);
    while (carry())
        ;
    poll_all();
}

/* More packets are outstanding than half of all numbers. `executed` requests were executed, not acknowledged. */
static void outstanding(unsigned executed) {
    begin(false, IBV_MTU_256);
    for (int i = 0; i < 6; i++)
        post_recv();
    for (int i = 0; i < 3; i++)
        post(IBV_WR_SEND, 5u << 28, true); /* 5 * 2^20 packets */
    for (int i = 0; i < 3; i++)
        post(IBV_WR_SEND, 40, true);
    while (executed--)
        CHECK(deliver(from, to, false));
    fail(from, IBV_WC_RETRY_EXC_ERR);
    wait_at(1, false);
    printf("| ");
    while (carry())
        ;
    poll_all();
}
static void long_requests(void) { outstanding(0); }
static void long_executed(void) { outstanding(2); }

static void move_to_backup(bool one_queue) {
    begin(one_queue, IBV_MTU_1024);
    set_default(false);
    post(IBV_WR_RDMA_WRITE, 40, true);
    fail(from, IBV_WC_RETRY_EXC_ERR);
    wait_at(1, true);
    poll_all();
    printf("| ");
}

/* On the backup, the second of four requests meets a receiver that has no receive. The first one has succeeded. */
static void caused(void) {
    move_to_backup(true);
    post_recv();
    for (int i = 0; i < 4; i++)
        post(IBV_WR_SEND, 40, i == 3);
    CHECK(deliver(backup(from), backup(to), true));
    poll_all();
    fail(backup(from), IBV_WC_RNR_RETRY_EXC_ERR);
    poll_all();
}

/* On the backup, a message is too long for its receive. */
static void too_long(bool one_queue) {
    move_to_backup(one_queue);
    for (int i = 0; i < 3; i++)
        post_recv();
    fail_receive(backup(to), IBV_WC_LOC_LEN_ERR);
    poll_all();
}
static void too_long_one_queue(void) { too_long(true); }
static void too_long_two_queues(void) { too_long(false); }

/* The second time on the backup, it begins with a request of our own, which fails. */
static void washing(void) {
    move_to_backup(true);
    set_default(true);
    wait_at(0, true);
    post(IBV_WR_RDMA_WRITE, 40, true);
    fail(from, IBV_WC_RETRY_EXC_ERR);
    wait_at(1, false);
    cut();
    fail(backup(from), IBV_WC_RETRY_EXC_ERR);
    poll_all();
}

/* The peer has executed a write, and an atomic, which can't be repeated. */
static void executed(void) {
    begin(true, IBV_MTU_1024);
    post(IBV_WR_RDMA_WRITE, 40, true);
    post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, true);
    CHECK(deliver(from, to, false) && deliver(from, to, false));
    fail(from, IBV_WC_RETRY_EXC_ERR);
    poll_all();
}

/* Receives are flushed on the backup, and no path is left. */
static void flushed_receives(void) {
    move_to_backup(true);
    for (int i = 0; i < 3; i++)
        post_recv();
    cut();
    fail(backup(to), IBV_WC_RETRY_EXC_ERR);
    poll_all();
}

/* The provider has rounded the size of a shared queue up: 8 receives fit in. */
static void rounded_up(void) {
    share(5);
    post_recv();
    move_to_backup(false);
    for (int i = 0; i < 7; i++)
        post_recv();
    struct ibv_recv_wr *bad, more = {0};
    CHECK(ibv_post_srq_recv(shared, &more, &bad) == ENOMEM && bad == &more);
    CHECK(!ibv_modify_srq(shared, &(struct ibv_srq_attr){.max_wr = 9}, IBV_SRQ_MAX_WR)); /* 16 */
    for (int i = 0; i < 8; i++)
        post_recv();
    CHECK(ibv_post_srq_recv(shared, &more, &bad) == ENOMEM);
}

static struct ibv_qp *tap(void) {
    pthread_mutex_lock(&device()->lock);
    struct ibv_qp *qp = ((shift_srq_t *)shift_map_get(&shift_srqs, (uintptr_t)shared))->on[0].tap;
    pthread_mutex_unlock(&device()->lock);
    return qp;
}

/* The RNIC reports the last receive of a queue pair of ours that takes receives out of the shared queue. */
static void tapped(void) {
    share(8);
    post_recv();
    move_to_backup(false);
    uint64_t end = shift_now() + PATIENCE_S * 1000000000ull;
    for (; !tap(); usleep(200))
        CHECK(shift_now() < end);
    struct ibv_async_event e = {.event_type = IBV_EVENT_QP_LAST_WQE_REACHED, .element.qp = tap()};
    async(context, &e);
    CHECK(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK) && !ibv_get_async_event(context, &e));
    printf("%s", e.event_type == IBV_EVENT_PORT_ACTIVE ? "hidden" : "shown");
}

/* Memory of a receive in a shared queue isn't registered on the backup. */
static void unregistered(void) {
    share(8);
    post_elements(&(struct ibv_sge){.addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey + 77}, 1);
    begin(false, IBV_MTU_1024);
    set_default(false);
    post(IBV_WR_RDMA_WRITE, 40, true);
    fail(from, IBV_WC_RETRY_EXC_ERR);
    poll_until(1);
    poll_all();
}

/* The peer has not told the key that its memory has on the backup. */
static void unknown_key(void) {
    move_to_backup(false);
    rkey = 5;
    post(IBV_WR_RDMA_WRITE, 40, true);
    post(IBV_WR_RDMA_WRITE, 40, true);
    poll_until(2);
    poll_all();
}

/* Elements without bytes have no key. */
static void empty_elements(bool shares) {
    if (shares)
        share(8);
    move_to_backup(false);
    struct ibv_sge sge[2] = {{.lkey = 99}, {.addr = (uintptr_t)memory, .length = 40, .lkey = mr->lkey}};
    post_elements(sge, shares ? 1 : 2);
    struct ibv_send_wr *bad, wr = {.wr_id = posted++, .sg_list = sge, .num_sge = 2, .opcode = IBV_WR_SEND};
    wr.send_flags = IBV_SEND_SIGNALED;
    CHECK(!ibv_post_send(from, &wr, &bad));
    for (unsigned before = seen; seen < before + 2; poll_queues())
        carry();
}
static void empty(void) { empty_elements(false); }
static void empty_shared(void) { empty_elements(true); }

/* Its queue pairs refuse writes, also on the way back. */
static void no_writes(void) {
    access_flags = 0;
    begin(false, IBV_MTU_1024);
    set_default(false);
    post_recv();
    fail(to, IBV_WC_RETRY_EXC_ERR);
    wait_at(1, false);
    post(IBV_WR_SEND, 40, true);
    set_default(true);
    wait_at(0, true);
    poll_until(2);
    printf("| lost %u %u", downs[0], downs[1]);
}

static uint8_t rnr_retry_of(struct ibv_qp *qp) {
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    CHECK(!real.query_qp(qp, &a, IBV_QP_RNR_RETRY, &init));
    return a.rnr_retry;
}

/* One end only receives, until its backup is ready. */
static void late_sender(void) {
    receives_first = true;
    begin(false, IBV_MTU_1024);
    printf("%u %u ", rnr_retry_of(backup(from)), rnr_retry_of(backup(to)));
    send_too(to);
    for (uint64_t end = shift_now() + PATIENCE_S * 1000000000ull; rnr_retry_of(backup(to)) != 6; usleep(200))
        CHECK(shift_now() < end);
    wait_at(0, false);
    set_default(false);
    post_recv();
    fail(to, IBV_WC_RETRY_EXC_ERR);
    post(IBV_WR_SEND, 40, true);
    wait_at(1, true);
    poll_until(2);
}

/* Events on the program's channel are caused by a queue pair of ours. The program releases its own objects. */
static void bell(void) {
    with_channel = true;
    begin(true, IBV_MTU_1024);
    struct ibv_cq *cq;
    void *about;
    CHECK(!ibv_req_notify_cq(sends, 0));
    set_default(false);
    post(IBV_WR_RDMA_WRITE, 40, true);
    fail(from, IBV_WC_RETRY_EXC_ERR); /* an event */
    CHECK(!ibv_get_cq_event(channel, &cq, &about));
    real.ack_cq_events(cq, 1);
    CHECK(!ibv_req_notify_cq(sends, 0));
    wait_at(1, true);
    poll_until(1);
    CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_dereg_mr(mr));
    printf("%d", ibv_dealloc_pd(pd));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"unknown", unknown},
    {"unknown-idle", unknown_idle},
    {"long", long_requests},
    {"long-executed", long_executed},
    {"caused", caused},
    {"too-long-one-queue", too_long_one_queue},
    {"too-long-two-queues", too_long_two_queues},
    {"washing", washing},
    {"executed", executed},
    {"flushed-receives", flushed_receives},
    {"rounded-up", rounded_up},
    {"tapped", tapped},
    {"unregistered", unregistered},
    {"unknown-key", unknown_key},
    {"no-writes", no_writes},
    {"late-sender", late_sender},
    {"bell", bell},
    {"empty", empty},
    {"empty-shared", empty_shared},
};

int main(int argc, char **argv) {
    CHECK(argc == 3);
    find_library(argv[1]);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[2])) {
            cases[i].run();
            printf("\n");
            return 0;
        }
    return 2;
}
