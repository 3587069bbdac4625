/* switch_driver.c - plays a process whose connections fail again and again while its threads post and poll. It runs the
 * interposer's own code over the null provider.
 *
 *   switch_driver LIBRARY FAILURES SEED PAIRS
 *   switch_driver LIBRARY gids SEED PAIRS
 *   switch_driver LIBRARY lost SEED PAIRS
 *   switch_driver LIBRARY last SEED PAIRS
 *   switch_driver LIBRARY stuck SEED 3
 *
 * LIBRARY is nullverbs.so (two devices: the second one is the backup). Both ends of each pair of queue pairs are in
 * this process, so switch_frame.c implements control messages and the key-value store. The threads:
 *   - one carries messages from one end to the other, and acknowledges them or not;
 *   - one posts numbered sends, by ibv_post_send or ibv_wr_*, signaled or not, with inline data or not;
 *   - one polls the completions of the sends, and one polls for arrivals, by ibv_poll_cq or ibv_start_poll.
 * Every message must arrive once and in order, every signaled send must complete once and in order, and no error may be
 * shown. Prints "ok" and how often the process switched to the backup. Everything is made on a parent domain with a
 * thread domain, and half of the sends use dmabuf memory.
 *
 * gids    As with 20 FAILURES, but meanwhile the GIDs of both devices move in their tables, or disappear for a while.
 * lost    No path works any more when the connections fail. Then every request must come back once and in order: the
 *         oldest with the error, the others flushed.
 * last    The receives are those of a shared queue, which has none. Prints for how long, in ns, each leg was given time
 *         for messages that were still to come. The last pair's RNIC doesn't report that it has reached the last
 *         receive.
 * stuck   Nothing goes over the network, and no RNIC reports an error. The first pair has a signaled send. The send of
 *         the second one is executed but not polled. The third one has no signaled send. Only the first may be
 *         switched.
 */
#include "check.h"
#include "common/report.h"
#include "switch_frame.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 8, DEPTH = 7 /* a ring of 8, which is full at times */ };

/* ---- the program ---- */

typedef struct pair {
    struct ibv_qp *from, *to;
    uint32_t posted, completed, arrived; /* numbers of the next ones */
    uint32_t arrived_before;             /* at the last failure */
    bool extended;                       /* posts by ibv_wr_* */
} pair_t;

static pair_t pairs[MOST];
static int count;
static bool stop_posting, stop;
static char memory[4096];
static struct ibv_mr *mr, *dmabuf;
static struct ibv_srq *shared;
static struct ibv_cq *sends, *recvs, *both;
static struct ibv_cq_ex *recvs_ex;

static bool set(const bool *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
static uint32_t now_at(const uint32_t *n) { return __atomic_load_n(n, __ATOMIC_ACQUIRE); }
static void advance(uint32_t *n, uint32_t to) { __atomic_store_n(n, to, __ATOMIC_RELEASE); }

static bool signaled(uint32_t number) { return number % 3 == 2; }

/* The domain belongs to a thread domain. The provider isn't told of it, otherwise the thread domain would still be in
 * use. */
static struct ibv_pd *make_domain(struct ibv_pd *base) {
    struct ibv_td *td = ibv_alloc_td(base->context, &(struct ibv_td_init_attr){0});
    CHECK(td);
    struct ibv_pd *pd =
        ibv_alloc_parent_domain(base->context, &(struct ibv_parent_domain_init_attr){.pd = base, .td = td});
    CHECK(pd && !ibv_dealloc_td(td));
    return pd;
}

/* The descriptor is closed at once, because backups have their own. */
static struct ibv_mr *register_dmabuf(struct ibv_pd *pd) {
    int fd = memfd_create("dmabuf", MFD_CLOEXEC);
    CHECK(fd >= 0 && !ftruncate(fd, sizeof memory));
    struct ibv_mr *region = ibv_reg_dmabuf_mr(pd, 0, sizeof memory, (uintptr_t)memory, fd, IBV_ACCESS_LOCAL_WRITE);
    CHECK(region && !close(fd));
    return region;
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq, bool extended) {
    struct ibv_qp_init_attr init = {
        .send_cq = send_cq, .recv_cq = recv_cq, .srq = shared, .qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 2, 2, 64}};
    struct ibv_qp_init_attr_ex ex = {
        .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 2, 2, 64}, .pd = pd};
    ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    ex.send_ops_flags = IBV_QP_EX_WITH_SEND_WITH_IMM;
    struct ibv_qp *qp = extended ? ibv_create_qp_ex(pd->context, &ex) : ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static void post_recv(pair_t *p) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}; /* all have the same */
    CHECK(!ibv_post_recv(p->to, &wr, &bad));
}

