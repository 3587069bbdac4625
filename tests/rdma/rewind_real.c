/* rewind_real.c - posts random work on real queue pairs whose path is then cut, asks the rewind what is outstanding,
 * and compares with what was posted.
 *
 *   rewind_real DEVICE GID_IP PEER_DEVICE PEER_GID_IP RAILS SEED ROUNDS
 *
 * RAILS: the command that cuts rail 0 (tools/vm/guest/rails). Each round makes a pair of queue pairs with random
 * capacities, lets some work complete, cuts the path (or forces the error state), posts more, and polls until
 * everything has come back. Prints a line per round, "ok" at the end.
 */
#include "check.h"
#include "requests/rewind.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MTU = 1024, MEMORY = 1 << 16, MOST = 1 << 14, PATIENCE = 60 };

typedef struct host {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    char *memory;
    int gid_index;
    union ibv_gid gid;
} host_t;

typedef struct end {
    host_t *host;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_qp_init_attr made;
    const shift_rewind_t *rewind;
    void *state;
} end_t;

static host_t open_host(const char *name, const char *ip) {
    host_t h = {.gid_index = -1};
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (struct ibv_device **d = list; *d; d++)
        if (!strcmp(ibv_get_device_name(*d), name))
            h.context = ibv_open_device(*d);
    CHECK(h.context);
    ibv_free_device_list(list);
    in_addr_t wanted = inet_addr(ip);
    for (int i = 0; i < 8 && h.gid_index < 0; i++)
        if (!ibv_query_gid(h.context, 1, i, &h.gid) && h.gid.raw[10] == 0xff &&
            !memcmp(h.gid.raw + 12, &wanted, sizeof wanted))
            h.gid_index = i;
    CHECK(h.gid_index >= 0);
    CHECK(h.pd = ibv_alloc_pd(h.context));
    h.memory = calloc(1, MEMORY);
    CHECK(h.mr = ibv_reg_mr(h.pd, h.memory, MEMORY,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                IBV_ACCESS_REMOTE_ATOMIC));
    return h;
}

/* With `extended`, through ibv_create_qp_ex, for the ibv_wr_* functions. */
static end_t make_end(host_t *h, struct ibv_qp_cap cap, bool shared, bool extended) {
    end_t e = {.host = h};
    CHECK(e.cq = ibv_create_cq(h->context, MOST, NULL, NULL, 0));
    if (shared)
        CHECK(e.srq = ibv_create_srq(h->pd, &(struct ibv_srq_init_attr){
                                                .attr = {.max_wr = cap.max_recv_wr, .max_sge = cap.max_recv_sge}}));
    e.made =
        (struct ibv_qp_init_attr){.send_cq = e.cq, .recv_cq = e.cq, .srq = e.srq, .cap = cap, .qp_type = IBV_QPT_RC};
    if (extended) {
        struct ibv_qp_init_attr_ex ex = {
            .send_cq = e.cq, .recv_cq = e.cq, .srq = e.srq, .cap = cap, .qp_type = IBV_QPT_RC, .pd = h->pd};
        ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
                            IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                            IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        CHECK(e.qp = ibv_create_qp_ex(h->context, &ex));
        e.made.cap = ex.cap;
    } else {
        CHECK(e.qp = ibv_create_qp(h->pd, &e.made));
    }
    CHECK(e.rewind = shift_rewind_for(e.qp, &e.made, &e.state));
    CHECK(!strcmp(e.rewind->name, "rxe"));
    return e;
}

static void drop_end(end_t *e) {
    e->rewind->detach(e->state);
    CHECK(!ibv_destroy_qp(e->qp));
    if (e->srq)
        CHECK(!ibv_destroy_srq(e->srq));
    CHECK(!ibv_destroy_cq(e->cq));
}

