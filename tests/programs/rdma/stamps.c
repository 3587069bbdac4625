/* Sequence-stamped messages over queue pairs in both directions at the same time. Each must arrive exactly once, in
 * order, with the right bytes.
 *
 *     stamps -d rxb0                      server; prints "listening"
 *     stamps -d rxa0 -c 127.0.0.1         client, with the same options
 *
 * Prints "received 1000" ... on the way and "ok" at the end. The first error of any kind is printed as one line, and
 * the exit status is 1. A side stops sending when it gets SIGINT.
 *
 * Each side numbers its messages on each queue pair. Kind, length and bytes follow from the number (stamp.h), so they
 * are never sent. There are `depth` slots: message number N uses slot N % depth of the source, of the landing buffers
 * and of the target in the receiver's memory. These rules detect errors:
 *  1. A source is overwritten when its completion has come; inline data are overwritten when the post has returned.
 *     After that nothing may read them.
 *  2. A target slot is zero where nothing has been written. It is checked completely and zeroed before the writer may
 *     use it again, and once more at the end. So data that are written twice are detected.
 *  3. A counter tells a writer how much has been consumed. The receiver writes it into the writer's memory. It never
 *     decreases.
 *  4. A completion belongs to the oldest signaled work request, and means that all earlier ones are finished. Receives
 *     complete in order.
 *  5. A receive completion comes after everything that was written before it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "endpoint.h"
#include "stamp.h"

enum { READABLE = 1 << 20, BATCH = 16, TABLE = 8192, RECEIVE = 1, FAULTY = 50, RESTING = 50 };

/* a completion queue per pair; two; per thread; one for all */
typedef enum { CQ_ONE, CQ_TWO, CQ_THREAD, CQ_ALL, CQ_MODES } cq_mode_t;
static const char *const cq_names[CQ_MODES] = {"one", "two", "thread", "all"};

/* Errors that the client makes on purpose with message FAULTY, to test the rules: it sends the previous message again;
 * leaves it out; changes a byte; writes once more into a consumed slot (rule 2); writes an old counter (rule 3). */
typedef enum { FAULT_NONE, FAULT_AGAIN, FAULT_SKIP, FAULT_BYTE, FAULT_LATE, FAULT_BACK, FAULTS } fault_t;
static const char *const fault_names[FAULTS] = {"none", "again", "skip", "byte", "late", "back"};

static struct {
    const char *device, *server;
    int port, pairs, threads, depth, signal_every, pause, patience, progress, linger, ex_poll, rest;
    uint64_t messages;
    double seconds;
    uint32_t inline_size;
    bool srq, events, wr, one_way, fence, fresh;
    cq_mode_t cq;
    fault_t fault;
    plan_t plan;
    link_t link;
} opt = {
    .port = 18700,
    .pairs = 1,
    .threads = 1,
    .depth = 8,
    .signal_every = 4,
    .patience = 120,
    .progress = 100,
    .linger = 300,
    .inline_size = 64,
    .plan = {.size = 65536, .max_pieces = MAX_PIECES, .seed = 1},
    .link = {.gid_index = 1, .timeout = 14, .retry = 3},
};

typedef struct {
    struct ibv_cq *cq;
    struct ibv_cq_ex *ex;
    struct ibv_comp_channel *channel;
    /* for polling and for everything that follows from it, because rule 4 is about the order on the queue; taken before
     * a pair's lock */
    pthread_mutex_t lock;
    bool armed, emptied; /* an event was requested; since then all existing completions have been polled */
    double owed;         /* since when an event is missing for a completion that was polled; 0: none */
} cq_t;

/* An outstanding work request. */
typedef struct {
    enum { PART, END, CREDIT } role; /* part of a message; its last one; the counter of rule 3 */
    enum ibv_wc_opcode opcode;
    uint64_t number;
    bool signaled;
} request_t;

typedef struct {
    int index;
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;
    cq_t *send_cq, *recv_cq;
    pthread_mutex_t lock;
    address_t mine, theirs;
    /* sending */
    uint64_t total, posted, completed; /* messages */
    uint64_t head, tail;               /* work requests: posted, retired */
    request_t *ring;
    uint64_t peer_consumed; /* rule 3 */
    double due;             /* with pauses: when the next message may be sent */
    bool sent;              /* all messages are, and have been reported */
    /* receiving */
    uint64_t received;  /* number of the next message that will be noticed; READs are not noticed */
    uint64_t credited;  /* the value that the peer has been told */
    uint64_t receives;  /* completed */
    uint64_t peer_total;
    bool all_received;
    /* memory */
    uint8_t *source, *fetched, *target;
    volatile uint64_t *consumed, *told; /* written by the peer; written by us for the peer */
    struct ibv_mr *local, *remote, **fresh; /* fresh: of each slot, if each message is registered anew */
    uint64_t target_address, consumed_address; /* the peer's */
    uint32_t target_key;
} pair_t;

/* Data about a pair that the sides exchange. */
typedef struct {
    address_t address;
    uint64_t target, consumed, readable;
    uint32_t target_key, readable_key;
} introduction_t;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_srq *srq;
static struct ibv_mr *landing_mr, *readable_mr;
static struct ibv_comp_channel **channels; /* one per thread */
static pair_t *pairs, *table[TABLE];       /* table: by queue pair number */
static cq_t *cqs;
static uint8_t *landing, *readable;
static uint64_t *landing_cut; /* how each landing buffer is cut into pieces */
static uint64_t peer_readable;
static uint32_t peer_readable_key, slot_size, sq_size;
static int side, fd, n_cqs; /* side: 0 server, 1 client */
static bool writes, delivers; /* kinds that need targets; kinds that the receiver notices */
static atomic_ulong received_total, received_bytes, moves;
static atomic_int pairs_sent, pairs_received, bad_events;
static atomic_bool stop;
static volatile sig_atomic_t interrupted;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *memory(size_t size) {
    void *m;
    if (posix_memalign(&m, 4096, size))
        fail("no memory for %zu bytes", size);
    return memset(m, 0, size);
}

static struct ibv_mr *registered(void *m, size_t size, int access) {
    struct ibv_mr *mr = ibv_reg_mr(pd, m, size, IBV_ACCESS_LOCAL_WRITE | access);
    if (!mr)
        fail("registration of %zu bytes: %s", size, strerror(errno));
    return mr;
}

/* ---- sending */

