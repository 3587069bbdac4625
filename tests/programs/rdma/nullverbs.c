/* nullverbs.c - see nullverbs.h.
 *
 *   gcc -shared -fPIC -O2 -Wl,-soname,libibverbs.so.1 -Wl,--version-script=nullverbs.map nullverbs.c -o libibverbs.so.1
 *   -lpthread
 *
 * One lock protects everything except the instant data verbs, which take none, because they are for one thread. Objects
 * begin with the verbs' own structure, so the program's pointers point to ours.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "nullverbs.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_user_rxe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

enum { MAX_DEVICES = 16, MAX_SGE = 32, MAX_INLINE = 256, MAX_WR = 1 << 15, PSN_MASK = 0xffffff };

typedef struct cq {
    struct ibv_cq_ex ex; /* begins like struct ibv_cq */
    struct ibv_wc *ring, current;
    uint32_t mask, head, tail; /* next to be polled, next to be written */
    int armed;                 /* 0: no, 1: any completion, 2: a solicited one */
    uint32_t unacknowledged;
} cq_t;

typedef struct send {
    struct send *next;
    struct rxe_send_wqe *slot; /* NULL: there are no rings */
    struct ibv_send_wr wr;
    struct ibv_sge list[MAX_SGE];
    char data[MAX_INLINE];
} send_t;

typedef struct recv {
    struct recv *next;
    struct ibv_recv_wr wr;
    struct ibv_sge list[MAX_SGE];
} recv_t;

typedef struct recv_queue {
    recv_t *first, **end;
    unsigned count;
} recv_queue_t;

typedef struct td {
    struct ibv_td td;
    unsigned users;
} td_t;

typedef struct domain { /* a protection domain, or a parent domain of one */
    struct ibv_pd pd;
    struct domain *base;
    td_t *td;
    unsigned users;
} domain_t;

typedef struct srq {
    struct ibv_srq srq;
    struct ibv_srq_attr attr;
    recv_queue_t recvs;
} srq_t;

typedef struct qp {
    struct ibv_qp_ex ex; /* begins with struct ibv_qp */
    struct qp *next;
    struct rxe_queue_buf *recv_ring, *send_ring;
    uint32_t next_psn;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    bool instant;
    send_t *sends, **end;
    unsigned count, executed; /* outstanding sends; the number of them that the peer has executed */
    recv_queue_t recvs;
    struct ibv_send_wr draft; /* for ibv_wr_*, posted when the next one begins */
    struct ibv_sge draft_list[MAX_SGE];
    char draft_data[MAX_INLINE];
    bool drafted;
    int draft_error;
} qp_t;

typedef struct region {
    struct ibv_mr mr;
    struct region *next;
} region_t;

typedef struct context {
    struct verbs_context v;
    bool instant;
} context_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device devices[MAX_DEVICES];
static qp_t *qps;
static region_t *regions;
static bool instant;
static const char *sysfs; /* NULLVERBS_SYSFS: the devices look like Soft-RoCE's */
static uint32_t last_number = 0x100;

/* ---- refusals ---- */

static struct {
    char verb[32];
    int error;
    unsigned times;
} refusal;

static bool refused(const char *verb) {
    if (!__atomic_load_n(&refusal.times, __ATOMIC_ACQUIRE) || strcmp(refusal.verb, verb))
        return false;
    __atomic_fetch_sub(&refusal.times, 1, __ATOMIC_ACQ_REL);
    errno = refusal.error;
    return true;
}

void nullverbs_refuse(const char *verb, int error, unsigned times) {
    if (strcmp(refusal.verb, verb) || refusal.error != error) { /* not while there are some left */
        snprintf(refusal.verb, sizeof refusal.verb, "%s", verb);
        refusal.error = error;
    }
    __atomic_store_n(&refusal.times, times, __ATOMIC_RELEASE);
}

/* ---- rings like Soft-RoCE's: <rdma/rdma_user_rxe.h>; posted requests are written to them, nothing is read ---- */

static size_t power_of_two(size_t n) {
    size_t p = 1;
    while (p < n)
        p <<= 1;
    return p;
}

static struct rxe_queue_buf *make_ring(uint32_t depth, size_t slot) {
    size_t slots = power_of_two((size_t)depth + 1), size = power_of_two(slot < 64 ? 64 : slot);
    int fd = memfd_create("/dev/infiniband/uverbs-null", MFD_CLOEXEC);
    struct rxe_queue_buf *ring = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)(sizeof *ring + slots * size)) == 0)
        ring = mmap(NULL, sizeof *ring + slots * size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (ring == MAP_FAILED)
        abort();
    ring->log2_elem_size = (uint32_t)__builtin_ctzl(size);
    ring->index_mask = (uint32_t)slots - 1;
    return ring;
}

static size_t ring_bytes(const struct rxe_queue_buf *ring) {
    return sizeof *ring + (((size_t)ring->index_mask + 1) << ring->log2_elem_size);
}

static void *next_slot(struct rxe_queue_buf *ring) {
    void *slot = ring->data + ((size_t)ring->producer_index << ring->log2_elem_size);
    return slot;
}

/* The slot is filled, or the oldest one is finished. */
static void advance(struct rxe_queue_buf *ring, __u32 *index) {
    __atomic_store_n(index, (*index + 1) & ring->index_mask, __ATOMIC_RELEASE);
}

static uint64_t copy_list(struct rxe_dma_info *dma, const struct ibv_sge *list, int n) {
    uint64_t length = 0;
    for (int i = 0; i < n; i++) {
        dma->sge[i] = (struct rxe_sge){.addr = list[i].addr, .length = list[i].length, .lkey = list[i].lkey};
        length += list[i].length;
    }
    dma->num_sge = (uint32_t)n;
    dma->length = (uint32_t)length;
    return length;
}