static void connect_end(end_t *e, const end_t *peer, uint32_t sq_psn, uint32_t rq_psn) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    CHECK(!ibv_modify_qp(e->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num, .rq_psn = rq_psn};
    a.max_dest_rd_atomic = 8, a.min_rnr_timer = 1;
    a.ah_attr = (struct ibv_ah_attr){
        .is_global = 1,
        .port_num = 1,
        .grh = {.dgid = peer->host->gid, .sgid_index = (uint8_t)e->host->gid_index, .hop_limit = 64}};
    CHECK(!ibv_modify_qp(e->qp, &a,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 2, .rnr_retry = 6, .sq_psn = sq_psn, .max_rd_atomic = 8};
    CHECK(!ibv_modify_qp(e->qp, &a,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

static void to_error(const end_t *e) {
    CHECK(!ibv_modify_qp(e->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE));
}

static uint32_t below(uint32_t n) { return n ? (uint32_t)rand() % n : 0; }

static uint64_t random64(void) { return (uint64_t)rand() << 40 ^ (uint64_t)rand() << 20 ^ (uint64_t)rand(); }

/* A random scatter list in the host's memory: how many elements. equal: they are of one length, for rdma-core 44's
 * ibv_wr_set_sge_list on rxe takes all for as long as the first. */
static int scatter(const host_t *h, struct ibv_sge *list, uint32_t most, uint32_t bytes, bool equal) {
    int n = (int)below(most + 1);
    for (int i = 0; i < n; i++)
        list[i] = (struct ibv_sge){.addr = (uintptr_t)h->memory + below(MEMORY / 2),
                                   .length = below(bytes / (uint32_t)n + 1),
                                   .lkey = h->mr->lkey};
    for (int i = 1; i < n && equal; i++)
        list[i].length = list[0].length;
    return n;
}

static void post_extended(const end_t *e, const struct ibv_send_wr *wr) {
    struct ibv_qp_ex *x = ibv_qp_to_qp_ex(e->qp);
    ibv_wr_start(x);
    x->wr_id = wr->wr_id;
    x->wr_flags = wr->send_flags; /* with IBV_SEND_INLINE: rxe's ibv_wr_set_inline_data doesn't add it */
    switch (wr->opcode) {
    case IBV_WR_SEND:
        ibv_wr_send(x);
        break;
    case IBV_WR_SEND_WITH_IMM:
        ibv_wr_send_imm(x, wr->imm_data);
        break;
    case IBV_WR_RDMA_WRITE:
        ibv_wr_rdma_write(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        ibv_wr_rdma_write_imm(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
        break;
    case IBV_WR_RDMA_READ:
        ibv_wr_rdma_read(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        ibv_wr_atomic_cmp_swp(x, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add,
                              wr->wr.atomic.swap);
        break;
    default:
        ibv_wr_atomic_fetch_add(x, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, wr->wr.atomic.compare_add);
        break;
    }
    if (wr->send_flags & IBV_SEND_INLINE)
        ibv_wr_set_inline_data(x, (void *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
    else
        ibv_wr_set_sge_list(x, (size_t)wr->num_sge, wr->sg_list);
    CHECK(!ibv_wr_complete(x));
}

enum { MAY = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED };

/* Post one random send, and note it in the journal. Returns whether it takes a receive. may, must: flags. A fence only
 * where nothing is sent again, because it was lost or its answer is late on a busy machine: else Linux 6.1's rxe never
 * gives up a fenced request that a read or atomic follows, or that is one: it waits for these, and they for it. */
static bool post_send(const end_t *e, const end_t *peer, shift_journal_t *posted, bool extended, unsigned may,
                      unsigned must) {
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND,      IBV_WR_SEND_WITH_IMM,      IBV_WR_RDMA_WRITE,          IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_sge list[32];
    struct ibv_send_wr *bad,
        wr = {.wr_id = random64(), .sg_list = list, .opcode = opcodes[below(7)], .send_flags = below(8)};
    bool reads = wr.opcode == IBV_WR_RDMA_READ,
         atomic = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    uint64_t remote = (uintptr_t)peer->host->memory + MEMORY / 2 + 8 * below(1000);
    wr.send_flags = (wr.send_flags & may) | must;
    if (wr.opcode == IBV_WR_SEND_WITH_IMM || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        wr.imm_data = (uint32_t)random64();
    if (atomic) {
        wr.num_sge = 1;
        list[0] = (struct ibv_sge){.addr = (uintptr_t)e->host->memory, .length = 8, .lkey = e->host->mr->lkey};
        wr.wr.atomic.remote_addr = remote, wr.wr.atomic.rkey = peer->host->mr->rkey;
        wr.wr.atomic.compare_add = random64(),
        wr.wr.atomic.swap = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? random64() : 0;
    } else {
        bool bytes = !reads && e->made.cap.max_inline_data && below(3) == 0;
        wr.num_sge = bytes ? 1 : scatter(e->host, list, e->made.cap.max_send_sge, 6 * MTU, extended);
        if (bytes) {
            list[0] = (struct ibv_sge){.addr = (uintptr_t)e->host->memory + 4096,
                                       .length = below(e->made.cap.max_inline_data + 1)};
            wr.send_flags |= IBV_SEND_INLINE;
            for (uint32_t i = 0; i < list[0].length; i++)
                e->host->memory[4096 + i] = (char)rand();
        }
        if (reads || wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
            wr.wr.rdma.remote_addr = remote, wr.wr.rdma.rkey = peer->host->mr->rkey;
    }
    CHECK(shift_journal_send(posted, &wr));
    if (extended)
        post_extended(e, &wr);
    else
        CHECK(!ibv_post_send(e->qp, &wr, &bad));
    memset(e->host->memory + 4096, 0x11, 1024); /* inline data are the provider's by now */
    return wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static void post_recv(const end_t *e, shift_journal_t *posted) {
    struct ibv_sge list[32];
    struct ibv_recv_wr *bad, wr = {.wr_id = random64(), .sg_list = list};
    wr.num_sge = 1 + scatter(e->host, list + 1, e->made.cap.max_recv_sge - 1, MTU, false);
    /* room for every message */
    list[0] = (struct ibv_sge){.addr = (uintptr_t)e->host->memory, .length = 7 * MTU, .lkey = e->host->mr->lkey};
    CHECK(shift_journal_recv(posted, &wr));
    CHECK(!(e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad)));
}

/* Poll until nothing has come for as long as a flush may take, or `until` bad ones have. wr_ids of the bad ones; their
 * number, and that of the good ones. */
static uint32_t drain(const end_t *e, uint64_t *bad, uint32_t until, uint32_t *good) {
    uint32_t n = 0;
    struct ibv_wc wc;
    *good = 0;
    for (time_t end = time(NULL) + PATIENCE; n < until && time(NULL) < end;) {
        int got = ibv_poll_cq(e->cq, 1, &wc);
        CHECK(got >= 0);
        if (!got)
            usleep(1000);
        else if (wc.status == IBV_WC_SUCCESS)
            ++*good;
        else
            bad[n++] = wc.wr_id;
    }
    usleep(20000);
    CHECK(ibv_poll_cq(e->cq, 1, &wc) == 0); /* no completion too many */
    return n;
}

static void same_list(const struct ibv_sge *a, int n, const struct ibv_sge *b, int m) {
    CHECK(n == m);
    for (int i = 0; i < n; i++)
        CHECK(a[i].addr == b[i].addr && a[i].length == b[i].length && a[i].lkey == b[i].lkey);
}

static void same_send(const shift_send_t *a, const shift_send_t *b) {
    CHECK(a->wr.wr_id == b->wr.wr_id && a->wr.opcode == b->wr.opcode && a->wr.send_flags == b->wr.send_flags &&
          a->wr.imm_data == b->wr.imm_data);
    CHECK(a->length == b->length && !a->wr.next && !memcmp(&a->wr.wr.atomic, &b->wr.wr.atomic, sizeof a->wr.wr.atomic));
    if (a->wr.send_flags & IBV_SEND_INLINE)
        CHECK(a->wr.num_sge == 1 &&
              !memcmp((void *)(uintptr_t)a->wr.sg_list->addr, (void *)(uintptr_t)b->wr.sg_list->addr, a->length));
    else
        same_list(a->wr.sg_list, a->wr.num_sge, b->wr.sg_list, b->wr.num_sge);
}

static uint32_t packets(const shift_send_t *s) { return s->length ? (uint32_t)((s->length + MTU - 1) / MTU) : 1; }

/* What was posted is in `posted`, the last n of it outstanding: compare. */
static void compare_sends(const end_t *e, const shift_journal_t *posted, const uint64_t *bad, uint32_t n,
                          uint32_t initial_psn) {
    shift_journal_t found;
    CHECK(!shift_journal_sends(&found, n, e->made.cap.max_send_sge, e->made.cap.max_inline_data));
    int rc = e->rewind->sends(e->state, bad, n, &found);
    if (rc)
        printf("sends: %d\n", rc);
    CHECK(!rc && shift_journal_count(&found) == n);
    for (uint32_t i = 0; i < n; i++)
        same_send(shift_journal_at(&found, i), shift_journal_at(posted, posted->next - n + i));
    uint32_t psn = initial_psn, told = 0;
    for (uint64_t i = 0; i < posted->next - n; i++)
        psn = (psn + packets(shift_journal_at(posted, i))) & 0xffffff;
    rc = e->rewind->first_psn(e->state, n, &told);
    if (posted->next == n ? rc != -ENODATA : rc || told != psn)
        printf("first_psn: %d, %u instead of %u\n", rc, told, psn);
    CHECK(e->rewind->failed(e->state) == n);
    CHECK(posted->next == n ? rc == -ENODATA : !rc && told == psn);
    shift_journal_free(&found);
}

static void compare_recvs(const end_t *e, const shift_journal_t *posted, const uint64_t *bad, uint32_t n) {
    shift_journal_t found;
    CHECK(!shift_journal_recvs(&found, n, e->made.cap.max_recv_sge));
    int rc = e->rewind->recvs(e->state, bad, n, &found);
    if (rc)
        printf("recvs: %d\n", rc);
    CHECK(!rc && shift_journal_count(&found) == n);
    for (uint32_t i = 0; i < n; i++) {
        const shift_recv_t *a = shift_journal_at(&found, i), *b = shift_journal_at(posted, posted->next - n + i);
        CHECK(a->wr.wr_id == b->wr.wr_id && a->length == b->length && !a->wr.next);
        same_list(a->wr.sg_list, a->wr.num_sge, b->wr.sg_list, b->wr.num_sge);
    }
    shift_journal_free(&found);
}

static void rails(const char *command, const char *what) {
    char line[4096];
    snprintf(line, sizeof line, "%s %s", command, what);
    CHECK(!system(line));
}

/* Work that completes, one request at a time; stops before the receive queue is full of receives that nobody takes. */
static void work(const end_t *sender, const end_t *receiver, shift_journal_t *sent, shift_journal_t *posted,
                 uint32_t count, bool extended) {
    /* in a row: their places in the queue may still be taken */
    uint32_t room = receiver->made.cap.max_recv_wr - 1, unsignaled = 0;
    for (uint32_t taken = 0, i = 0; i < count && posted->next - taken < room; i++) {
        post_recv(receiver, posted);
        taken += post_send(sender, receiver, sent, extended, MAY,
                           unsignaled + 1 == sender->made.cap.max_send_wr ? IBV_SEND_SIGNALED : 0);
        const shift_send_t *last = shift_journal_at(sent, sent->next - 1);
        if (!(last->wr.send_flags & IBV_SEND_SIGNALED)) {
            unsignaled++;
            continue;
        }
        unsignaled = 0;
        struct ibv_wc wc;
        time_t end = time(NULL) + PATIENCE;
        while (ibv_poll_cq(sender->cq, 1, &wc) == 0)
            CHECK(time(NULL) < end);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == last->wr.wr_id);
    }
    struct ibv_qp_attr attr; /* unsignaled work at the end is done when the peer has executed it all */
    struct ibv_qp_init_attr init;
    uint32_t before = ~0u, after = 0;
    while (before != after) {
        before = after;
        usleep(200000);
        CHECK(!ibv_query_qp(receiver->qp, &attr, IBV_QP_RQ_PSN, &init));
        after = attr.rq_psn;
    }
}

static void round_of(host_t *a, host_t *b, const char *command, int number) {
    static uint64_t bad[MOST];
    static const char *const cuts[] = {"cut 0 switch", "cut 0 netem 100 a", "cut 0 netem 100 b", NULL};
    const char *cut = cuts[number % 4];
    bool shared = number % 3 == 2, extended = number % 2;
    struct ibv_qp_cap cap = {1 + below(63), 16 + below(64), 1 + below(8), 1 + below(8), below(2) ? 0 : below(300)};
    end_t sender = make_end(a, cap, false, extended), receiver = make_end(b, cap, shared, extended);
    uint32_t psn = below(4) ? 0xffff00 + below(256) : 0, good, n, held = 0;
    connect_end(&sender, &receiver, psn, 77), connect_end(&receiver, &sender, 77, psn);
    shift_journal_t sent, posted;
    CHECK(!shift_journal_sends(&sent, MOST, sender.made.cap.max_send_sge, sender.made.cap.max_inline_data));
    CHECK(!shift_journal_recvs(&posted, MOST, receiver.made.cap.max_recv_sge));
    work(&sender, &receiver, &sent, &posted, below(3) ? below(150) : 0, extended);

    if (cut)
        rails(command, cut);
    uint32_t outstanding = 1 + below(sender.made.cap.max_send_wr);
    for (uint32_t i = 0; i < outstanding; i++) {
        if (!cut && i == outstanding / 2)
            to_error(&sender);
        post_send(&sender, &receiver, &sent, extended, cut ? MAY : MAY | IBV_SEND_FENCE, 0);
    }
    if (cut) { /* every request comes back */
        n = drain(&sender, bad, outstanding, &good);
        CHECK(n == outstanding && !good);
    } else {
        /* what was quick has completed, if it was unsignaled without a completion; what was posted in the error state
         * is flushed */
        sleep(1);
        n = 0;
        for (struct ibv_wc wc; ibv_poll_cq(sender.cq, 1, &wc) == 1;)
            if (wc.status != IBV_WC_SUCCESS)
                bad[n++] = wc.wr_id;
    }
    CHECK(n >= (outstanding + 1) / 2);
    compare_sends(&sender, &sent, bad, n, psn);
    to_error(&receiver);
    if (shared) {
        CHECK(receiver.rewind->recvs(receiver.state, bad, 0, &posted) == -ENOTSUP);
    } else { /* every receive comes back */
        sleep(1);
        for (struct ibv_wc wc; ibv_poll_cq(receiver.cq, 1, &wc) == 1;)
            if (wc.status != IBV_WC_SUCCESS)
                bad[held++] = wc.wr_id;
        compare_recvs(&receiver, &posted, bad, held);
    }
    printf("round %d: %s, %s, %" PRIu64 " sends, %u outstanding; %" PRIu64 " receives, %u outstanding%s\n", number,
           cut ? cut : "forced", extended ? "ibv_wr_*" : "ibv_post_send", sent.next, n, posted.next, held,
           shared ? ", shared" : "");
    rails(command, "repair 0");
    shift_journal_free(&sent), shift_journal_free(&posted);
    drop_end(&sender), drop_end(&receiver);
}

int main(int argc, char **argv) {
    if (argc != 8)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    host_t a = open_host(argv[1], argv[2]), b = open_host(argv[3], argv[4]);
    srand((unsigned)atoi(argv[6]));
    for (int i = 0; i < atoi(argv[7]); i++)
        round_of(&a, &b, argv[5], i);
    printf("ok\n");
    return 0;
}
