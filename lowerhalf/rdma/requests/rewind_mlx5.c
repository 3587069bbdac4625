/* rewind_mlx5.c - the rewind for NVIDIA's ConnectX RNICs.
 *
 * NEVER RUN ON HARDWARE: written from infiniband/mlx5dv.h and the provider's source (rdma-core, providers/mlx5/qp.c),
 * and tested on queues that the tests fill in.
 *
 * mlx5dv_init_obj returns the addresses of the queues and of the doorbell record. The doorbell record says how far the
 * provider has posted. The provider's head, tail and table of wr_ids are private, so the wr_ids are taken from the
 * error completions.
 *
 * The send queue is a ring of 64-byte blocks. A request takes one or more of them and begins with a control segment. It
 * may wrap around the ring's end at any 16-byte segment; inline data may wrap at any byte.
 *
 * Invariants:
 * 1. A block that begins a request contains its own index (16 bits, more than the ring has), the queue pair's number,
 *    and the request's size. Requests are contiguous, so the last n are found by stepping back from the producer.
 *    Inline data could look like a control segment. Then two requests seem to end at one place, and we refuse
 *    (-EBADMSG) rather than guess.
 * 2. The hardware writes nothing into the queues.
 */
#include "requests/rewind.h"

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <stdlib.h>
#include <string.h>

enum { SEGMENT = 16, BLOCK = 64, BLOCK_SEGMENTS = BLOCK / SEGMENT };
enum {
    MAX_SEGMENTS = 63,
    MAX_BLOCKS = (MAX_SEGMENTS + BLOCK_SEGMENTS - 1) / BLOCK_SEGMENTS,
    MAX_RECV = 4096,
    MAX_RING = 1 << 15
};

typedef struct queues {
    uint32_t qpn;
    bool shared_recvs; /* receives go to an SRQ */
    struct mlx5dv_qp dv;
} queues_t;

/* A function of the provider's library, if it is loaded (it must be loaded when one of its devices is open). */
static void *provider_function(const char *name) {
    void *library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL; /* the library stays open: libibverbs never unloads it, either */
}

static bool serves(const struct ibv_device *device) {
    bool (*is_supported)(struct ibv_device *) = (bool (*)(struct ibv_device *))provider_function("mlx5dv_is_supported");
    return is_supported && is_supported((struct ibv_device *)(uintptr_t)device);
}

static bool power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

static int attach(struct ibv_qp *qp, const struct ibv_qp_init_attr *made, void **state) {
    int (*init_obj)(struct mlx5dv_obj *, uint64_t) =
        (int (*)(struct mlx5dv_obj *, uint64_t))provider_function("mlx5dv_init_obj");
    queues_t found = {.qpn = qp->qp_num, .shared_recvs = made->srq != NULL};
    struct mlx5dv_obj object = {.qp = {.in = qp, .out = &found.dv}};
    if (!init_obj || init_obj(&object, MLX5DV_OBJ_QP) || !found.dv.dbrec)
        return -ENOTSUP;
    if (getenv("MLX5_QP_SIGNATURE")) /* each receive then begins with one more segment */
        return -ENOTSUP;
    if (!found.dv.sq.buf || !power_of_two(found.dv.sq.wqe_cnt) || found.dv.sq.wqe_cnt > MAX_RING ||
        found.dv.sq.stride != BLOCK)
        return -ENOTSUP;
    if (!found.shared_recvs && made->cap.max_recv_wr &&
        (!found.dv.rq.buf || !power_of_two(found.dv.rq.wqe_cnt) || found.dv.rq.wqe_cnt > MAX_RING ||
         found.dv.rq.stride < SEGMENT || found.dv.rq.stride > MAX_RECV))
        return -ENOTSUP;
    queues_t *queues = malloc(sizeof *queues);
    if (!queues)
        return -ENOMEM;
    *queues = found;
    *state = queues;
    return 0;
}

/* How much was posted, in blocks or receives; 16 bits. */
static uint32_t producer(const queues_t *q, int which) {
    return be32toh(__atomic_load_n(&q->dv.dbrec[which], __ATOMIC_ACQUIRE)) & 0xffff;
}

/* ---- the send queue ---- */

static size_t ring_bytes(const queues_t *q) { return (size_t)q->dv.sq.wqe_cnt * BLOCK; }

/* The byte of the ring at which segment k of the request that begins at `block` lies. */
static size_t place(const queues_t *q, uint32_t block, uint32_t k) {
    return ((size_t)block * BLOCK + k * SEGMENT) & (ring_bytes(q) - 1);
}

static const void *segment(const queues_t *q, uint32_t block, uint32_t k) {
    return (const char *)q->dv.sq.buf + place(q, block, k);
}

