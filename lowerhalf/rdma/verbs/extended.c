/* extended.c - the extended data verbs: ibv_wr_* (ibv_wr_start .. ibv_wr_complete) and ibv_start_poll .. ibv_end_poll.
 *
 * They are function pointers in the objects themselves. In the default state of a queue pair or CQ without journals the
 * provider's functions stay there, except for those that begin, end and continue a section. Such a section of the
 * program is *straight*. In every other state our functions replace them: requests are drafted, and posted at
 * wr_complete as ibv_post_send would; completions are polled one by one as ibv_poll_cq would. So everything in
 * slow_path.c, post.c, poll.c and gather.c also applies here.
 *
 * Invariants:
 * - Between wr_start and wr_complete or wr_abort the calling thread owns the queue pair; between start_poll and
 *   end_poll it owns the CQ. In straight sections the provider's own lock ensures this, in the others a mutex of ours.
 *   The two kinds never overlap: a thread that begins one of ours waits for a straight one to end. While there is one
 *   of ours, the default state does not begin (shift_draft_ends) or isn't used (`emulated`).
 * - Pointers are exchanged only after a check that there is no section.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "objects/slow_path.h"
#include "verbs/verbs.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static shift_qp_t *of_qp(struct ibv_qp_ex *x) { return shift_map_get(&shift_qps, (uintptr_t)&x->qp_base); }

/* ---- drafting ---- */

/* The range in struct ibv_cq_ex of the functions that read a completion. */
enum {
    READERS = offsetof(struct ibv_cq_ex, read_opcode),
    READERS_END = offsetof(struct ibv_cq_ex, read_completion_ts)
};

static struct ibv_qp_ex drafters;

static void start_draft(struct ibv_qp_ex *x, shift_qp_t *q);

static void start(struct ibv_qp_ex *x) {
    shift_thread_t *me = shift_enter(&x->qp_base);
    shift_qp_t *q = of_qp(x);
    if (__builtin_expect(__atomic_load_n(&q->straight, __ATOMIC_ACQUIRE), 1)) {
        q->provider->wr_start(x);
        __atomic_store_n(&q->writing, true, __ATOMIC_RELAXED);
        shift_leave(me);
        return;
    }
    shift_leave(me);
    start_draft(x, q);
}

static void start_draft(struct ibv_qp_ex *x, shift_qp_t *q) {
    pthread_mutex_lock(&q->drafting);
    if (q->straight) { /* straight again */
        pthread_mutex_unlock(&q->drafting);
        start(x);
        return;
    }
    if (!q->drafted) {
        while (shift_qp_busy(q)) /* a section of another thread */
            sched_yield();
        shift_build_with(x, &drafters);
        q->drafted = true;
    }
    q->draft.first = q->draft.next;
    q->draft_error = 0;
}

static void end(shift_qp_t *q) {
    q->draft.first = q->draft.next;
    pthread_mutex_unlock(&q->drafting);
}

/* Begins a request. wr_id and flags are those that the program has set in the object. */
static struct ibv_send_wr *begin(struct ibv_qp_ex *x, enum ibv_wr_opcode opcode) {
    shift_qp_t *q = of_qp(x);
    struct ibv_send_wr wr = {
        .wr_id = x->wr_id, .opcode = opcode, .send_flags = x->wr_flags & ~(unsigned)IBV_SEND_INLINE};
    shift_send_t *e = shift_journal_send(&q->draft, &wr);
    if (!e) {
        q->draft_error = ENOMEM;
        q->spare = wr;
        return &q->spare;
    }
    return &e->wr;
}

static shift_send_t *latest(shift_qp_t *q) {
    return q->draft.next > q->draft.first ? shift_journal_at(&q->draft, q->draft.next - 1) : NULL;
}

static int complete_draft(struct ibv_qp_ex *x, shift_qp_t *q) {
    struct ibv_send_wr *bad, *head = NULL, **at = &head;
    int r = q->draft_error;
    for (uint64_t s = q->draft.first; s < q->draft.next; s++) {
        struct ibv_send_wr *wr = &((shift_send_t *)shift_journal_at(&q->draft, s))->wr;
        *at = wr;
        at = &wr->next;
    }
    *at = NULL;
    if (r == 0 && head)
        r = shift_post_send(&x->qp_base, head, &bad);
    end(q);
    return r;
}