static uint32_t packets_of(const qp_t *q, uint64_t length) {
    uint32_t mtu = 128u << (q->attr.path_mtu ? q->attr.path_mtu : IBV_MTU_1024);
    return length ? (uint32_t)((length + mtu - 1) / mtu) : 1;
}

static struct rxe_send_wqe *ring_send(qp_t *q, const struct ibv_send_wr *wr) {
    struct rxe_send_wqe *slot = next_slot(q->send_ring);
    memset(slot, 0, sizeof *slot);
    slot->wr.wr_id = wr->wr_id, slot->wr.opcode = wr->opcode, slot->wr.send_flags = wr->send_flags,
    slot->wr.ex.imm_data = wr->imm_data;
    slot->wr.wr.rdma.remote_addr = wr->wr.rdma.remote_addr, slot->wr.wr.rdma.rkey = wr->wr.rdma.rkey;
    if (wr->send_flags & IBV_SEND_INLINE) {
        slot->dma.length = wr->sg_list->length;
        memcpy(slot->dma.inline_data, (void *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
    } else {
        copy_list(&slot->dma, wr->sg_list, wr->num_sge);
    }
    uint32_t packets = packets_of(q, slot->dma.length);
    slot->mask = 1;
    slot->first_psn = q->next_psn;
    slot->last_psn = (q->next_psn + packets - 1) & PSN_MASK;
    q->next_psn = (q->next_psn + packets) & PSN_MASK;
    advance(q->send_ring, &q->send_ring->producer_index);
    return slot;
}

static void ring_recv(qp_t *q, const struct ibv_recv_wr *wr) {
    struct rxe_recv_wqe *slot = next_slot(q->recv_ring);
    slot->wr_id = wr->wr_id;
    copy_list(&slot->dma, wr->sg_list, wr->num_sge);
    advance(q->recv_ring, &q->recv_ring->producer_index);
}

static void clear_ring(struct rxe_queue_buf *ring) {
    if (!ring)
        return;
    ring->producer_index = ring->consumer_index = 0;
    memset(ring->data, 0, ring_bytes(ring) - sizeof *ring);
}

/* ---- completions ---- */

static void put(cq_t *cq, const struct ibv_wc *wc, bool solicited) {
    if (cq->tail - cq->head > cq->mask) {
        fprintf(stderr, "nullverbs: a completion queue is full\n");
        abort();
    }
    cq->ring[cq->tail++ & cq->mask] = *wc;
    if (cq->armed && (cq->armed == 1 || solicited) && cq->ex.channel) {
        cq->armed = 0;
        /* refcnt: the pipe's other end (create_comp_channel) */
        if (write(cq->ex.channel->refcnt, &cq, sizeof cq) != sizeof cq)
            abort();
    }
}

static enum ibv_wc_opcode completed(enum ibv_wr_opcode opcode) {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    default:
        return IBV_WC_SEND;
    }
}

static void complete_send(qp_t *q, const struct ibv_send_wr *wr, enum ibv_wc_status status) {
    if (status == IBV_WC_SUCCESS && !q->init.sq_sig_all && !(wr->send_flags & IBV_SEND_SIGNALED))
        return;
    put((cq_t *)q->init.send_cq,
        &(struct ibv_wc){
            .wr_id = wr->wr_id, .status = status, .opcode = completed(wr->opcode), .qp_num = q->ex.qp_base.qp_num},
        status != IBV_WC_SUCCESS);
}

static void drop_send(qp_t *q, enum ibv_wc_status status) {
    send_t *s = q->sends;
    if (!(q->sends = s->next))
        q->end = &q->sends;
    q->count--;
    if (s->slot) {
        s->slot->status = status;
        advance(q->send_ring, &q->send_ring->consumer_index);
    }
    complete_send(q, &s->wr, status);
    free(s);
}

static recv_queue_t *recvs_of(qp_t *q) { return q->init.srq ? &((srq_t *)q->init.srq)->recvs : &q->recvs; }

static bool drop_recv(qp_t *q, recv_queue_t *from, struct ibv_wc wc) {
    recv_t *r = from->first;
    if (!r)
        return false;
    if (!(from->first = r->next))
        from->end = &from->first;
    from->count--;
    if (q->recv_ring)
        advance(q->recv_ring, &q->recv_ring->consumer_index);
    wc.wr_id = r->wr.wr_id;
    wc.qp_num = q->ex.qp_base.qp_num;
    put((cq_t *)q->init.recv_cq, &wc, true);
    free(r);
    return true;
}

/* Flush everything outstanding; receives of a shared queue stay. */
static void flush(qp_t *q) {
    q->executed = 0;
    while (q->sends)
        drop_send(q, IBV_WC_WR_FLUSH_ERR);
    while (drop_recv(q, &q->recvs, (struct ibv_wc){.status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV}))
        ;
}

static void forget(qp_t *q) {
    q->executed = 0;
    while (q->sends) {
        send_t *s = q->sends;
        q->sends = s->next;
        free(s);
    }
    while (q->recvs.first) {
        recv_t *r = q->recvs.first;
        q->recvs.first = r->next;
        free(r);
    }
    q->end = &q->sends, q->recvs.end = &q->recvs.first;
    q->count = q->recvs.count = 0;
}

/* ---- questions and orders of a test ---- */

void nullverbs_instant(bool on) { instant = on; }

struct ibv_qp *nullverbs_next_qp(const struct ibv_qp *after) {
    qp_t *next = after ? ((const qp_t *)after)->next : qps;
    return next ? &next->ex.qp_base : NULL;
}

unsigned nullverbs_sends(struct ibv_qp *qp) { return ((qp_t *)qp)->count; }
unsigned nullverbs_recvs(struct ibv_qp *qp) { return recvs_of((qp_t *)qp)->count; }

const struct ibv_send_wr *nullverbs_send(struct ibv_qp *qp, unsigned i) {
    const send_t *s = ((qp_t *)qp)->sends;
    while (s && i--)
        s = s->next;
    return s ? &s->wr : NULL;
}

const struct ibv_recv_wr *nullverbs_recv(struct ibv_qp *qp, unsigned i) {
    const recv_t *r = recvs_of((qp_t *)qp)->first;
    while (r && i--)
        r = r->next;
    return r ? &r->wr : NULL;
}

void nullverbs_complete(struct ibv_qp *qp, unsigned n) {
    pthread_mutex_lock(&lock);
    for (qp_t *q = (qp_t *)qp; n-- && q->sends;)
        drop_send(q, IBV_WC_SUCCESS);
    pthread_mutex_unlock(&lock);
}

bool nullverbs_receive(struct ibv_qp *qp, const struct ibv_wc *message) {
    struct ibv_wc wc = {.opcode = message->opcode,
                        .byte_len = message->byte_len,
                        .imm_data = message->imm_data,
                        .wc_flags = message->wc_flags};
    pthread_mutex_lock(&lock);
    bool found = drop_recv((qp_t *)qp, recvs_of((qp_t *)qp), wc);
    pthread_mutex_unlock(&lock);
    return found;
}

static void fail(qp_t *q, enum ibv_wc_status status) {
    q->attr.qp_state = IBV_QPS_ERR;
    if (q->sends)
        drop_send(q, status);
    flush(q);
}

bool nullverbs_deliver(struct ibv_qp *from, struct ibv_qp *to, bool acknowledge) {
    qp_t *a = (qp_t *)from, *b = (qp_t *)to;
    pthread_mutex_lock(&lock);
    if (a->sends && !a->executed && a->sends->wr.opcode == IBV_WR_RDMA_WRITE && a->attr.qp_state == IBV_QPS_RTS &&
        !(b->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) {
        fail(a, IBV_WC_REM_ACCESS_ERR);
        pthread_mutex_unlock(&lock);
        return true;
    }
    const send_t *s = a->sends;
    for (unsigned i = 0; s && i < a->executed; i++)
        s = s->next;
    bool moved = false;
    if (s && a->attr.qp_state == IBV_QPS_RTS && (b->attr.qp_state == IBV_QPS_RTS || b->attr.qp_state == IBV_QPS_RTR)) {
        struct ibv_wc wc = {.opcode = IBV_WC_RECV, .imm_data = s->wr.imm_data};
        for (int i = 0; i < s->wr.num_sge; i++)
            wc.byte_len += s->wr.sg_list[i].length;
        uint32_t length = wc.byte_len;
        bool takes = s->wr.opcode == IBV_WR_SEND || s->wr.opcode == IBV_WR_SEND_WITH_IMM ||
                     s->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        if (s->wr.opcode == IBV_WR_SEND_WITH_IMM || s->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
            wc.wc_flags = IBV_WC_WITH_IMM;
        if (s->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
            wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        if (!takes || drop_recv(b, recvs_of(b), wc)) {
            b->attr.rq_psn = (b->attr.rq_psn + packets_of(b, length)) & PSN_MASK;
            a->executed++;
            moved = true;
        }
    }
    for (; acknowledge && a->executed; a->executed--, moved = true)
        drop_send(a, IBV_WC_SUCCESS);
    pthread_mutex_unlock(&lock);
    return moved;
}

void nullverbs_fail(struct ibv_qp *qp, enum ibv_wc_status status) {
    pthread_mutex_lock(&lock);
    fail((qp_t *)qp, status);
    pthread_mutex_unlock(&lock);
}

void nullverbs_fail_receive(struct ibv_qp *qp, enum ibv_wc_status status) {
    qp_t *q = (qp_t *)qp;
    pthread_mutex_lock(&lock);
    q->attr.qp_state = IBV_QPS_ERR;
    drop_recv(q, &q->recvs, (struct ibv_wc){.status = status, .opcode = IBV_WC_RECV});
    flush(q);
    pthread_mutex_unlock(&lock);
}

/* ---- data verbs ---- */

static int poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc) {
    cq_t *cq = (cq_t *)ibcq;
    int got = 0;
    for (; got < n && cq->head != cq->tail; got++)
        wc[got] = cq->ring[cq->head++ & cq->mask];
    return got;
}

static int poll_cq_locked(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
    pthread_mutex_lock(&lock);
    int got = poll_cq(cq, n, wc);
    pthread_mutex_unlock(&lock);
    return got;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only) {
    pthread_mutex_lock(&lock);
    ((cq_t *)cq)->armed = 1 + !!solicited_only;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int post_send_instantly(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    (void)bad;
    for (; wr; wr = wr->next)
        complete_send((qp_t *)qp, wr, IBV_WC_SUCCESS);
    return 0;
}

/* Collect the inline data of a request. Returns the number of bytes, which may be larger than the room for them. */
static size_t gather(char *to, const struct ibv_send_wr *wr) {
    size_t n = 0;
    for (int i = 0; i < wr->num_sge; n += wr->sg_list[i].length, i++)
        if (n + wr->sg_list[i].length <= MAX_INLINE)
            memcpy(to + n, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
    return n;
}

/* 0 or an errno */
static int keep_send(qp_t *q, const struct ibv_send_wr *wr) {
    if ((q->attr.qp_state != IBV_QPS_RTS && q->attr.qp_state != IBV_QPS_ERR) || wr->num_sge < 0 ||
        wr->num_sge > MAX_SGE)
        return EINVAL;
    if (q->count >= q->init.cap.max_send_wr)
        return ENOMEM;
    if (!q->send_ring && refused("post_send"))
        return errno;
    send_t *s = calloc(1, sizeof *s);
    if (!s)
        return ENOMEM;
    s->wr = *wr;
    s->wr.next = NULL;
    s->wr.sg_list = s->list;
    if (wr->send_flags & IBV_SEND_INLINE) {
        size_t n = gather(s->data, wr);
        if (n > q->init.cap.max_inline_data) {
            free(s);
            return EINVAL;
        }
        s->list[0] = (struct ibv_sge){.addr = (uintptr_t)s->data, .length = (uint32_t)n};
        s->wr.num_sge = 1;
    } else {
        for (int i = 0; i < wr->num_sge; i++)
            s->list[i] = wr->sg_list[i];
    }
    s->slot = q->send_ring ? ring_send(q, &s->wr) : NULL;
    *q->end = s;
    q->end = &s->next;
    q->count++;
    if (q->attr.qp_state == IBV_QPS_ERR)
        flush(q);
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    int rc = 0;
    pthread_mutex_lock(&lock);
    while (wr && !(rc = keep_send((qp_t *)qp, wr)))
        wr = wr->next;
    if (rc) {
        *bad = wr;
    } else if (((qp_t *)qp)->send_ring && refused("post_send")) {
        /* Soft-RoCE's provider has them, but can't pass them to the kernel */
        *bad = NULL;
        rc = errno;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static int post_recv_instantly(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    (void)bad;
    for (; wr; wr = wr->next)
        put((cq_t *)((qp_t *)qp)->init.recv_cq,
            &(struct ibv_wc){.wr_id = wr->wr_id,
                             .opcode = IBV_WC_RECV,
                             .qp_num = qp->qp_num,
                             .byte_len = wr->num_sge ? wr->sg_list->length : 0},
            true);
    return 0;
}

static int keep_recvs(recv_queue_t *to, uint32_t most, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    for (; wr; wr = wr->next) {
        recv_t *r = wr->num_sge >= 0 && wr->num_sge <= MAX_SGE && to->count < most ? calloc(1, sizeof *r) : NULL;
        if (!r) {
            *bad = wr;
            return to->count < most ? EINVAL : ENOMEM;
        }
        r->wr = *wr;
        r->wr.next = NULL;
        r->wr.sg_list = r->list;
        for (int i = 0; i < wr->num_sge; i++)
            r->list[i] = wr->sg_list[i];
        *to->end = r;
        to->end = &r->next;
        to->count++;
    }
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    qp_t *q = (qp_t *)qp;
    pthread_mutex_lock(&lock);
    int rc = EINVAL;
    *bad = wr;
    if (q->attr.qp_state != IBV_QPS_RESET && !q->init.srq)
        rc = refused("post_recv") ? errno : keep_recvs(&q->recvs, q->init.cap.max_recv_wr, wr, bad);
    for (struct ibv_recv_wr *taken = wr; taken && q->recv_ring && !(rc && taken == *bad); taken = taken->next)
        ring_recv(q, taken);
    if (q->attr.qp_state == IBV_QPS_ERR)
        flush(q);
    pthread_mutex_unlock(&lock);
    return rc;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    pthread_mutex_lock(&lock);
    int rc = keep_recvs(&((srq_t *)srq)->recvs, ((srq_t *)srq)->attr.max_wr, wr, bad);
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- ibv_wr_*: there is one draft; the beginning of the next one, and wr_complete, post it ---- */

static void post_draft(qp_t *q) {
    struct ibv_send_wr *bad;
    if (q->drafted && !q->draft_error)
        q->draft_error = q->instant ? post_send_instantly(&q->ex.qp_base, &q->draft, &bad)
                                    : post_send(&q->ex.qp_base, &q->draft, &bad);
    q->drafted = false;
}

static struct ibv_send_wr *draft(struct ibv_qp_ex *x, enum ibv_wr_opcode opcode) {
    qp_t *q = (qp_t *)x;
    post_draft(q);
    q->draft.wr_id = x->wr_id;
    q->draft.send_flags = x->wr_flags;
    q->draft.opcode = opcode;
    q->draft.sg_list = q->draft_list;
    q->draft.num_sge = 0;
    q->drafted = true;
    return &q->draft;
}

static void wr_start(struct ibv_qp_ex *x) {
    ((qp_t *)x)->drafted = false;
    ((qp_t *)x)->draft_error = 0;
}

static int wr_complete(struct ibv_qp_ex *x) {
    post_draft((qp_t *)x);
    return ((qp_t *)x)->draft_error;
}

static void wr_abort(struct ibv_qp_ex *x) { ((qp_t *)x)->drafted = false; }

static void one_sided(struct ibv_qp_ex *x, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t address, __be32 imm) {
    struct ibv_send_wr *wr = draft(x, opcode);
    wr->wr.rdma.rkey = rkey, wr->wr.rdma.remote_addr = address, wr->imm_data = imm;
}

static void wr_rdma_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t address) {
    one_sided(x, IBV_WR_RDMA_WRITE, rkey, address, 0);
}
static void wr_rdma_write_imm(struct ibv_qp_ex *x, uint32_t rkey, uint64_t address, __be32 imm) {
    one_sided(x, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address, imm);
}

static void wr_rdma_read(struct ibv_qp_ex *x, uint32_t rkey, uint64_t address) {
    one_sided(x, IBV_WR_RDMA_READ, rkey, address, 0);
}
static void wr_send(struct ibv_qp_ex *x) { draft(x, IBV_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *x, __be32 imm) { draft(x, IBV_WR_SEND_WITH_IMM)->imm_data = imm; }

static void wr_set_sge_list(struct ibv_qp_ex *x, size_t n, const struct ibv_sge *list) {
    qp_t *q = (qp_t *)x;
    if (n > MAX_SGE)
        q->draft_error = ENOSPC;
    for (size_t i = 0; i < n && n <= MAX_SGE; i++)
        q->draft_list[q->draft.num_sge++] = list[i];
}

static void wr_set_sge(struct ibv_qp_ex *x, uint32_t lkey, uint64_t address, uint32_t length) {
    wr_set_sge_list(x, 1, &(struct ibv_sge){.addr = address, .length = length, .lkey = lkey});
}

static void wr_set_inline_data_list(struct ibv_qp_ex *x, size_t n, const struct ibv_data_buf *list) {
    qp_t *q = (qp_t *)x;
    size_t length = 0;
    for (size_t i = 0; i < n; length += list[i].length, i++)
        if (length + list[i].length <= MAX_INLINE)
            memcpy(q->draft_data + length, list[i].addr, list[i].length);
    if (length > MAX_INLINE)
        q->draft_error = ENOSPC;
    q->draft.send_flags |= IBV_SEND_INLINE;
    q->draft_list[0] = (struct ibv_sge){.addr = (uintptr_t)q->draft_data, .length = (uint32_t)length};
    q->draft.num_sge = 1;
}

static void wr_set_inline_data(struct ibv_qp_ex *x, void *address, size_t length) {
    wr_set_inline_data_list(x, 1, &(struct ibv_data_buf){.addr = address, .length = length});
}

/* ---- ibv_start_poll ---- */

static int next_poll(struct ibv_cq_ex *x) {
    cq_t *cq = (cq_t *)x;
    bool alone = ((context_t *)verbs_get_ctx(x->context))->instant;
    if ((alone ? poll_cq : poll_cq_locked)((struct ibv_cq *)x, 1, &cq->current) != 1)
        return ENOENT;
    x->wr_id = cq->current.wr_id;
    x->status = cq->current.status;
    return 0;
}

static int start_poll(struct ibv_cq_ex *x, struct ibv_poll_cq_attr *attr) {
    return attr->comp_mask ? EINVAL : next_poll(x);
}
static void end_poll(struct ibv_cq_ex *x) { (void)x; }
static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *x) { return ((cq_t *)x)->current.opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *x) { return ((cq_t *)x)->current.vendor_err; }
static uint32_t read_byte_len(struct ibv_cq_ex *x) { return ((cq_t *)x)->current.byte_len; }
static __be32 read_imm_data(struct ibv_cq_ex *x) { return ((cq_t *)x)->current.imm_data; }
static uint32_t read_qp_num(struct ibv_cq_ex *x) { return ((cq_t *)x)->current.qp_num; }
static unsigned read_wc_flags(struct ibv_cq_ex *x) { return ((cq_t *)x)->current.wc_flags; }

/* ---- devices ---- */

/* As in /sys: a link to a device without hardware, which has a network interface. */
static void look_like_rxe(struct ibv_device *device) {
    char real[IBV_SYSFS_PATH_MAX + 64], parent[sizeof real + 16];
    snprintf(device->ibdev_path, sizeof device->ibdev_path, "%.180s/%.60s", sysfs ? sysfs : "/nonexistent",
             device->name);
    if (!sysfs)
        return;
    snprintf(real, sizeof real, "%.180s/devices/virtual/%s", sysfs, device->name);
    for (char *slash = strchr(real + strlen(sysfs) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(real, 0777);
        *slash = '/';
    }
    mkdir(real, 0777);
    snprintf(parent, sizeof parent, "%s/parent", real);
    close(open(parent, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (symlink(real, device->ibdev_path) != 0 && errno != EEXIST)
        abort();
}

static int device_count;

static void make_devices(void) {
    const char *wanted = getenv("NULLVERBS_DEVICES");
    sysfs = getenv("NULLVERBS_SYSFS");
    device_count = wanted ? atoi(wanted) : 2;
    if (device_count < 0 || device_count > MAX_DEVICES)
        device_count = MAX_DEVICES;
    for (int i = 0; i < device_count; i++) {
        snprintf(devices[i].name, sizeof devices[i].name, "null%d", i);
        snprintf(devices[i].dev_name, sizeof devices[i].dev_name, "uverbs-null%d", i);
        look_like_rxe(&devices[i]);
        devices[i].node_type = IBV_NODE_CA;
        devices[i].transport_type = IBV_TRANSPORT_IB;
    }
}

struct ibv_device **ibv_get_device_list(int *count) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_devices);
    struct ibv_device **list = calloc((size_t)device_count + 1, sizeof *list);
    for (int i = 0; list && i < device_count; i++)
        list[i] = &devices[i];
    if (count)
        *count = device_count;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
__be64 ibv_get_device_guid(struct ibv_device *device) { return (__be64)(device - devices) + 1; }
int ibv_fork_init(void) { return 0; }

static int query_port_of(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size) {
    (void)context;
    struct ibv_port_attr a = {.state = IBV_PORT_ACTIVE,
                              .max_mtu = IBV_MTU_4096,
                              .active_mtu = IBV_MTU_4096,
                              .gid_tbl_len = 8,
                              .pkey_tbl_len = 1};
    a.link_layer = IBV_LINK_LAYER_ETHERNET;
    a.phys_state = 5; /* LinkUp */
    memcpy(attr, &a, size < sizeof a ? size : sizeof a);
    return port == 1 ? 0 : EINVAL;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
static struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
static int dealloc_td(struct ibv_td *td);
static struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    int pipes[2];
    context_t *c = refused("open_device") ? NULL : calloc(1, sizeof *c);
    if (!c || pipe2(pipes, O_CLOEXEC)) {
        free(c);
        return NULL;
    }
    c->instant = instant || getenv("NULLVERBS_INSTANT");
    c->v.sz = sizeof c->v;
    c->v.query_port = query_port_of;
    c->v.create_qp_ex = create_qp_ex;
    c->v.create_cq_ex = create_cq_ex;
    c->v.alloc_td = alloc_td;
    c->v.dealloc_td = dealloc_td;
    c->v.alloc_parent_domain = alloc_parent_domain;
    struct ibv_context *x = &c->v.context;
    x->device = device;
    x->abi_compat = __VERBS_ABI_IS_EXTENDED;
    x->num_comp_vectors = 1;
    x->async_fd = pipes[0];
    x->cmd_fd = pipes[1];
    pthread_mutex_init(&x->mutex, NULL);
    x->ops.poll_cq = c->instant ? poll_cq : poll_cq_locked;
    x->ops.req_notify_cq = req_notify_cq;
    x->ops.post_send = c->instant ? post_send_instantly : post_send;
    x->ops.post_recv = c->instant ? post_recv_instantly : post_recv;
    x->ops.post_srq_recv = post_srq_recv;
    return x;
}

int ibv_close_device(struct ibv_context *context) {
    close(context->async_fd);
    close(context->cmd_fd);
    free(verbs_get_ctx(context));
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    (void)context;
    *attr = (struct ibv_device_attr){.fw_ver = "0",
                                     .max_mr_size = UINT64_MAX,
                                     .max_qp_rd_atom = 16,
                                     .atomic_cap = IBV_ATOMIC_HCA,
                                     .max_pkeys = 1,
                                     .phys_port_cnt = 1};
    attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = attr->max_srq = attr->max_qp_wr = attr->max_srq_wr =
        MAX_WR;
    attr->max_sge = attr->max_srq_sge = MAX_SGE;
    attr->max_cqe = 1 << 20;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr) {
    return query_port_of(context, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

static int gid_index;

void nullverbs_gid(int index) { __atomic_store_n(&gid_index, index, __ATOMIC_RELEASE); }

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    *gid = (union ibv_gid){
        .raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [14] = (uint8_t)(context->device - devices), [15] = 1}};
    return port == 1 && index >= 0 && index == __atomic_load_n(&gid_index, __ATOMIC_ACQUIRE) ? 0 : -1;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t size) {
    struct ibv_gid_entry e = {.gid_index = index, .port_num = port, .gid_type = IBV_GID_TYPE_ROCE_V2};
    if (flags || ibv_query_gid(context, (uint8_t)port, (int)index, &e.gid))
        return EINVAL;
    memcpy(entry, &e, size < sizeof e ? size : sizeof e);
    return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
    (void)context;
    *pkey = 0xffff;
    return port == 1 && index == 0 ? 0 : -1;
}

/* ---- memory ---- */

static unsigned domains[MAX_DEVICES];

static void count_domain(const struct ibv_device *device, int by) {
    pthread_mutex_lock(&lock);
    domains[device - devices] += (unsigned)by;
    pthread_mutex_unlock(&lock);
}

unsigned nullverbs_domains(const char *device) {
    unsigned n = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < device_count; i++)
        n += strcmp(devices[i].name, device) == 0 ? domains[i] : 0;
    pthread_mutex_unlock(&lock);
    return n;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    domain_t *p = refused("alloc_pd") ? NULL : calloc(1, sizeof *p);
    if (p) {
        p->pd.context = context;
        count_domain(context->device, 1);
    }
    return p ? &p->pd : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    domain_t *p = (domain_t *)pd;
    if (p->users)
        return EBUSY;
    count_domain(pd->context->device, -1);
    if (p->base)
        p->base->users--;
    if (p->td)
        p->td->users--;
    free(p);
    return 0;
}

static struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr) {
    td_t *td = attr->comp_mask ? NULL : calloc(1, sizeof *td);
    if (td)
        td->td.context = context;
    return td ? &td->td : NULL;
}

static int dealloc_td(struct ibv_td *td) {
    if (((td_t *)td)->users)
        return EBUSY;
    free(td);
    return 0;
}

static struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr) {
    domain_t *p = (domain_t *)ibv_alloc_pd(context);
    if (p && (p->base = (domain_t *)attr->pd))
        p->base->users++;
    if (p && (p->td = (td_t *)attr->td))
        p->td->users++;
    return p ? &p->pd : NULL;
}

static uint32_t number(void) {
    pthread_mutex_lock(&lock);
    uint32_t n = ++last_number;
    pthread_mutex_unlock(&lock);
    return n;
}

/* As in the real library, the other verbs call this one by its public name: an interposer stands between. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access) {
    (void)iova, (void)access;
    region_t *r = refused("reg_mr") ? NULL : calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = number() << 8};
    r->mr.rkey = r->mr.lkey | 1;
    pthread_mutex_lock(&lock);
    r->next = regions;
    regions = r;
    ((domain_t *)pd)->users++;
    pthread_mutex_unlock(&lock);
    return &r->mr;
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, int access) {
    return ibv_reg_mr_iova2(pd, address, length, iova, (unsigned)access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access) {
    return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    struct stat file;
    if (fstat(fd, &file))
        return NULL;
    if (!S_ISREG(file.st_mode) || offset + length > (uint64_t)file.st_size) {
        errno = EINVAL;
        return NULL;
    }
    return ibv_reg_mr_iova2(pd, NULL, length, iova, (unsigned)access);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address, size_t length, int access) {
    (void)access;
    if (refused("rereg_mr"))
        return IBV_REREG_MR_ERR_INPUT;
    if (flags & IBV_REREG_MR_CHANGE_PD) {
        ((domain_t *)mr->pd)->users--;
        ((domain_t *)pd)->users++;
        mr->pd = pd;
    }
    if (flags & IBV_REREG_MR_CHANGE_TRANSLATION)
        mr->addr = address, mr->length = length;
    return 0;
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    pthread_mutex_lock(&lock);
    region_t **at = &regions;
    while (&(*at)->mr != mr)
        at = &(*at)->next;
    *at = (*at)->next;
    ((domain_t *)mr->pd)->users--;
    pthread_mutex_unlock(&lock);
    free(mr);
    return 0;
}

unsigned nullverbs_regions(const char *device) {
    unsigned n = 0;
    pthread_mutex_lock(&lock);
    for (const region_t *r = regions; r; r = r->next)
        n += strcmp(r->mr.context->device->name, device) == 0;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- completion queues and events ---- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    int pipes[2];
    struct ibv_comp_channel *channel = refused("create_comp_channel") ? NULL : calloc(1, sizeof *channel);
    if (!channel || pipe2(pipes, O_CLOEXEC)) {
        free(channel);
        return NULL;
    }
    *channel = (struct ibv_comp_channel){.context = context, .fd = pipes[0], .refcnt = pipes[1]};
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd);
    close(channel->refcnt);
    free(channel);
    return 0;
}

static cq_t *make_cq(struct ibv_context *context, uint32_t entries, void *cq_context,
                     struct ibv_comp_channel *channel) {
    cq_t *cq = refused("create_cq") ? NULL : calloc(1, sizeof *cq);
    if (!cq)
        return NULL;
    while (cq->mask + 1 < entries || cq->mask < 15)
        cq->mask = cq->mask << 1 | 1;
    cq->ring = calloc((size_t)cq->mask + 1, sizeof *cq->ring);
    cq->ex.context = context, cq->ex.channel = channel, cq->ex.cq_context = cq_context, cq->ex.cqe = (int)cq->mask;
    return cq;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
                             struct ibv_comp_channel *channel, int vector) {
    (void)vector;
    return (struct ibv_cq *)make_cq(context, (uint32_t)entries, cq_context, channel);
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
    bool alone = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    if (attr->comp_mask & ~(unsigned)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) || alone) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    cq_t *cq = make_cq(context, attr->cqe, attr->cq_context, attr->channel);
    if (!cq)
        return NULL;
    cq->ex.start_poll = start_poll, cq->ex.next_poll = next_poll, cq->ex.end_poll = end_poll;
    cq->ex.read_opcode = read_opcode, cq->ex.read_vendor_err = read_vendor_err, cq->ex.read_byte_len = read_byte_len,
    cq->ex.read_imm_data = read_imm_data;
    cq->ex.read_qp_num = read_qp_num, cq->ex.read_wc_flags = read_wc_flags;
    return &cq->ex;
}

int ibv_resize_cq(struct ibv_cq *ibcq, int entries) {
    cq_t *cq = (cq_t *)ibcq;
    uint32_t mask = cq->mask;
    while (mask + 1 < (uint32_t)entries)
        mask = mask << 1 | 1;
    struct ibv_wc *ring = calloc((size_t)mask + 1, sizeof *ring);
    if (!ring)
        return ENOMEM;
    pthread_mutex_lock(&lock);
    for (uint32_t i = cq->head; i != cq->tail; i++)
        ring[i & mask] = cq->ring[i & cq->mask];
    free(cq->ring);
    cq->ring = ring;
    cq->mask = mask;
    ibcq->cqe = (int)mask;
    pthread_mutex_unlock(&lock);
    return 0;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    if (refused("destroy_cq"))
        return errno;
    free(((cq_t *)cq)->ring);
    free(cq);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    if (read(channel->fd, cq, sizeof *cq) != sizeof *cq)
        return -1;
    *cq_context = (*cq)->cq_context;
    ((cq_t *)*cq)->unacknowledged++;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) { ((cq_t *)cq)->unacknowledged -= n; }

void nullverbs_async(struct ibv_context *context, const struct ibv_async_event *event) {
    if (write(context->cmd_fd, event, sizeof *event) != sizeof *event)
        abort();
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

/* ---- queue pairs ---- */

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    srq_t *s = refused("create_srq") ? NULL : calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->srq = (struct ibv_srq){.context = pd->context, .srq_context = attr->srq_context, .pd = pd};
    s->recvs.end = &s->recvs.first;
    attr->attr.max_wr = (uint32_t)power_of_two(attr->attr.max_wr);
    attr->attr.max_sge = (uint32_t)power_of_two(attr->attr.max_sge);
    s->attr = attr->attr;
    return &s->srq;
}

int ibv_destroy_srq(struct ibv_srq *srq) {
    for (recv_t *r = ((srq_t *)srq)->recvs.first, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    free(srq);
    return 0;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) {
    if (mask != IBV_SRQ_MAX_WR)
        return EOPNOTSUPP;
    ((srq_t *)srq)->attr.max_wr = (uint32_t)power_of_two(attr->max_wr);
    return 0;
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr) {
    *attr = ((srq_t *)srq)->attr;
    return 0;
}

static qp_t *make_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    qp_t *q = NULL;
    bool known = init->qp_type == IBV_QPT_RC || init->qp_type == IBV_QPT_UD;
    if (!known || init->cap.max_inline_data > MAX_INLINE || init->cap.max_send_wr > MAX_WR ||
        init->cap.max_recv_wr > MAX_WR)
        errno = EINVAL;
    else if (!refused("create_qp"))
        q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->instant = ((context_t *)verbs_get_ctx(context))->instant;
    q->init = *init;
    q->end = &q->sends, q->recvs.end = &q->recvs.first;
    if (sysfs) {
        size_t list = init->cap.max_send_sge * sizeof(struct rxe_sge), bytes = init->cap.max_inline_data;
        q->send_ring = make_ring(init->cap.max_send_wr, sizeof(struct rxe_send_wqe) + (list > bytes ? list : bytes));
        q->recv_ring = init->srq
                           ? NULL
                           : make_ring(init->cap.max_recv_wr,
                                       sizeof(struct rxe_recv_wqe) + init->cap.max_recv_sge * sizeof(struct rxe_sge));
    }
    q->ex.qp_base = (struct ibv_qp){.context = context,
                                    .qp_context = init->qp_context,
                                    .pd = pd,
                                    .send_cq = init->send_cq,
                                    .recv_cq = init->recv_cq};
    q->ex.qp_base.srq = init->srq, q->ex.qp_base.qp_type = init->qp_type, q->ex.qp_base.qp_num = number(),
    q->ex.qp_base.handle = q->ex.qp_base.qp_num;
    pthread_mutex_lock(&lock);
    if (pd)
        ((domain_t *)pd)->users++;
    qp_t **at = &qps; /* oldest first */
    while (*at)
        at = &(*at)->next;
    *at = q;
    pthread_mutex_unlock(&lock);
    return q;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    qp_t *q = make_qp(pd->context, pd, init);
    return q ? &q->ex.qp_base : NULL;
}

struct ibv_qp *nullverbs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    qp_t *q = make_qp(pd->context, pd, init);
    return q ? &q->ex.qp_base : NULL;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr) {
    static const uint64_t known = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                  IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    bool flags = attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags;
    if ((attr->comp_mask & ~(unsigned)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
                                       IBV_QP_INIT_ATTR_CREATE_FLAGS)) ||
        flags ||
        (extended && attr->send_ops_flags & ~known)) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    /* verbs.h: it begins like the smaller one */
    qp_t *q = make_qp(context, attr->pd, (struct ibv_qp_init_attr *)attr);
    if (!q || !extended)
        return q ? &q->ex.qp_base : NULL;
    q->ex.comp_mask = 1; /* so that ibv_qp_to_qp_ex recognizes it */
    q->ex.wr_start = wr_start, q->ex.wr_complete = wr_complete, q->ex.wr_abort = wr_abort;
    q->ex.wr_rdma_write = wr_rdma_write, q->ex.wr_rdma_write_imm = wr_rdma_write_imm, q->ex.wr_rdma_read = wr_rdma_read;
    q->ex.wr_send = wr_send, q->ex.wr_send_imm = wr_send_imm;
    q->ex.wr_set_sge = wr_set_sge, q->ex.wr_set_sge_list = wr_set_sge_list;
    q->ex.wr_set_inline_data = wr_set_inline_data, q->ex.wr_set_inline_data_list = wr_set_inline_data_list;
    return &q->ex.qp_base;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return ((qp_t *)qp)->ex.comp_mask ? &((qp_t *)qp)->ex : NULL; }

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
    qp_t *q = (qp_t *)qp;
    union ibv_gid gid;
    if (refused("modify_qp"))
        return errno;
    if ((mask & IBV_QP_AV) && attr->ah_attr.is_global &&
        ibv_query_gid(qp->context, 1, attr->ah_attr.grh.sgid_index, &gid) != 0)
        return EINVAL;
    pthread_mutex_lock(&lock);
    if (mask & IBV_QP_STATE) {
        enum ibv_qp_state from = q->attr.qp_state, to = attr->qp_state;
        bool legal = to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET) ||
                     (to == IBV_QPS_RTR && from == IBV_QPS_INIT) ||
                     (to == IBV_QPS_INIT && (from == IBV_QPS_RESET || from == IBV_QPS_INIT)) ||
                     (to == IBV_QPS_RTS && (from == IBV_QPS_RTR || from == IBV_QPS_RTS || from == IBV_QPS_SQD)) ||
                     (to == IBV_QPS_SQD && from == IBV_QPS_RTS);
        if (!legal) {
            pthread_mutex_unlock(&lock);
            return EINVAL;
        }
        q->attr.qp_state = qp->state = to;
        if (to == IBV_QPS_RESET) {
            forget(q);
            clear_ring(q->send_ring);
            clear_ring(q->recv_ring);
        } else if (to == IBV_QPS_ERR) {
            flush(q);
        }
    }
    if (mask & IBV_QP_SQ_PSN)
        q->attr.sq_psn = q->next_psn = attr->sq_psn & PSN_MASK;
    if (mask & IBV_QP_RQ_PSN)
        q->attr.rq_psn = attr->rq_psn & PSN_MASK;
    if (mask & IBV_QP_DEST_QPN)
        q->attr.dest_qp_num = attr->dest_qp_num;
    if (mask & IBV_QP_PATH_MTU)
        q->attr.path_mtu = attr->path_mtu;
    if (mask & IBV_QP_AV)
        q->attr.ah_attr = attr->ah_attr;
    if (mask & IBV_QP_ACCESS_FLAGS)
        q->attr.qp_access_flags = attr->qp_access_flags;
    if (mask & IBV_QP_RNR_RETRY)
        q->attr.rnr_retry = attr->rnr_retry;
    pthread_mutex_unlock(&lock);
    return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    (void)mask;
    if (refused("query_qp"))
        return errno;
    pthread_mutex_lock(&lock);
    *attr = ((qp_t *)qp)->attr;
    pthread_mutex_unlock(&lock);
    attr->cur_qp_state = attr->qp_state;
    attr->cap = ((qp_t *)qp)->init.cap;
    *init = ((qp_t *)qp)->init;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    qp_t *q = (qp_t *)qp;
    pthread_mutex_lock(&lock);
    qp_t **at = &qps;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    forget(q);
    if (qp->pd)
        ((domain_t *)qp->pd)->users--;
    pthread_mutex_unlock(&lock);
    if (q->send_ring)
        munmap(q->send_ring, ring_bytes(q->send_ring));
    if (q->recv_ring)
        munmap(q->recv_ring, ring_bytes(q->recv_ring));
    free(q);
    return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status) {
    return status == IBV_WC_SUCCESS ? "success" : status == IBV_WC_WR_FLUSH_ERR ? "flushed" : "error";
}