/* Number of segments of the request that begins at this block; 0: no request begins here. */
static uint32_t request_at(const queues_t *q, uint32_t block) {
    const struct mlx5_wqe_ctrl_seg *control = segment(q, block, 0);
    uint32_t what = be32toh(control->opmod_idx_opcode), who = be32toh(control->qpn_ds), segments = who & 0xff;
    return (what >> 8 & 0xffff) == (block & 0xffff) && who >> 8 == q->qpn && segments <= MAX_SEGMENTS ? segments : 0;
}

static uint32_t blocks(uint32_t segments) { return (segments + BLOCK_SEGMENTS - 1) / BLOCK_SEGMENTS; }

/* Finds the block at which the oldest of the last n requests begins (invariant 1). Returns 0, or an error of
 * shift_rewind_t.sends. */
static int step_back(const queues_t *q, uint32_t n, uint32_t *first) {
    const uint32_t end = producer(q, MLX5_SND_DBR);
    uint32_t at = end;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t found = 0;
        for (uint32_t size = 1; size <= MAX_BLOCKS; size++) {
            if (blocks(request_at(q, at - size)) != size)
                continue;
            if (found)
                return -EBADMSG;
            found = size;
        }
        if (!found)
            return end - at >= q->dv.sq.wqe_cnt ? -ERANGE : -EBADMSG;
        at -= found;
    }
    *first = at;
    return 0;
}

/* Copies bytes of the ring from a position on; they may have any content. */
static void copy_out(const queues_t *q, void *to, size_t from, size_t n) {
    size_t straight = ring_bytes(q) - from < n ? ring_bytes(q) - from : n;
    memcpy(to, (const char *)q->dv.sq.buf + from, straight);
    memcpy((char *)to + straight, q->dv.sq.buf, n - straight);
}

/* The payload of a request: scatter elements, or bytes. */
typedef struct payload {
    struct ibv_sge list[MAX_SEGMENTS];
    int elements;
    unsigned char data[MAX_SEGMENTS * SEGMENT];
    uint32_t bytes;
    bool is_inline;
} payload_t;

/* Decodes the request's segments from k to its end. False if they are invalid. */
static bool decode_payload(const queues_t *q, uint32_t block, uint32_t k, uint32_t end, payload_t *p) {
    p->elements = 0, p->bytes = 0, p->is_inline = false;
    while (k < end) {
        const struct mlx5_wqe_data_seg *data = segment(q, block, k);
        uint32_t n = be32toh(data->byte_count);
        if (n & MLX5_INLINE_SEG) {
            n &= ~(uint32_t)MLX5_INLINE_SEG;
            if (n > (end - k) * SEGMENT - sizeof data->byte_count)
                return false;
            copy_out(q, p->data + p->bytes, place(q, block, k) + sizeof data->byte_count, n);
            p->bytes += n;
            p->is_inline = true;
            k += (uint32_t)(n + sizeof data->byte_count + SEGMENT - 1) / SEGMENT;
        } else {
            p->list[p->elements++] =
                (struct ibv_sge){.addr = be64toh(data->addr), .length = n, .lkey = be32toh(data->lkey)};
            k++;
        }
    }
    if (p->is_inline) {
        if (p->elements)
            return false;
        p->list[p->elements++] = (struct ibv_sge){.addr = (uintptr_t)p->data, .length = p->bytes};
    }
    return true;
}

/* Decodes the segments of the remote address and, for atomics, the operands, into wr. Returns the number of segments
 * before the payload, or 0 if we can't replay this. */
static uint32_t decode_operation(const queues_t *q, uint32_t block, uint8_t opcode, struct ibv_send_wr *wr) {
    const struct mlx5_wqe_raddr_seg *remote = segment(q, block, 1);
    const struct mlx5_wqe_atomic_seg *atomic = segment(q, block, 2);
    switch (opcode) {
    case MLX5_OPCODE_SEND:
        wr->opcode = IBV_WR_SEND;
        return 1;
    case MLX5_OPCODE_SEND_IMM:
        wr->opcode = IBV_WR_SEND_WITH_IMM;
        return 1;
    case MLX5_OPCODE_SEND_INVAL:
        wr->opcode = IBV_WR_SEND_WITH_INV;
        wr->invalidate_rkey = be32toh(wr->imm_data);
        return 1;
    case MLX5_OPCODE_RDMA_WRITE:
        wr->opcode = IBV_WR_RDMA_WRITE;
        break;
    case MLX5_OPCODE_RDMA_WRITE_IMM:
        wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        break;
    case MLX5_OPCODE_RDMA_READ:
        wr->opcode = IBV_WR_RDMA_READ;
        break;
    case MLX5_OPCODE_ATOMIC_CS:
    case MLX5_OPCODE_ATOMIC_FA:
        wr->opcode = opcode == MLX5_OPCODE_ATOMIC_CS ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr->wr.atomic.remote_addr = be64toh(remote->raddr);
        wr->wr.atomic.rkey = be32toh(remote->rkey);
        if (opcode == MLX5_OPCODE_ATOMIC_CS) {
            wr->wr.atomic.compare_add = be64toh(atomic->compare);
            wr->wr.atomic.swap = be64toh(atomic->swap_add);
        } else {
            wr->wr.atomic.compare_add = be64toh(atomic->swap_add);
        }
        return 3;
    default:
        return 0;
    }
    wr->wr.rdma.remote_addr = be64toh(remote->raddr);
    wr->wr.rdma.rkey = be32toh(remote->rkey);
    return 2;
}