static void post_send(pair_t *p) {
    uint32_t n = p->posted;
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = n % 5 ? 2500 : 40, .lkey = (n % 2 ? mr : dmabuf)->lkey};
    struct ibv_send_wr *bad,
        wr = {.wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = n};
    wr.send_flags = (signaled(n) ? IBV_SEND_SIGNALED : 0) | (n % 5 ? 0 : IBV_SEND_INLINE);
    if (!p->extended) {
        CHECK(!ibv_post_send(p->from, &wr, &bad));
    } else {
        struct ibv_qp_ex *x = real.qp_to_qp_ex(p->from);
        ibv_wr_start(x);
        x->wr_id = n, x->wr_flags = wr.send_flags;
        ibv_wr_send_imm(x, n);
        if (n % 5)
            ibv_wr_set_sge(x, sge.lkey, sge.addr, sge.length);
        else
            ibv_wr_set_inline_data(x, memory, sge.length);
        CHECK(!ibv_wr_complete(x));
    }
    advance(&p->posted, n + 1);
}

static void *poster(void *arg) {
    while (!set(&stop_posting)) {
        bool any = false;
        for (int i = 0; i < count; i++)
            if (pairs[i].posted - now_at(&pairs[i].completed) < DEPTH) {
                post_send(&pairs[i]);
                any = true;
            }
        if (!any)
            sched_yield();
    }
    return arg;
}

static pair_t *pair_of(uint32_t number) {
    for (int i = 0; i < count; i++)
        if (pairs[i].from->qp_num == number || pairs[i].to->qp_num == number)
            return &pairs[i];
    CHECK(!"a completion of a queue pair that isn't the program's");
    return NULL;
}

static void completed(enum ibv_wc_status status, enum ibv_wc_opcode opcode, uint64_t wr_id, uint32_t qp_num,
                      uint32_t imm) {
    if (status != IBV_WC_SUCCESS)
        fprintf(stderr, "status %d of %llu on %u\n", status, (unsigned long long)wr_id, qp_num);
    CHECK(status == IBV_WC_SUCCESS);
    pair_t *p = pair_of(qp_num);
    if (opcode & IBV_WC_RECV) {
        if (imm != p->arrived)
            fprintf(stderr, "message %u instead of %u on %u\n", imm, p->arrived, qp_num);
        CHECK(imm == p->arrived && wr_id == 7);
        post_recv(p);
        advance(&p->arrived, p->arrived + 1);
    } else {
        uint32_t next = p->completed;
        while (!signaled(next))
            next++;
        CHECK(wr_id == next);
        advance(&p->completed, next + 1);
    }
}

static void *poller(void *arg) {
    struct ibv_wc wc[4];
    while (!set(&stop)) {
        int n = ibv_poll_cq(arg, 4, wc);
        CHECK(n >= 0);
        for (int i = 0; i < n; i++)
            completed(wc[i].status, wc[i].opcode, wc[i].wr_id, wc[i].qp_num, wc[i].imm_data);
        if (!n)
            sched_yield();
    }
    return NULL;
}

static void *extended_poller(void *arg) {
    while (!set(&stop)) {
        struct ibv_poll_cq_attr none = {0};
        int r = ibv_start_poll(recvs_ex, &none);
        if (r == ENOENT) {
            sched_yield();
            continue;
        }
        for (; r == 0; r = ibv_next_poll(recvs_ex))
            completed(recvs_ex->status, ibv_wc_read_opcode(recvs_ex), recvs_ex->wr_id, ibv_wc_read_qp_num(recvs_ex),
                      ibv_wc_read_imm_data(recvs_ex));
        CHECK(r == ENOENT);
        ibv_end_poll(recvs_ex);
    }
    return arg;
}