/* `writing` is true only in the thread that owns the section, because that thread holds the provider's lock. */
static int complete(struct ibv_qp_ex *x) {
    shift_thread_t *me = shift_enter(&x->qp_base);
    shift_qp_t *q = of_qp(x);
    if (__builtin_expect(q->writing, 1)) {
        __atomic_store_n(&q->writing, false, __ATOMIC_RELAXED);
        __atomic_store_n(&q->uncounted, true, __ATOMIC_RELAXED);
        int r = q->provider->wr_complete(x);
        shift_leave(me);
        return __builtin_expect(r == 0, 1) ? 0 : shift_post_failed(q, r);
    }
    shift_leave(me);
    return complete_draft(x, q);
}

static void give_up(struct ibv_qp_ex *x) {
    shift_thread_t *me = shift_enter(&x->qp_base);
    shift_qp_t *q = of_qp(x);
    if (q->writing) {
        __atomic_store_n(&q->writing, false, __ATOMIC_RELAXED);
        q->provider->wr_abort(x);
    } else {
        end(q);
    }
    shift_leave(me);
}

static void one_sided(struct ibv_qp_ex *x, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t address, __be32 imm) {
    struct ibv_send_wr *wr = begin(x, opcode);
    wr->wr.rdma.rkey = rkey;
    wr->wr.rdma.remote_addr = address;
    wr->imm_data = imm;
}

static void rdma_read(struct ibv_qp_ex *x, uint32_t rkey, uint64_t address) {
    one_sided(x, IBV_WR_RDMA_READ, rkey, address, 0);
}
static void rdma_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t address) {
    one_sided(x, IBV_WR_RDMA_WRITE, rkey, address, 0);
}
static void rdma_write_imm(struct ibv_qp_ex *x, uint32_t rkey, uint64_t address, __be32 imm) {
    one_sided(x, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address, imm);
}
static void send(struct ibv_qp_ex *x) { begin(x, IBV_WR_SEND); }
static void send_imm(struct ibv_qp_ex *x, __be32 imm) { begin(x, IBV_WR_SEND_WITH_IMM)->imm_data = imm; }
static void send_inv(struct ibv_qp_ex *x, uint32_t rkey) { begin(x, IBV_WR_SEND_WITH_INV)->invalidate_rkey = rkey; }
static void local_inv(struct ibv_qp_ex *x, uint32_t rkey) { begin(x, IBV_WR_LOCAL_INV)->invalidate_rkey = rkey; }

static void atomic(struct ibv_qp_ex *x, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t address,
                   uint64_t compare_add, uint64_t swap) {
    struct ibv_send_wr *wr = begin(x, opcode);
    wr->wr.atomic.rkey = rkey;
    wr->wr.atomic.remote_addr = address;
    wr->wr.atomic.compare_add = compare_add;
    wr->wr.atomic.swap = swap;
}

static void compare_swap(struct ibv_qp_ex *x, uint32_t rkey, uint64_t address, uint64_t compare, uint64_t swap) {
    atomic(x, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address, compare, swap);
}

static void fetch_add(struct ibv_qp_ex *x, uint32_t rkey, uint64_t address, uint64_t add) {
    atomic(x, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address, add, 0);
}

static void set_sge_list(struct ibv_qp_ex *x, size_t n, const struct ibv_sge *list) {
    shift_qp_t *q = of_qp(x);
    shift_send_t *e = latest(q);
    if (!e)
        return;
    if (n > q->draft.max_sge) {
        q->draft_error = EINVAL;
        return;
    }
    memcpy(e->wr.sg_list, list, n * sizeof *list);
    e->wr.num_sge = (int)n;
}

static void set_sge(struct ibv_qp_ex *x, uint32_t lkey, uint64_t address, uint32_t length) {
    set_sge_list(x, 1, &(struct ibv_sge){.addr = address, .length = length, .lkey = lkey});
}

/* Copies at once, because the program may reuse its buffers before wr_complete. */
static void set_inline_data_list(struct ibv_qp_ex *x, size_t n, const struct ibv_data_buf *list) {
    shift_qp_t *q = of_qp(x);
    shift_send_t *e = latest(q);
    if (!e)
        return;
    char *data = (char *)(e->wr.sg_list + q->draft.max_sge);
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        if (length + list[i].length > q->draft.max_inline) {
            q->draft_error = EINVAL;
            return;
        }
        memcpy(data + length, list[i].addr, list[i].length);
        length += list[i].length;
    }
    e->wr.sg_list[0] = (struct ibv_sge){.addr = (uintptr_t)data, .length = (uint32_t)length};
    e->wr.num_sge = 1;
    e->wr.send_flags |= IBV_SEND_INLINE;
}