static int decode_send(const queues_t *q, uint32_t block, uint64_t wr_id, shift_journal_t *to) {
    const struct mlx5_wqe_ctrl_seg *control = segment(q, block, 0);
    uint32_t what = be32toh(control->opmod_idx_opcode), end = request_at(q, block);
    struct ibv_send_wr wr = {.wr_id = wr_id, .imm_data = control->imm};
    wr.send_flags = (control->fm_ce_se & MLX5_WQE_CTRL_CQ_UPDATE ? IBV_SEND_SIGNALED : 0) |
                    (control->fm_ce_se & MLX5_WQE_CTRL_SOLICITED ? IBV_SEND_SOLICITED : 0) |
                    (control->fm_ce_se & MLX5_WQE_CTRL_FENCE ? IBV_SEND_FENCE : 0);
    uint32_t head = decode_operation(q, block, what & 0xff, &wr);
    if (!head || what >> 24) /* a modifier: an operation that verbs don't have */
        return -EOPNOTSUPP;
    payload_t payload;
    if (head > end || !decode_payload(q, block, head, end, &payload))
        return -EBADMSG;
    wr.sg_list = payload.list;
    wr.num_sge = payload.elements;
    wr.send_flags |= payload.is_inline ? IBV_SEND_INLINE : 0;
    return shift_journal_send(to, &wr) ? 0 : -ENOSPC;
}

static void fenced(void *state) { (void)state; }

static uint32_t failed(void *state) {
    (void)state;
    return 0; /* the hardware writes nothing into the queues */
}

static int sends(void *state, const uint64_t *wr_ids, uint32_t n, shift_journal_t *to) {
    const queues_t *q = state;
    uint32_t block = 0;
    int rc = !wr_ids ? -ENOTSUP : n > q->dv.sq.wqe_cnt ? -ERANGE : step_back(q, n, &block);
    uint64_t before = to->next;
    for (uint32_t i = 0; !rc && i < n; block += blocks(request_at(q, block)), i++)
        rc = decode_send(q, block, wr_ids[i], to);
    if (rc)
        to->next = before;
    return rc;
}

/* ---- the receive queue: slots of one size. Each is a scatter list that ends with an element of no bytes or at the end
 * of the slot ---- */

static int decode_recv(const queues_t *q, uint32_t index, uint64_t wr_id, shift_journal_t *to) {
    const struct mlx5_wqe_data_seg *data =
        (const void *)((const char *)q->dv.rq.buf + (size_t)(index & (q->dv.rq.wqe_cnt - 1)) * q->dv.rq.stride);
    uint32_t room = q->dv.rq.stride / SEGMENT, n = 0;
    struct ibv_sge list[MAX_RECV / SEGMENT];
    for (; n < room && data[n].byte_count; n++)
        list[n] = (struct ibv_sge){
            .addr = be64toh(data[n].addr), .length = be32toh(data[n].byte_count), .lkey = be32toh(data[n].lkey)};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = list, .num_sge = (int)n};
    return shift_journal_recv(to, &wr) ? 0 : -ENOSPC;
}

static int recvs(void *state, const uint64_t *wr_ids, uint32_t n, shift_journal_t *to) {
    const queues_t *q = state;
    if (q->shared_recvs || !wr_ids)
        return -ENOTSUP;
    if (n > q->dv.rq.wqe_cnt)
        return -ERANGE;
    uint64_t before = to->next;
    for (uint32_t i = 0; i < n; i++) {
        int rc = decode_recv(q, producer(q, MLX5_RCV_DBR) - n + i, wr_ids[i], to);
        if (rc) {
            to->next = before;
            return rc;
        }
    }
    return 0;
}

/* The queue holds no packet numbers: no first_psn. */
const shift_rewind_t shift_rewind_mlx5 = {.name = "mlx5",
                                          .serves = serves,
                                          .attach = attach,
                                          .detach = free,
                                          .fenced = fenced,
                                          .failed = failed,
                                          .sends = sends,
                                          .recvs = recvs};