/* Posts a chain through the extended interface, as ibv_post_send would. In rdma-core 44, rxe takes the length of a list
 * from its first piece (--pieces 1 avoids lists), and recognizes inline data only by the flag, which the interface
 * doesn't require. */
static int post_extended(struct ibv_qp_ex *qp, struct ibv_send_wr *wr) {
    ibv_wr_start(qp);
    for (; wr; wr = wr->next) {
        qp->wr_id = wr->wr_id, qp->wr_flags = wr->send_flags;
        switch (wr->opcode) {
        case IBV_WR_SEND: ibv_wr_send(qp); break;
        case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(qp, wr->imm_data); break;
        case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            ibv_wr_rdma_write_imm(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
            break;
        default: ibv_wr_rdma_read(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
        }
        if (wr->send_flags & IBV_SEND_INLINE) {
            struct ibv_data_buf data[MAX_PIECES];
            for (int i = 0; i < wr->num_sge; i++)
                data[i] = (struct ibv_data_buf){.addr = (void *)wr->sg_list[i].addr, .length = wr->sg_list[i].length};
            if (wr->num_sge == 1)
                ibv_wr_set_inline_data(qp, data[0].addr, data[0].length);
            else
                ibv_wr_set_inline_data_list(qp, wr->num_sge, data);
        } else if (wr->num_sge == 1) {
            ibv_wr_set_sge(qp, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
        } else {
            ibv_wr_set_sge_list(qp, wr->num_sge, wr->sg_list);
        }
    }
    return ibv_wr_complete(qp);
}

static void post(pair_t *p, struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad;
    int error = opt.wr ? post_extended(p->ex, wr) : ibv_post_send(p->qp, wr, &bad);
    if (error)
        fail("pair %d: post_send: %s", p->index, strerror(error));
}

/* Enters the work request into the ring: its id, whether it is signaled, whether its data are inline. */
static void enter(pair_t *p, struct ibv_send_wr *wr, int role, uint64_t number, bool signaled, bool inlined) {
    static const enum ibv_wc_opcode opcodes[] = {
        [IBV_WR_SEND] = IBV_WC_SEND,
        [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
        [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
        [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
        [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
    };
    uint32_t length = 0;
    for (int i = 0; i < wr->num_sge; i++)
        length += wr->sg_list[i].length;
    signaled = signaled || p->head % opt.signal_every == 0;
    inlined = inlined && length <= opt.inline_size && wr->opcode != IBV_WR_RDMA_READ;
    p->ring[p->head % sq_size] =
        (request_t){.role = role, .opcode = opcodes[wr->opcode], .number = number, .signaled = signaled};
    wr->wr_id = p->head++ << 16 | p->index << 1;
    wr->send_flags = (signaled ? IBV_SEND_SIGNALED : 0) | (inlined ? IBV_SEND_INLINE : 0) |
                     (opt.fence && wr->opcode == IBV_WR_RDMA_READ ? IBV_SEND_FENCE : 0);
}

static uint32_t room(const pair_t *p) { return sq_size - (uint32_t)(p->head - p->tail); }

/* Tells the peer how much has been consumed (rule 3). `signaled`: also to get a completion of everything posted
 * before. */
static void post_credit(pair_t *p, bool signaled) {
    *p->told = p->credited = p->received;
    struct ibv_sge sge = {.addr = (uintptr_t)p->told, .length = 8, .lkey = p->local->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .wr.rdma = {.rkey = p->target_key, .remote_addr = p->consumed_address}};
    enter(p, &wr, CREDIT, 0, signaled, true);
    post(p, &wr);
}

/* An error that is a work request of its own. */
static void post_fault(pair_t *p, uint64_t slot) {
    struct ibv_sge sge = {.addr = (uintptr_t)p->told, .length = 8, .lkey = p->local->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1, .wr.rdma.rkey = p->target_key};
    wr.wr.rdma.remote_addr =
        opt.fault == FAULT_LATE ? p->target_address + slot * slot_size + opt.plan.size : p->consumed_address;
    *p->told = opt.fault == FAULT_LATE, p->credited = UINT64_MAX;
    enter(p, &wr, CREDIT, 0, false, false);
    post(p, &wr);
}

/* Registers the memory of a slot once more, and gives the registration for the slot's last message back. */
static uint32_t registered_anew(pair_t *p, uint64_t slot, void *source) {
    if (p->fresh[slot] && ibv_dereg_mr(p->fresh[slot]))
        fail("dereg_mr: %s", strerror(errno));
    p->fresh[slot] = registered(source, slot_size, 0);
    return p->fresh[slot]->lkey;
}

static void post_message(pair_t *p) {
    message_t m = message_of(&opt.plan, side, p->index, p->posted);
    uint64_t number = p->posted++, slot = number % opt.depth, offset = 0;
    fault_t fault = side && number == FAULTY ? opt.fault : FAULT_NONE;
    uint64_t stamp = fault == FAULT_AGAIN || fault == FAULT_SKIP
                         ? stamp_of(&opt.plan, side, p->index, number + (fault == FAULT_AGAIN ? -1 : 1))
                         : m.stamp;
    if (fault == FAULT_LATE || fault == FAULT_BACK)
        post_fault(p, slot);
    uint8_t *source = (m.kind == KIND_READ ? p->fetched : p->source) + slot * slot_size,
            *flag = source + slot_size - FLAG_SIZE;
    struct ibv_sge sges[MAX_PIECES + 1];
    struct ibv_send_wr wrs[MAX_PIECES + 2];
    uint32_t key = opt.fresh ? registered_anew(p, slot, source) : p->local->lkey;
    int n = 0;
    for (uint32_t i = 0; i < m.pieces; offset += m.piece[i], i++) {
        uint8_t *at = source + offset + i * PIECE_GAP;
        if (m.kind != KIND_READ)
            stamp_bytes(at, stamp, offset, m.piece[i]);
        if (fault == FAULT_BYTE)
            at[m.piece[i] - 1] ^= 2;
        sges[i] = (struct ibv_sge){.addr = (uintptr_t)at, .length = m.piece[i], .lkey = key};
    }
    uint64_t target = p->target_address + slot * slot_size;
    offset = 0;
    for (uint32_t part = 0; part < m.parts; part++) {
        struct ibv_send_wr *wr = &wrs[n++];
        uint32_t first = m.part[part], pieces = m.part[part + 1] - first;
        *wr = (struct ibv_send_wr){.sg_list = sges + first, .num_sge = pieces, .imm_data = htonl((uint32_t)number)};
        wr->opcode = m.kind == KIND_SEND   ? IBV_WR_SEND
                     : m.kind == KIND_IMM  ? IBV_WR_SEND_WITH_IMM
                     : m.kind == KIND_READ ? IBV_WR_RDMA_READ
                                           : IBV_WR_RDMA_WRITE;
        wr->wr.rdma.rkey = m.kind == KIND_READ ? peer_readable_key : p->target_key;
        wr->wr.rdma.remote_addr =
            m.kind == KIND_READ ? peer_readable + m.stamp % (READABLE - m.length) : target + offset;
        for (uint32_t i = first; i < first + pieces; i++)
            offset += m.piece[i];
    }
    if (m.kind == KIND_WRITE && m.empty_end_bit) {
        wrs[n++] = (struct ibv_send_wr){.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                        .imm_data = htonl((uint32_t)number),
                                        .wr.rdma = {.rkey = p->target_key, .remote_addr = target}};
    } else if (m.kind == KIND_WRITE) {
        wrs[n - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    } else if (m.kind == KIND_FLAG) {
        uint64_t value = number + 1;
        memcpy(flag, &value, FLAG_SIZE);
        sges[MAX_PIECES] = (struct ibv_sge){.addr = (uintptr_t)flag, .length = FLAG_SIZE, .lkey = key};
        wrs[n++] =
            (struct ibv_send_wr){.opcode = IBV_WR_RDMA_WRITE,
                                 .sg_list = &sges[MAX_PIECES],
                                 .num_sge = 1,
                                 .wr.rdma = {.rkey = p->target_key, .remote_addr = target + slot_size - FLAG_SIZE}};
    }
    uint64_t half = opt.depth / 2;
    for (int i = 0; i < n; i++) {
        bool last = i == n - 1;
        /* Half of the slots must contain a completion; otherwise all could wait for one. */
        enter(p, &wrs[i], last ? END : PART, number, last && number % half == half - 1, m.inline_bit);
        wrs[i].next = last ? NULL : &wrs[i + 1];
    }
    if (m.stamp >> 63) { /* as one chain */
        post(p, wrs);
    } else {
        for (int i = 0; i < n; i++)
            wrs[i].next = NULL, post(p, &wrs[i]);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; wrs[i].send_flags & IBV_SEND_INLINE && j < wrs[i].num_sge; j++)
            memset((void *)wrs[i].sg_list[j].addr, SCRUBBED, wrs[i].sg_list[j].length); /* rule 1 */
}

/* The message's last work request is finished. */
static void message_completed(pair_t *p, uint64_t number) {
    message_t m = message_of(&opt.plan, side, p->index, number);
    uint64_t offset = 0;
    uint8_t *source = (m.kind == KIND_READ ? p->fetched : p->source) + number % opt.depth * slot_size;
    for (uint32_t i = 0; i < m.pieces; offset += m.piece[i], i++) {
        uint8_t *at = source + offset + i * PIECE_GAP;
        int64_t wrong = m.kind != KIND_READ ? -1
                                            : stamp_check(at, dice(opt.plan.seed * 2 + !side),
                                                          m.stamp % (READABLE - m.length) + offset, m.piece[i]);
        if (wrong >= 0)
            fail("pair %d: read %lu: byte %lu of %u is wrong", p->index, number, offset + wrong, m.length);
        memset(at, SCRUBBED, m.piece[i]); /* rule 1; a READ must bring new bytes */
    }
    if (number != p->completed++)
        fail("pair %d: message %lu completed before %lu", p->index, number, p->completed - 1);
}

static void send_completed(pair_t *p, const struct ibv_wc *wc) {
    uint64_t index = wc->wr_id >> 16;
    if (index < p->tail || index >= p->head)
        fail("pair %d: completion of work request %lu, which is not outstanding (%lu to %lu are)", p->index, index,
             p->tail, p->head);
    for (; p->tail <= index; p->tail++) {
        request_t *r = &p->ring[p->tail % sq_size];
        if (r->signaled != (p->tail == index))
            /* rule 4 */
            fail("pair %d: completion of work request %lu, expected was that of %lu", p->index, index, p->tail);
        if (p->tail == index && r->opcode != wc->opcode)
            fail("pair %d: completion of work request %lu has opcode %d instead of %d", p->index, index, wc->opcode,
                 r->opcode);
        if (r->role == END)
            message_completed(p, r->number);
    }
}

/* ---- receiving */

static void post_receive(pair_t *p, uint64_t buffer) {
    uint32_t piece[MAX_PIECES], offset = 0;
    uint32_t pieces = cut(landing_cut[buffer] = dice(landing_cut[buffer] + buffer), opt.plan.size, MAX_PIECES, piece);
    struct ibv_sge sges[MAX_PIECES];
    for (uint32_t i = 0; i < pieces; offset += piece[i], i++)
        sges[i] = (struct ibv_sge){.addr = (uintptr_t)(landing + buffer * slot_size + offset + i * PIECE_GAP),
                                   .length = piece[i],
                                   .lkey = landing_mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = buffer << 1 | RECEIVE, .sg_list = sges, .num_sge = pieces}, *bad;
    int error = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(p->qp, &wr, &bad);
    if (error)
        fail("post_recv: %s", strerror(error));
}

static void skip_reads(pair_t *p) {
    while (delivers && kind_of(&opt.plan, !side, p->index, p->received) == KIND_READ)
        p->received++;
}

/* The bytes are not those of the expected message: which message has them? */
static void wrong_bytes(const pair_t *p, const uint8_t *bytes, const message_t *m, uint64_t offset) {
    for (uint64_t other = p->received > 1000 ? p->received - 1000 : 0; other < p->received + 1000; other++) {
        uint64_t stamp = stamp_of(&opt.plan, !side, p->index, other);
        if (m->length >= 4 && other != p->received && stamp_check(bytes, stamp, 0, m->length < 16 ? m->length : 16) < 0)
            fail("pair %d: message %lu (%s) came instead of %lu: %s", p->index, other,
                 kind_names[kind_of(&opt.plan, !side, p->index, other)], p->received,
                 other < p->received ? "a duplicate" : "one is missing");
    }
    fail("pair %d: message %lu (%s): byte %lu of %u is wrong", p->index, p->received, kind_names[m->kind], offset,
         m->length);
}

static void check_landed(const pair_t *p, uint64_t buffer, const message_t *m) {
    uint8_t *bytes = landing + buffer * slot_size;
    uint32_t piece[MAX_PIECES], offset = 0, pieces = cut(landing_cut[buffer], opt.plan.size, MAX_PIECES, piece);
    for (uint32_t i = 0; i < pieces && offset < m->length; offset += piece[i], i++) {
        uint32_t n = m->length - offset < piece[i] ? m->length - offset : piece[i];
        int64_t wrong = stamp_check(bytes + offset + i * PIECE_GAP, m->stamp, offset, n);
        if (wrong >= 0)
            wrong_bytes(p, bytes, m, offset + wrong);
        memset(bytes + offset + i * PIECE_GAP, SCRUBBED, n);
    }
}

/* The slot contains the message, and nothing else (rule 2). */
static void check_target(const pair_t *p, const message_t *m) {
    uint8_t *bytes = p->target + p->received % opt.depth * slot_size;
    int64_t wrong = stamp_check(bytes, m->stamp, 0, m->length);
    if (wrong >= 0)
        wrong_bytes(p, bytes, m, wrong);
    wrong = zero_check(bytes + m->length, slot_size - m->length - FLAG_SIZE);
    if (wrong >= 0)
        fail("pair %d: message %lu (%s): byte %lu behind its %u has been written", p->index, p->received,
             kind_names[m->kind], wrong, m->length);
    memset(bytes, 0, slot_size);
}

static void message_received(pair_t *p, const message_t *m) {
    if (p->received >= p->peer_total)
        fail("pair %d: message %lu came, but only %lu were sent", p->index, p->received, p->peer_total);
    p->received++;
    skip_reads(p);
    atomic_fetch_add(&received_bytes, m->length);
    uint64_t total = atomic_fetch_add(&received_total, 1) + 1;
    if (total % opt.progress == 0)
        printf("received %lu\n", total);
}

/* Did the message that is expected next have a flag that has arrived? */
static bool flag_received(pair_t *p) {
    if (!delivers || kind_of(&opt.plan, !side, p->index, p->received) != KIND_FLAG)
        return false;
    uint8_t *flag = p->target + (p->received % opt.depth + 1) * slot_size - FLAG_SIZE;
    uint64_t value = __atomic_load_n((uint64_t *)flag, __ATOMIC_ACQUIRE);
    if (!value)
        return false;
    /* Soft-RoCE copies it with memcpy, on an emulated processor byte by byte. So a part of it may arrive first, and the
     * host may stop that processor at that moment. */
    for (double begun = now(); value != p->received + 1 && now() - begun < 5;)
        value = __atomic_load_n((uint64_t *)flag, __ATOMIC_ACQUIRE);
    if (value != p->received + 1)
        fail("pair %d: flag of message %lu came instead of %lu's", p->index, value - 1, p->received);
    message_t m = message_of(&opt.plan, !side, p->index, p->received);
    check_target(p, &m);
    message_received(p, &m);
    return true;
}

static void receive_completed(pair_t *p, const struct ibv_wc *wc) {
    uint64_t buffer = wc->wr_id >> 1, expected = p->index * opt.depth + p->receives++ % opt.depth;
    if (!srq && buffer != expected)
        fail("pair %d: receive %lu completed before %lu", p->index, buffer, expected); /* rule 4 */
    while (flag_received(p))
        ;
    message_t m = message_of(&opt.plan, !side, p->index, p->received);
    if (m.kind == KIND_FLAG)
        fail("pair %d: a later message came before the flag of %lu", p->index, p->received); /* rule 5 */
    bool imm = wc->wc_flags & IBV_WC_WITH_IMM, written = wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    if (written != (m.kind == KIND_WRITE) || imm != (m.kind != KIND_SEND))
        fail("pair %d: instead of message %lu (%s) came one with opcode %d%s%u", p->index, p->received,
             kind_names[m.kind], wc->opcode, imm ? ", immediate " : ", flags ",
             imm ? ntohl(wc->imm_data) : wc->wc_flags);
    if (imm && ntohl(wc->imm_data) != (uint32_t)p->received)
        fail("pair %d: immediate %u came instead of %lu", p->index, ntohl(wc->imm_data), p->received);
    if (!written && wc->byte_len != m.length)
        fail("pair %d: message %lu has %u bytes instead of %u", p->index, p->received, wc->byte_len, m.length);
    if (written)
        check_target(p, &m);
    else
        check_landed(p, buffer, &m);
    if (opt.rest && p->received == RESTING) { /* the sender may continue, into a queue that lacks a receive */
        message_received(p, &m);
        post_credit(p, true);
        usleep(opt.rest * 1000);
        post_receive(p, buffer);
        return;
    }
    post_receive(p, buffer);
    message_received(p, &m);
}

/* ---- completion queues */

/* In rdma-core 44, rxe's next_poll loses its position at the end of the queue: with most = 1 it isn't called. */
static int poll_extended(struct ibv_cq_ex *cq, struct ibv_wc *wc, int most) {
    struct ibv_poll_cq_attr attr = {0};
    int n = 0, error = ibv_start_poll(cq, &attr);
    if (error == ENOENT)
        return 0;
    for (; !error; error = n < most ? ibv_next_poll(cq) : ENOENT) {
        wc[n] = (struct ibv_wc){.wr_id = cq->wr_id, .status = cq->status, .qp_num = ibv_wc_read_qp_num(cq)};
        if (!wc[n].status) {
            wc[n].opcode = ibv_wc_read_opcode(cq), wc[n].wc_flags = ibv_wc_read_wc_flags(cq);
            wc[n].byte_len = ibv_wc_read_byte_len(cq), wc[n].imm_data = ibv_wc_read_imm_data(cq);
        }
        n++;
    }
    if (error != ENOENT)
        fail("start_poll, next_poll: %s", strerror(error));
    ibv_end_poll(cq);
    return n;
}

static pair_t *pair_of(uint32_t number) {
    uint32_t at = number % TABLE;
    while (table[at] && table[at]->qp->qp_num != number)
        at = (at + 1) % TABLE;
    if (!table[at])
        fail("a completion of queue pair 0x%x, which is none of ours", number);
    return table[at];
}

/* Handles the existing completions; returns their number. */
static int drain(cq_t *cq) {
    struct ibv_wc wc[BATCH];
    pthread_mutex_lock(&cq->lock);
    int n = opt.ex_poll ? poll_extended(cq->ex, wc, opt.ex_poll) : ibv_poll_cq(cq->cq, BATCH, wc);
    if (n < 0)
        fail("poll_cq: %d", n);
    if (n && cq->emptied && !cq->owed)
        cq->owed = now();
    cq->emptied = cq->emptied || (cq->armed && n == 0);
    for (int i = 0; i < n; i++) {
        pair_t *p = pair_of(wc[i].qp_num);
        bool receive = wc[i].wr_id & RECEIVE;
        if (wc[i].status)
            fail("pair %d: %s: %s (%d)", p->index, receive ? "receive" : "send", ibv_wc_status_str(wc[i].status),
                 wc[i].status);
        pthread_mutex_lock(&p->lock);
        if (receive)
            receive_completed(p, &wc[i]);
        else
            send_completed(p, &wc[i]);
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_unlock(&cq->lock);
    return n;
}

static void arm(cq_t *cq) {
    pthread_mutex_lock(&cq->lock);
    if (!cq->armed) {
        if (ibv_req_notify_cq(cq->cq, 0))
            fail("req_notify_cq: %s", strerror(errno));
        cq->armed = true;
    } else if (cq->owed && now() - cq->owed > opt.patience / 2.0) {
        fail("no event for a completion on an armed queue");
    }
    pthread_mutex_unlock(&cq->lock);
}

static void wait_event(struct ibv_comp_channel *channel, int milliseconds) {
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    struct ibv_cq *which;
    void *ours;
    if (poll(&ready, 1, milliseconds) < 1 || ibv_get_cq_event(channel, &which, &ours))
        return; /* none, or another thread has it */
    cq_t *cq = ours;
    if (cq->cq != which)
        fail("an event of another completion queue");
    pthread_mutex_lock(&cq->lock);
    cq->armed = cq->emptied = false, cq->owed = 0;
    ibv_ack_cq_events(which, 1);
    pthread_mutex_unlock(&cq->lock);
}

/* ---- threads */

/* Does the work for a pair that doesn't begin with a completion. Returns whether there was any. `idle`: there is no
 * other work. */
static bool advance(pair_t *p, double time, bool idle) {
    bool moved = false;
    uint64_t consumed = *p->consumed;
    if (consumed < p->peer_consumed)
        /* rule 3 */
        fail("pair %d: the peer's counter went back from %lu to %lu", p->index, p->peer_consumed, consumed);
    p->peer_consumed = consumed;
    while (flag_received(p))
        moved = true;
    if (writes && p->received > p->credited && (idle || p->received - p->credited >= (uint64_t)opt.depth / 2) &&
        room(p))
        post_credit(p, false);
    while (p->posted < p->total && time >= p->due && room(p) >= MAX_PIECES + 2) {
        uint64_t free_below = writes && consumed < p->completed ? consumed : p->completed;
        if (p->posted - free_below >= (uint64_t)opt.depth)
            break;
        post_message(p);
        moved = true;
        if (opt.pause)
            p->due = time + opt.pause * 2e-3 * (dice(p->posted) >> 40) / (1 << 24);
    }
    if (p->posted == p->total && !p->sent) {
        if (p->tail < p->head && !p->ring[(p->head - 1) % sq_size].signaled && room(p))
            post_credit(p, true);
        if (p->completed == p->total && p->tail == p->head)
            p->sent = true, atomic_fetch_add(&pairs_sent, 1);
    }
    if (!p->all_received && p->peer_total != UINT64_MAX && (p->received >= p->peer_total || !delivers))
        p->all_received = true, atomic_fetch_add(&pairs_received, 1);
    return moved;
}

static void *thread(void *argument) {
    int me = (int)(intptr_t)argument, idle = 0;
    double begun = now();
    while (!atomic_load(&stop)) {
        double time = now();
        int moved = 0;
        for (int i = me; i < opt.pairs; i += opt.threads) {
            pair_t *p = &pairs[i];
            pthread_mutex_lock(&p->lock);
            if (interrupted || (opt.seconds > 0 && time - begun > opt.seconds))
                p->total = p->posted;
            moved += advance(p, time, idle > 0);
            pthread_mutex_unlock(&p->lock);
            if (opt.cq == CQ_ONE || opt.cq == CQ_TWO)
                moved += drain(p->send_cq);
            if (opt.cq == CQ_TWO)
                moved += drain(p->recv_cq);
        }
        if (opt.cq == CQ_THREAD || opt.cq == CQ_ALL)
            moved += drain(&cqs[opt.cq == CQ_ALL ? 0 : me]);
        if (moved) {
            atomic_fetch_add(&moves, 1);
            idle = 0;
        } else if (opt.events && idle) { /* armed before the last poll, which found nothing */
            wait_event(channels[opt.cq == CQ_ALL ? 0 : me], writes || opt.pause ? 2 : 200);
            idle = 0;
        } else {
            idle++;
            if (opt.events)
                for (int i = 0; i < n_cqs; i++)
                    if (cqs[i].channel == channels[opt.cq == CQ_ALL ? 0 : me])
                        arm(&cqs[i]);
            if (idle > 20 || opt.pause) /* to wake up takes an emulated processor half a millisecond */
                usleep(opt.pause ? 10000 : idle < 100 ? 100 : 1000);
        }
    }
    return NULL;
}

static void interrupt(int number) { interrupted = number; }

/* Prints events of the device; errors are counted. */
static void *listen_events(void *unused) {
    struct ibv_async_event event;
    while (!ibv_get_async_event(context, &event)) {
        printf("event %s\n", ibv_event_type_str(event.event_type));
        switch (event.event_type) {
        case IBV_EVENT_CQ_ERR:
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_DEVICE_FATAL: atomic_fetch_add(&bad_events, 1); break;
        default: break;
        }
        ibv_ack_async_event(&event);
    }
    return unused;
}

/* ---- setting up */

static cq_t *cq_of(int pair, bool receiving) {
    switch (opt.cq) {
    case CQ_ONE: return &cqs[pair];
    case CQ_TWO: return &cqs[2 * pair + receiving];
    case CQ_THREAD: return &cqs[pair % opt.threads];
    default: return &cqs[0];
    }
}

static void create_cqs(const struct ibv_device_attr *limits) {
    n_cqs = opt.cq == CQ_ONE ? opt.pairs : opt.cq == CQ_TWO ? 2 * opt.pairs : opt.cq == CQ_THREAD ? opt.threads : 1;
    cqs = calloc(n_cqs, sizeof *cqs), channels = calloc(opt.threads, sizeof *channels);
    for (int i = 0; opt.events && i < opt.threads; i++) {
        if (!(channels[i] = ibv_create_comp_channel(context)))
            fail("create_comp_channel: %s", strerror(errno));
        fcntl(channels[i]->fd, F_SETFL, fcntl(channels[i]->fd, F_GETFL) | O_NONBLOCK);
    }
    int sharing = opt.cq == CQ_ONE || opt.cq == CQ_TWO ? 1
                  : opt.cq == CQ_ALL                   ? opt.pairs
                                                       : (opt.pairs + opt.threads - 1) / opt.threads;
    int entries = sharing * (sq_size + opt.depth);
    if (entries > limits->max_cqe)
        entries = limits->max_cqe; /* there are never so many unless the pairs fail */
    for (int i = 0; i < n_cqs; i++) {
        cq_t *cq = &cqs[i];
        pthread_mutex_init(&cq->lock, NULL);
        cq->channel = channels[opt.cq == CQ_ONE ? i % opt.threads : opt.cq == CQ_TWO ? i / 2 % opt.threads : i];
        if (opt.ex_poll) {
            struct ibv_cq_init_attr_ex attr = {.cqe = entries,
                                               .cq_context = cq,
                                               .channel = cq->channel,
                                               .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM |
                                                           IBV_WC_EX_WITH_QP_NUM};
            cq->ex = ibv_create_cq_ex(context, &attr);
            cq->cq = cq->ex ? ibv_cq_ex_to_cq(cq->ex) : NULL;
        } else {
            cq->cq = ibv_create_cq(context, entries, cq, cq->channel, 0);
        }
        if (!cq->cq)
            fail("create_cq of %d entries: %s", entries, strerror(errno));
    }
}

static struct ibv_qp *create_qp(pair_t *p) {
    struct ibv_qp_init_attr_ex attr = {
        .qp_context = p,
        .send_cq = p->send_cq->cq,
        .recv_cq = p->recv_cq->cq,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .cap = {.max_send_wr = sq_size,
                .max_recv_wr = srq ? 0 : opt.depth,
                .max_send_sge = MAX_PIECES,
                .max_recv_sge = srq ? 0 : MAX_PIECES,
                .max_inline_data = opt.inline_size},
    };
    if (opt.wr) {
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
                              IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;
        return ibv_create_qp_ex(context, &attr);
    }
    struct ibv_qp_init_attr plain = {.qp_context = p,
                                     .send_cq = attr.send_cq,
                                     .recv_cq = attr.recv_cq,
                                     .srq = srq,
                                     .cap = attr.cap,
                                     .qp_type = IBV_QPT_RC};
    return ibv_create_qp(pd, &plain);
}

static void create_pair(int index) {
    pair_t *p = &pairs[index];
    *p = (pair_t){
        .index = index, .send_cq = cq_of(index, false), .recv_cq = cq_of(index, true), .peer_total = UINT64_MAX};
    p->total = opt.one_way && !side ? 0 : opt.seconds > 0 ? UINT64_MAX : opt.messages;
    pthread_mutex_init(&p->lock, NULL);
    p->ring = calloc(sq_size, sizeof *p->ring), p->fresh = calloc(opt.depth, sizeof *p->fresh);
    size_t area = (size_t)opt.depth * slot_size;
    p->source = memory(2 * area + 4096), p->fetched = p->source + area, p->told = (uint64_t *)(p->source + 2 * area);
    p->target = memory(area + 4096), p->consumed = (uint64_t *)(p->target + area);
    p->local = registered(p->source, 2 * area + 4096, 0),
    p->remote = registered(p->target, area + 4096, IBV_ACCESS_REMOTE_WRITE);
    p->qp = create_qp(p);
    if (!p->qp && opt.inline_size) { /* a device without inline data */
        opt.inline_size = 0;
        p->qp = create_qp(p);
    }
    if (!p->qp)
        fail("create_qp %d: %s", index, strerror(errno));
    p->ex = opt.wr ? ibv_qp_to_qp_ex(p->qp) : NULL;
    uint32_t at = p->qp->qp_num % TABLE;
    while (table[at])
        at = (at + 1) % TABLE;
    table[at] = p;
    p->mine.number = p->qp->qp_num, p->mine.psn = dice(now() * 1e6) & 0xffffff;
    query_address(context, &opt.link, &p->mine);
}

static void set_up(void) {
    struct ibv_device_attr limits;
    context = open_device(opt.device);
    pd = ibv_alloc_pd(context);
    if (!pd || ibv_query_device(context, &limits))
        fail("query_device: %s", strerror(errno));
    slot_size = (opt.plan.size + MAX_PIECES * PIECE_GAP + FLAG_SIZE + 63) / 64 * 64;
    sq_size = (MAX_PIECES + 2) * opt.depth + 2;
    if (opt.signal_every > (int)sq_size / 2)
        opt.signal_every = sq_size / 2;
    if (sq_size > (uint32_t)limits.max_qp_wr)
        fail("%u work requests in a queue are too many for the device: at most %d", sq_size, limits.max_qp_wr);
    readable = memory(READABLE), readable_mr = registered(readable, READABLE, IBV_ACCESS_REMOTE_READ);
    stamp_bytes(readable, dice(opt.plan.seed * 2 + side), 0, READABLE);
    size_t buffers = (size_t)opt.pairs * opt.depth;
    if (opt.srq) {
        if (buffers > (size_t)limits.max_srq_wr)
            buffers = limits.max_srq_wr;
        struct ibv_srq_init_attr attr = {.attr = {.max_wr = buffers, .max_sge = MAX_PIECES}};
        if (!(srq = ibv_create_srq(pd, &attr)))
            fail("create_srq of %zu: %s", buffers, strerror(errno));
    }
    landing = memory(buffers * slot_size), landing_mr = registered(landing, buffers * slot_size, 0),
    landing_cut = calloc(buffers, sizeof *landing_cut);
    create_cqs(&limits);
    pairs = calloc(opt.pairs, sizeof *pairs);
    for (int i = 0; i < opt.pairs; i++) {
        pair_t *p = &pairs[i];
        create_pair(i);
        introduction_t theirs, mine = {.address = p->mine,
                                       .target = (uintptr_t)p->target,
                                       .consumed = (uintptr_t)p->consumed,
                                       .target_key = p->remote->rkey,
                                       .readable = (uintptr_t)readable,
                                       .readable_key = readable_mr->rkey};
        swap(fd, &mine, &theirs, sizeof mine);
        p->theirs = theirs.address, p->target_address = theirs.target, p->consumed_address = theirs.consumed,
        p->target_key = theirs.target_key;
        peer_readable = theirs.readable, peer_readable_key = theirs.readable_key;
    }
    for (int n = 0; n < opt.pairs; n++) { /* in opposite orders: no side may depend on the other's order */
        int i = side ? opt.pairs - 1 - n : n;
        connect_pair(pairs[i].qp, &opt.link, &pairs[i].mine, &pairs[i].theirs);
        skip_reads(&pairs[i]);
        for (int j = 0; !srq && j < opt.depth; j++)
            post_receive(&pairs[i], (uint64_t)i * opt.depth + j);
    }
    for (size_t i = 0; srq && i < buffers; i++)
        post_receive(NULL, i);
}

/* ---- the end */

static void check_end(void) {
    for (int i = 0; i < opt.pairs; i++) {
        pair_t *p = &pairs[i];
        int64_t wrong = zero_check(p->target, (size_t)opt.depth * slot_size);
        if (wrong >= 0)
            fail("pair %d: slot %lu has been written again", i, wrong / slot_size); /* rule 2 */
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        if (ibv_query_qp(p->qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT, &init))
            fail("query_qp: %s", strerror(errno));
        if (attr.qp_state != IBV_QPS_RTS || attr.dest_qp_num != p->theirs.number || attr.timeout != opt.link.timeout ||
            attr.retry_cnt != opt.link.retry)
            fail("pair %d: query_qp says state %d, peer 0x%x, timeout %d, retries %d", i, attr.qp_state,
                 attr.dest_qp_num, attr.timeout, attr.retry_cnt);
    }
    if (atomic_load(&bad_events))
        fail("%d events said that something failed", atomic_load(&bad_events));
}

static void tear_down(void) {
    for (int i = 0; i < opt.pairs; i++)
        for (int slot = 0; slot < opt.depth; slot++)
            if (pairs[i].fresh[slot] && ibv_dereg_mr(pairs[i].fresh[slot]))
                fail("dereg_mr: %s", strerror(errno));
    for (int i = 0; i < opt.pairs; i++)
        if (ibv_destroy_qp(pairs[i].qp) || ibv_dereg_mr(pairs[i].local) || ibv_dereg_mr(pairs[i].remote))
            fail("destroying pair %d: %s", i, strerror(errno));
    for (int i = 0; i < n_cqs; i++)
        if (ibv_destroy_cq(cqs[i].cq))
            fail("destroy_cq: %s", strerror(errno));
    for (int i = 0; opt.events && i < opt.threads; i++)
        if (ibv_destroy_comp_channel(channels[i]))
            fail("destroy_comp_channel: %s", strerror(errno));
    if ((srq && ibv_destroy_srq(srq)) || ibv_dereg_mr(landing_mr) || ibv_dereg_mr(readable_mr) || ibv_dealloc_pd(pd))
        fail("destroying: %s", strerror(errno));
}

/* Wait until all pairs have sent and received everything. The sides tell each other first how much it was, and then
 * that it has arrived. */
static void supervise(void) {
    uint64_t totals[opt.pairs], seen = 0;
    double since = now();
    bool told = false, heard = false;
    while (!told || !heard || atomic_load(&pairs_received) < opt.pairs) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        char byte;
        if (poll(&ready, 1, 50) > 0 && !heard) {
            hear(fd, totals, sizeof totals);
            for (int i = 0; i < opt.pairs; i++) {
                pthread_mutex_lock(&pairs[i].lock);
                pairs[i].peer_total = totals[i];
                pthread_mutex_unlock(&pairs[i].lock);
            }
            heard = true;
        } else if (ready.revents && recv(fd, &byte, 1, MSG_PEEK) <= 0) {
            fail("the other side has gone");
        } else if (ready.revents) {
            usleep(20000); /* the peer is ready before us */
        }
        if (!told && atomic_load(&pairs_sent) == opt.pairs) {
            uint64_t mine[opt.pairs];
            for (int i = 0; i < opt.pairs; i++)
                mine[i] = pairs[i].total;
            tell(fd, mine, sizeof mine);
            told = true;
        }
        if (seen != atomic_load(&moves))
            seen = atomic_load(&moves), since = now();
        if (now() - since > opt.patience) {
            pair_t *p = pairs;
            while (p < pairs + opt.pairs - 1 && p->sent && p->all_received)
                p++;
            fail("nothing has happened for %d s: pair %d has posted %lu (completed %lu, consumed %lu), received %lu",
                 opt.patience, p->index, p->posted, p->completed, p->peer_consumed, p->received);
        }
    }
    char ready = 'r', theirs;
    swap(fd, &ready, &theirs, 1);
    usleep(opt.linger * 1000); /* to detect messages that come twice */
}

static int run(void) {
    pthread_t threads[opt.threads], listener;
    fd = meet(opt.server, opt.port);
    side = opt.server != NULL;
    set_up();
    if (pthread_create(&listener, NULL, listen_events, NULL))
        fail("no thread");
    char ready = 'c', theirs;
    swap(fd, &ready, &theirs, 1); /* all are connected, all receives are posted */
    puts("connected");
    double begun = now();
    for (intptr_t i = 0; i < opt.threads; i++)
        if (pthread_create(&threads[i], NULL, thread, (void *)i))
            fail("no thread");
    supervise();
    atomic_store(&stop, true);
    for (int i = 0; i < opt.threads; i++)
        pthread_join(threads[i], NULL);
    check_end();
    swap(fd, &ready, &theirs, 1); /* no side destroys objects that the other may still use */
    uint64_t sent = 0;
    for (int i = 0; i < opt.pairs; i++)
        sent += pairs[i].total;
    tear_down();
    printf("sent %lu, received %lu messages with %lu bytes in %.1f s\nok\n", sent, atomic_load(&received_total),
           atomic_load(&received_bytes), now() - begun);
    return 0;
}

/* ---- options */

static int one_of(const char *option, const char *word, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(word, names[i]))
            return i;
    fail("--%s: not %s", option, word);
}

static const char usage[] =
    "stamps -d DEVICE [-c SERVER] [-p PORT] [-q PAIRS] [-n MESSAGES of each pair and side] [--seconds S]\n"
    "  --kinds send,imm,write,flag,read   which messages (send,imm,write,read); flag: one-sided, found by polling "
    "memory\n"
    "  --size BYTES, --depth SLOTS        of the longest message; messages under way on each pair and side\n"
    "  --signal-every K, --pieces P, --inline BYTES\n"
    "  --cq one|two|thread|all, --srq, --events, --wr (ibv_wr_*), --ex-poll N (ibv_start_poll, N completions each), "
    "--threads T\n"
    "  --one-way (the client sends), --pause MS (on average, between messages), --seed N\n"
    "  --fence (READs), --rest MS (of message 50, before its receive is posted again)\n"
    "  --fresh (the memory of each message is registered anew)\n"
    "  --timeout T, --retry N, --gid INDEX, --patience S, --progress N, --linger MS, --fault "
    "again|skip|byte|late|back\n";

int main(int argc, char **argv) {
    enum {
        SECONDS = 256,
        KIND,
        SIZE,
        DEPTH,
        EVERY,
        PIECES,
        INLINE,
        CQ,
        SRQ,
        EVENTS,
        WR,
        EX_POLL,
        THREADS,
        ONE_WAY,
        PAUSE,
        SEED,
        TIMEOUT,
        RETRY,
        GID,
        PATIENCE,
        PROGRESS,
        LINGER,
        FAULT,
        FENCE,
        FRESH,
        REST
    };
    static const struct option options[] = {
        {"seconds", 1, NULL, SECONDS},
        {"kinds", 1, NULL, KIND},
        {"size", 1, NULL, SIZE},
        {"depth", 1, NULL, DEPTH},
        {"signal-every", 1, NULL, EVERY},
        {"pieces", 1, NULL, PIECES},
        {"inline", 1, NULL, INLINE},
        {"cq", 1, NULL, CQ},
        {"srq", 0, NULL, SRQ},
        {"events", 0, NULL, EVENTS},
        {"wr", 0, NULL, WR},
        {"ex-poll", 1, NULL, EX_POLL},
        {"threads", 1, NULL, THREADS},
        {"one-way", 0, NULL, ONE_WAY},
        {"pause", 1, NULL, PAUSE},
        {"seed", 1, NULL, SEED},
        {"timeout", 1, NULL, TIMEOUT},
        {"retry", 1, NULL, RETRY},
        {"gid", 1, NULL, GID},
        {"patience", 1, NULL, PATIENCE},
        {"progress", 1, NULL, PROGRESS},
        {"linger", 1, NULL, LINGER},
        {"fault", 1, NULL, FAULT},
        {"fence", 0, NULL, FENCE},
        {"fresh", 0, NULL, FRESH},
        {"rest", 1, NULL, REST},
        {0},
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGINT, interrupt);
    char kinds[] = "send,imm,write,read", *list = kinds;
    opt.messages = 1000;
    for (int o; (o = getopt_long(argc, argv, "d:c:p:q:n:", options, NULL)) != -1;) {
        switch (o) {
        case 'd': opt.device = optarg; break;
        case 'c': opt.server = optarg; break;
        case 'p': opt.port = atoi(optarg); break;
        case 'q': opt.pairs = atoi(optarg); break;
        case 'n': opt.messages = strtoull(optarg, NULL, 10); break;
        case SECONDS: opt.seconds = atof(optarg); break;
        case KIND: list = optarg; break;
        case SIZE: opt.plan.size = atoi(optarg); break;
        case DEPTH: opt.depth = atoi(optarg); break;
        case EVERY: opt.signal_every = atoi(optarg); break;
        case PIECES: opt.plan.max_pieces = atoi(optarg); break;
        case INLINE: opt.inline_size = atoi(optarg); break;
        case CQ: opt.cq = one_of("cq", optarg, cq_names, CQ_MODES); break;
        case SRQ: opt.srq = true; break;
        case EVENTS: opt.events = true; break;
        case WR: opt.wr = true; break;
        case EX_POLL: opt.ex_poll = atoi(optarg); break;
        case THREADS: opt.threads = atoi(optarg); break;
        case ONE_WAY: opt.one_way = true; break;
        case PAUSE: opt.pause = atoi(optarg); break;
        case SEED: opt.plan.seed = strtoull(optarg, NULL, 10); break;
        case TIMEOUT: opt.link.timeout = atoi(optarg); break;
        case RETRY: opt.link.retry = atoi(optarg); break;
        case GID: opt.link.gid_index = atoi(optarg); break;
        case PATIENCE: opt.patience = atoi(optarg); break;
        case PROGRESS: opt.progress = atoi(optarg); break;
        case LINGER: opt.linger = atoi(optarg); break;
        case FENCE: opt.fence = true; break;
        case FRESH: opt.fresh = true; break;
        case REST: opt.rest = atoi(optarg); break;
        case FAULT: opt.fault = one_of("fault", optarg, fault_names, FAULTS); break;
        default: fputs(usage, stderr); return 2;
        }
    }
    for (char *word = strtok(list, ","); word && opt.plan.n_kinds < KINDS; word = strtok(NULL, ","))
        opt.plan.kinds[opt.plan.n_kinds++] = one_of("kinds", word, kind_names, KINDS);
    for (uint32_t i = 0; i < opt.plan.n_kinds; i++) {
        writes = writes || opt.plan.kinds[i] == KIND_WRITE || opt.plan.kinds[i] == KIND_FLAG;
        delivers = delivers || opt.plan.kinds[i] != KIND_READ;
    }
    if (!opt.device || !opt.plan.n_kinds || optind < argc || opt.ex_poll < 0 || opt.ex_poll > BATCH || opt.pairs < 1 ||
        opt.pairs >= TABLE / 2 || opt.threads < 1 || opt.depth < 2 || opt.signal_every < 1 || opt.progress < 1 ||
        opt.plan.size < 1 || opt.plan.size > READABLE / 2 || opt.plan.max_pieces < 1 ||
        opt.plan.max_pieces > MAX_PIECES) {
        fputs(usage, stderr);
        return 2;
    }
    return run();
}