/* ---- the network ---- */

static struct ibv_qp *ends[64][2];
static int wires;

static void find_wires(void) {
    struct ibv_qp_attr a, b;
    struct ibv_qp_init_attr init;
    for (struct ibv_qp *q = next_qp(NULL); q; q = next_qp(q)) {
        CHECK(!real.query_qp(q, &a, IBV_QP_DEST_QPN, &init));
        for (struct ibv_qp *peer = next_qp(NULL); peer; peer = next_qp(peer))
            if (!real.query_qp(peer, &b, IBV_QP_DEST_QPN, &init) && peer->qp_num == a.dest_qp_num)
                ends[wires][0] = q, ends[wires++][1] = peer;
    }
    CHECK(wires == 4 * count);
}

static void *network(void *arg) {
    unsigned seed = 1;
    while (!set(&stop)) {
        bool any = false;
        for (int i = 0; i < wires; i++)
            any |= deliver(ends[i][0], ends[i][1], rand_r(&seed) % 3 == 0);
        if (!any)
            sched_yield();
    }
    return arg;
}

/* ---- failures ---- */

static bool steady(shift_device_t *d) {
    pthread_mutex_lock(&d->lock);
    bool all = true;
    for (int i = 0; i < count; i++)
        for (int end = 0; end < 2; end++)
            all &= protected_now(end ? pairs[i].to : pairs[i].from);
    pthread_mutex_unlock(&d->lock);
    return all;
}

static void wait_for(shift_device_t *d, bool (*what)(shift_device_t *)) {
    uint64_t end = shift_now() + PATIENCE_S * 1000000000ull;
    while (!what(d)) {
        CHECK(shift_now() < end);
        usleep(200);
    }
}

static bool all_arrived(shift_device_t *d) {
    (void)d;
    for (int i = 0; i < count; i++) {
        uint32_t last = pairs[i].posted;
        while (last && !signaled(last - 1))
            last--;
        if (now_at(&pairs[i].arrived) != pairs[i].posted || now_at(&pairs[i].completed) != last)
            return false;
    }
    return true;
}

/* More posts than were outstanding at the last failure: so posts have met the failure. */
static bool some_more(shift_device_t *d) {
    (void)d;
    for (int i = 0; i < count; i++)
        if (now_at(&pairs[i].arrived) - pairs[i].arrived_before < 3 * DEPTH)
            return false;
    return true;
}

static void next_completion(struct ibv_cq *cq, struct ibv_wc *wc) {
    for (uint64_t end = shift_now() + PATIENCE_S * 1000000000ull; ibv_poll_cq(cq, 1, wc) == 0; usleep(100))
        CHECK(shift_now() < end);
}