static void set_inline_data(struct ibv_qp_ex *x, void *address, size_t length) {
    set_inline_data_list(x, 1, &(struct ibv_data_buf){.addr = address, .length = length});
}

/* False if the provider gave no extended queue pair, or there is no memory. */
bool shift_extend_qp(shift_qp_t *q, uint64_t operations) {
    static const uint64_t known = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
                                  IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                                  IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
                                  IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;
    struct ibv_qp_ex *x = shift_real()->qp_to_qp_ex(q->qp);
    if (!x || (operations & ~known) ||
        shift_journal_sends(&q->draft, q->init.cap.max_send_wr + 1, q->init.cap.max_send_sge,
                            q->init.cap.max_inline_data) < 0)
        return false;
    if (!(q->provider = malloc(sizeof *q->provider))) {
        shift_journal_free(&q->draft);
        return false;
    }
    *q->provider = *x;
    pthread_mutex_init(&q->drafting, NULL);
    x->wr_start = start;
    x->wr_complete = complete;
    x->wr_abort = give_up;
    return true;
}

static struct ibv_qp_ex drafters = {
    .wr_rdma_read = rdma_read,
    .wr_rdma_write = rdma_write,
    .wr_rdma_write_imm = rdma_write_imm,
    .wr_send = send,
    .wr_send_imm = send_imm,
    .wr_send_inv = send_inv,
    .wr_local_inv = local_inv,
    .wr_atomic_cmp_swp = compare_swap,
    .wr_atomic_fetch_add = fetch_add,
    .wr_set_sge = set_sge,
    .wr_set_sge_list = set_sge_list,
    .wr_set_inline_data = set_inline_data,
    .wr_set_inline_data_list = set_inline_data_list,
};

/* ---- polling ---- */

static shift_cq_t *of_cq(struct ibv_cq_ex *x) { return shift_map_get(&shift_cqs, (uintptr_t)x); }

/* Takes the provider's current completion by value: it is handled like those that ibv_poll_cq finds. After an error the
 * other members are undefined. */
static bool hide(shift_cq_t *c, const struct ibv_cq_ex *x) {
    struct ibv_cq_ex *current = (struct ibv_cq_ex *)(uintptr_t)x;
    struct ibv_wc wc = {.wr_id = x->wr_id, .status = x->status, .vendor_err = c->provider->read_vendor_err(current)};
    wc.qp_num = c->provider->read_qp_num ? c->provider->read_qp_num(current) : 0;
    return shift_stash(c, 1, &wc);
}

static int next_emulated(struct ibv_cq_ex *x, shift_cq_t *c) {
    int n = shift_poll_cq(c->cq, 1, &c->current);
    if (n != 1)
        return n == 0 ? ENOENT : EINVAL;
    x->status = c->current.status;
    x->wr_id = c->current.wr_id;
    return 0;
}

/* Called after a straight section in which something became special. */
static void look_after(shift_cq_t *c) {
    pthread_mutex_lock(&c->o.device->lock);
    shift_gather(c);
    pthread_mutex_unlock(&c->o.device->lock);
}

static void read_with(struct ibv_cq_ex *x, const struct ibv_cq_ex *functions) {
    memcpy((char *)x + READERS, (const char *)functions + READERS, READERS_END - READERS);
}

static int start_poll(struct ibv_cq_ex *x, struct ibv_poll_cq_attr *attr);
static struct ibv_cq_ex readers;

/* With c->polling held. */
static void emulate(struct ibv_cq_ex *x, shift_cq_t *c) {
    if (c->emulated)
        return;
    __atomic_store_n(&c->emulated, true, __ATOMIC_RELEASE);
    while (shift_cq_busy(c)) /* a section of another thread */
        sched_yield();
    read_with(x, &readers);
}

static int start_emulated(struct ibv_cq_ex *x, struct ibv_poll_cq_attr *attr, shift_cq_t *c) {
    if (attr->comp_mask)
        return EINVAL;
    pthread_mutex_lock(&c->polling);
    if (__atomic_load_n(&c->straight, __ATOMIC_ACQUIRE)) { /* straight again */
        if (c->emulated)
            read_with(x, c->provider);
        __atomic_store_n(&c->emulated, false, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&c->polling);
        return start_poll(x, attr);
    }
    emulate(x, c);
    int r = next_emulated(x, c);
    if (r != 0)
        pthread_mutex_unlock(&c->polling); /* in this case there is no end_poll */
    return r;
}

/* A straight section has met an error. The error takes the slow path, and the rest of the section becomes one of ours.
 * (It can't be continued: at the end of the queue, next_poll of Soft-RoCE's provider in rdma-core 44 loses its
 * position.) */