static void lose(pair_t *p, struct ibv_cq *send_cq, struct ibv_cq *recv_cq) {
    struct ibv_wc wc;
    while (p->posted < DEPTH / 2)
        post_send(p);
    fail(p->from, IBV_WC_RETRY_EXC_ERR);
    for (; p->posted < DEPTH; usleep(300))
        post_send(p); /* in any state */
    for (uint32_t i = 0; i < DEPTH; i++) {
        next_completion(send_cq, &wc);
        CHECK(wc.qp_num == p->from->qp_num && wc.wr_id == i &&
              wc.status == (i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR));
    }
    fail(p->to, IBV_WC_RETRY_EXC_ERR);
    for (int i = 0; i < DEPTH; i++) {
        next_completion(recv_cq, &wc);
        CHECK(wc.qp_num == p->to->qp_num && wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR);
    }
    post_send(p);
    next_completion(send_cq, &wc);
    CHECK(wc.wr_id == DEPTH && wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK(ibv_poll_cq(send_cq, 1, &wc) == 0 && ibv_poll_cq(recv_cq, 1, &wc) == 0);
}

/* ---- what has stopped without an error ---- */

static uint32_t switches_of(const pair_t *p) {
    const shift_qp_t *q = shift_of(p->from);
    pthread_mutex_lock(&q->o.device->lock);
    uint32_t n = q->switches;
    pthread_mutex_unlock(&q->o.device->lock);
    return n;
}

static void get_stuck(void) {
    struct ibv_wc wc;
    for (int i = 0; i < 3; i++)
        while (pairs[i].posted < (i == 2 ? 2 : 3)) /* number 2 is signaled */
            post_send(&pairs[i]);
    while (deliver(pairs[1].from, pairs[1].to, true))
        ;
    for (uint64_t end = shift_now() + PATIENCE_S * 1000000000ull; !switches_of(&pairs[0]); usleep(1000))
        CHECK(shift_now() < end);
    usleep(1000000); /* the other pairs have not changed for as long */
    CHECK(!switches_of(&pairs[1]) && !switches_of(&pairs[2]));
    next_completion(both, &wc);
    while (wc.opcode & IBV_WC_RECV)
        next_completion(both, &wc);
    CHECK(wc.qp_num == pairs[1].from->qp_num && wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS);
    const shift_qp_t *from = shift_of(pairs[0].from), *to = shift_of(pairs[0].to);
    for (uint64_t end = shift_now() + PATIENCE_S * 1000000000ull; ibv_poll_cq(sends, 1, &wc) == 0; usleep(100)) {
        for (int path = 0; path < 2; path++) /* the pair also goes back */
            deliver(from->legs[path].qp, to->legs[path].qp, true);
        CHECK(shift_now() < end);
    }
    CHECK(wc.qp_num == pairs[0].from->qp_num && wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS);
}

/* ---- the last receive of a shared queue ---- */

static enum ibv_qp_state provider_state(struct ibv_qp *qp) {
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    CHECK(!real.query_qp(qp, &a, IBV_QP_STATE, &init));
    return a.qp_state;
}

static void poll_for_nothing(void) {
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(sends, 1, &wc) == 0 && ibv_poll_cq(both, 1, &wc) == 0);
}

/* Its path fails. If `says`, the receiver's RNIC reports that it has reached the last receive. The program reads its
 * events. */
static void reach_last(pair_t *p, bool says) {
    struct ibv_async_event e = {.event_type = IBV_EVENT_QP_LAST_WQE_REACHED, .element.qp = p->to};
    uint64_t end = shift_now() + PATIENCE_S * 1000000000ull;
    shift_qp_t *q = shift_of(p->to);
    post_send(p);
    fail(p->from, IBV_WC_RETRY_EXC_ERR);
    for (; provider_state(p->to) != IBV_QPS_ERR; poll_for_nothing()) /* this poll finds the error */
        CHECK(shift_now() < end);
    if (says) {
        async(p->to->context, &e);
        CHECK(!ibv_get_async_event(p->to->context, &e) && e.event_type == IBV_EVENT_PORT_ACTIVE); /* hidden */
    }
    for (uint64_t took = 0; !took; usleep(100)) {
        CHECK(shift_now() < end);
        pthread_mutex_lock(&q->o.device->lock);
        if (q->path == 1 && q->phase == SHIFT_STEADY) {
            took = q->times.drained - q->times.fenced;
            printf("%llu\n", (unsigned long long)took);
        }
        pthread_mutex_unlock(&q->o.device->lock);
    }
}

/* An address is away while its path fails, or not. Then it comes back at another index. An old index never has a
 * GID. */