static int turn(struct ibv_cq_ex *x, shift_cq_t *c) {
    if (!hide(c, x))
        return 0;
    shift_thread_t *me = shift_enter(x);
    __atomic_store_n(&c->reading, false, __ATOMIC_RELAXED);
    c->provider->end_poll(x);
    shift_leave(me);
    pthread_mutex_lock(&c->polling);
    emulate(x, c);
    return next_emulated(x, c);
}

static int next_poll(struct ibv_cq_ex *x) {
    shift_cq_t *c = of_cq(x);
    if (__builtin_expect(!c->reading, 0))
        return next_emulated(x, c);
    int r = c->provider->next_poll(x);
    return __builtin_expect(r == 0 && x->status != IBV_WC_SUCCESS, 0) ? turn(x, c) : r;
}

static int start_poll(struct ibv_cq_ex *x, struct ibv_poll_cq_attr *attr) {
    shift_thread_t *me = shift_enter(x);
    shift_cq_t *c = of_cq(x);
    if (__builtin_expect(
            !__atomic_load_n(&c->straight, __ATOMIC_ACQUIRE) || __atomic_load_n(&c->emulated, __ATOMIC_ACQUIRE), 0)) {
        shift_leave(me);
        return start_emulated(x, attr, c);
    }
    int r = c->provider->start_poll(x, attr);
    if (r == 0)
        __atomic_store_n(&c->reading, true, __ATOMIC_RELAXED);
    shift_leave(me);
    if (__builtin_expect(r == 0 && x->status != IBV_WC_SUCCESS, 0)) {
        r = turn(x, c);
        if (r != 0)
            pthread_mutex_unlock(&c->polling); /* in this case there is no end_poll */
    }
    return r;
}

static void end_poll(struct ibv_cq_ex *x) {
    shift_thread_t *me = shift_enter(x);
    shift_cq_t *c = of_cq(x);
    bool straight = c->reading;
    if (__builtin_expect(straight, 1)) {
        __atomic_store_n(&c->reading, false, __ATOMIC_RELAXED);
        c->provider->end_poll(x);
    } else {
        pthread_mutex_unlock(&c->polling);
    }
    bool special = __atomic_load_n(&c->special, __ATOMIC_ACQUIRE);
    shift_leave(me);
    if (__builtin_expect(straight && special, 0))
        look_after(c);
}

#define READER(type, name, field)                                                                                      \
    static type name(struct ibv_cq_ex *x) { return of_cq(x)->current.field; }
READER(enum ibv_wc_opcode, read_opcode, opcode)
READER(uint32_t, read_vendor_err, vendor_err)
READER(uint32_t, read_byte_len, byte_len)
READER(__be32, read_imm_data, imm_data)
READER(uint32_t, read_qp_num, qp_num)
READER(uint32_t, read_src_qp, src_qp)
READER(unsigned int, read_wc_flags, wc_flags)
READER(uint32_t, read_slid, slid)
READER(uint8_t, read_sl, sl)
READER(uint8_t, read_dlid_path_bits, dlid_path_bits)

/* Fields that an ordinary completion doesn't have (time stamps, tags) are not available for completions of a backup. */
bool shift_can_extend_cq(const struct ibv_cq_init_attr_ex *attr) {
    static const uint64_t held = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                                 IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL |
                                 IBV_WC_EX_WITH_DLID_PATH_BITS;
    uint32_t flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
    return !(attr->wc_flags & ~held) &&
           !(attr->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)) &&
           !(flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
}

void shift_extend_cq(shift_cq_t *c, struct ibv_cq_ex *x) {
    struct ibv_cq_ex *provider = malloc(sizeof *provider);
    if (!provider) {
        shift_report("no memory for a completion queue: ibv_start_poll shows it as its provider does");
        return;
    }
    memcpy(provider, x, READERS_END); /* its structure may be older and shorter */
    pthread_mutex_init(&c->polling, NULL);
    c->provider = provider;
    x->start_poll = start_poll;
    x->next_poll = next_poll;
    x->end_poll = end_poll;
}

static struct ibv_cq_ex readers = {
    .read_opcode = read_opcode,
    .read_vendor_err = read_vendor_err,
    .read_byte_len = read_byte_len,
    .read_imm_data = read_imm_data,
    .read_qp_num = read_qp_num,
    .read_src_qp = read_src_qp,
    .read_wc_flags = read_wc_flags,
    .read_slid = read_slid,
    .read_sl = read_sl,
    .read_dlid_path_bits = read_dlid_path_bits,
};