static void move_gids(int failure) {
    if (failure % 3 == 0) {
        set_gid(-1);
        usleep(20000);
    }
    set_gid(1 + failure % 7);
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    find_library(argv[1]);
    count = atoi(argv[4]);
    CHECK(count <= MOST);
    unsigned seed = (unsigned)atoi(argv[3]);
    struct ibv_device **list = real.get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(*list);
    CHECK(context);
    struct ibv_pd *base = ibv_alloc_pd(context), *pd = base ? make_domain(base) : NULL;
    CHECK(pd && (mr = ibv_reg_mr(base, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
    dmabuf = register_dmabuf(pd);
    CHECK((sends = ibv_create_cq(context, 256, NULL, NULL, 0)) && (both = ibv_create_cq(context, 256, NULL, NULL, 0)));
    struct ibv_cq_init_attr_ex alone = {
        .cqe = 256, .wc_flags = IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM, .parent_domain = pd};
    alone.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
    alone.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    CHECK(recvs_ex = ibv_create_cq_ex(context, &alone));
    recvs = ibv_cq_ex_to_cq(recvs_ex);
    bool last = !strcmp(argv[2], "last"), stuck = !strcmp(argv[2], "stuck");
    if (last)
        CHECK(shared = ibv_create_srq(pd, &(struct ibv_srq_init_attr){.attr = {.max_wr = MOST * DEPTH, .max_sge = 2}}));
    for (int i = 0; i < count; i++) { /* half of them have one queue for sends and receives */
        pairs[i].extended = i % 4 >= 2 && !last;
        pairs[i].from = make_qp(pd, i % 2 ? both : sends, i % 2 ? both : recvs, pairs[i].extended);
        pairs[i].to = make_qp(pd, i % 2 ? both : sends, i % 2 ? both : recvs, false);
        connect_qp(pairs[i].from, pairs[i].to, IBV_MTU_1024);
        connect_qp(pairs[i].to, pairs[i].from, IBV_MTU_1024);
        for (int k = 0; k < DEPTH && !last; k++)
            post_recv(&pairs[i]);
    }
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)context);
    wait_for(d, steady);
    const char *off = getenv("MANAPY_SHIFT_REWIND");
    CHECK(!shift_of(pairs[0].from)->rewinds == (last || stuck || (off && !strcmp(off, "off"))));
    if (stuck) {
        get_stuck();
        return 0;
    }
    if (last) {
        CHECK(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
        for (int i = 0; i < count; i++)
            reach_last(&pairs[i], i + 1 < count);
        return 0;
    }
    if (!strcmp(argv[2], "lost")) {
        pthread_mutex_lock(&d->lock);
        ourselves.connected = false;
        pthread_mutex_unlock(&d->lock);
        for (int i = 0; i < count; i++)
            lose(&pairs[i], i % 2 ? both : sends, i % 2 ? both : recvs);
        printf("ok\n");
        return 0;
    }
    find_wires();

    pthread_t threads[5];
    pthread_create(&threads[0], NULL, network, NULL);
    pthread_create(&threads[1], NULL, poller, sends);
    pthread_create(&threads[2], NULL, poller, both);
    pthread_create(&threads[3], NULL, extended_poller, NULL);
    pthread_create(&threads[4], NULL, poster, NULL);
    bool gids = !strcmp(argv[2], "gids");
    for (int i = 0, n = gids ? 20 : atoi(argv[2]); i < n; i++) {
        wait_for(d, some_more);
        wait_for(d, steady);
        usleep((unsigned)rand_r(&seed) % 500);
        pair_t *p = &pairs[rand_r(&seed) % (unsigned)count];
        if (rand_r(&seed) % 4 == 0)
            refuse("post_send", EIO, 1);
        else
            fail(rand_r(&seed) % 2 ? p->from : p->to, rand_r(&seed) % 3 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
        for (int k = 0; k < count; k++)
            pairs[k].arrived_before = now_at(&pairs[k].arrived);
        if (gids)
            move_gids(i);
    }
    __atomic_store_n(&stop_posting, true, __ATOMIC_RELEASE);
    pthread_join(threads[4], NULL);
    wait_for(d, all_arrived);
    wait_for(d, steady);
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    unsigned switches = 0;
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < count; i++) {
        const shift_qp_t *q = shift_of(pairs[i].from);
        switches += q->switches;
        CHECK(q->uncounted == (pairs[i].extended && q->rewinds));
        CHECK(q->uncounted || q->posted == pairs[i].posted);
        ibv_destroy_qp(pairs[i].from);
        ibv_destroy_qp(pairs[i].to);
    }
    CHECK(!ibv_destroy_cq(sends) && !ibv_destroy_cq(recvs) && !ibv_destroy_cq(both) && !ibv_dereg_mr(mr) &&
          !ibv_dereg_mr(dmabuf) && !ibv_dealloc_pd(pd) && !ibv_dealloc_pd(base));
    ibv_close_device(context);
    real.free_device_list(list);
    printf("ok %u\n", switches);
    return 0;
}
