/* rewind_rxe.c - the rewind for Soft-RoCE (rdma_rxe).
 *
 * The queues are rings that kernel and provider share, with the layout in <rdma/rdma_user_rxe.h>. The provider's queue
 * pair object contains a pointer to the start of each mapping, at offsets that differ between versions of rdma-core.
 *
 * Invariants:
 * 1. A pointer is accepted as a ring's under two conditions. It equals the start of a mapping of the uverbs device, or
 *    it is at the offset at which the first queue pair had one that does. And the ring has the number and size of slots
 *    that follow from the queue pair's capacities (drivers/infiniband/sw/rxe/rxe_queue.c). If two rings both fit, the
 *    receive queue's pointer comes first in the object. If this should ever be wrong, the completions' wr_ids don't
 *    match.
 * 2. Between the post and the flush the kernel changes in a slot only status, state, mask, the packet numbers, iova and
 *    the cursor (resid, cur_sge, sge_offset) of the scatter list: rxe_req.c, rxe_comp.c and rxe_resp.c of Linux 6.1.
 *    The rest is as the provider wrote it.
 * 3. consumer_index belongs to the kernel and means nothing after an error: slots are counted back from producer_index.
 *    A slot stays valid until it is posted to again.
 * 4. A send that is flushed has a status other than success in its slot: rxe_comp.c of Linux 6.1. (If not even the last
 *    one has, the kernel doesn't tell.)
 * 5. If the `mask` of a slot is 0, the kernel has not processed the slot since the queue pair was reset; a reset clears
 *    the ring.
 */
#include "requests/rewind.h"

#include <errno.h>
#include <malloc.h>
#include <rdma/rdma_user_rxe.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, CACHE_LINE = 64, PSN_MASK = 0xffffff, MAPPINGS = 65536 };

typedef struct rxe_queue_buf ring_t;

typedef struct rings {
    ring_t *sends, *recvs; /* recvs is NULL if the queue pair has a shared receive queue */
    struct rxe_send_wqe spare; /* content of the one free slot of a full send queue when it failed, */
    bool kept;                 /* if it was full */
} rings_t;

/* ---- finding the rings ---- */

static bool serves(const struct ibv_device *device) {
    char path[IBV_SYSFS_PATH_MAX + 16], target[512];
    ssize_t n = readlink(device->ibdev_path, target, sizeof target - 1);
    if (n < 0)
        return false;
    target[n] = 0;
    /* virtual, and with the attribute that only rxe has: the network interface below it */
    snprintf(path, sizeof path, "%s/parent", device->ibdev_path);
    return strstr(target, "/devices/virtual/") && access(path, R_OK) == 0;
}

static uint64_t power_of_two(uint64_t n) {
    uint64_t p = 1;
    while (p < n)
        p <<= 1;
    return p;
}

static bool fits(const ring_t *r, uint32_t depth, size_t slot) {
    return r->log2_elem_size < 32 &&
           UINT64_C(1) << r->log2_elem_size == power_of_two(slot < CACHE_LINE ? CACHE_LINE : slot) &&
           r->index_mask == power_of_two((uint64_t)depth + 1) - 1 && r->producer_index <= r->index_mask &&
           r->consumer_index <= r->index_mask;
}

static bool fits_sends(const ring_t *r, const struct ibv_qp_cap *cap) {
    size_t list = cap->max_send_sge * sizeof(struct rxe_sge);
    return fits(r, cap->max_send_wr,
                sizeof(struct rxe_send_wqe) + (cap->max_inline_data > list ? cap->max_inline_data : list));
}

static bool fits_recvs(const ring_t *r, const struct ibv_qp_cap *cap) {
    return fits(r, cap->max_recv_wr, sizeof(struct rxe_recv_wqe) + cap->max_recv_sge * sizeof(struct rxe_sge));
}

/* Stores the start addresses of the process's mappings of uverbs devices in an array of the caller. Returns their
 * number. */
static size_t mappings(uintptr_t *starts, size_t room) {
    size_t n = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4096 + 256];
    while (maps && n < room && fgets(line, sizeof line, maps))
        if (strstr(line, "/infiniband/uverbs"))
            starts[n++] = strtoul(line, NULL, 16);
    if (maps)
        fclose(maps);
    return n;
}

static ring_t *pointer_at(const struct ibv_qp *qp, size_t offset) {
    ring_t *p;
    memcpy(&p, (const char *)qp + offset, sizeof p);
    return p;
}

/* Offsets of the pointers in queue pair objects of this process's provider; 0: not known yet. All objects have the same
 * type. */
static _Atomic size_t sends_at, recvs_at;

static void learn(const struct ibv_qp *qp, const struct ibv_qp_init_attr *made) {
    uintptr_t *starts = malloc(MAPPINGS * sizeof *starts);
    size_t n = starts ? mappings(starts, MAPPINGS) : 0, size = malloc_usable_size((void *)(uintptr_t)qp), sends = 0,
           recvs = 0;
    for (size_t at = 0; at + sizeof(void *) <= size; at += sizeof(void *)) {
        const ring_t *ring = pointer_at(qp, at);
        for (size_t i = 0; i < n; i++) {
            if ((uintptr_t)ring != starts[i])
                continue;
            if (!made->srq && !recvs && fits_recvs(ring, &made->cap))
                recvs = at;
            else if (!sends && fits_sends(ring, &made->cap))
                sends = at;
            break;
        }
    }
    free(starts);
    if (sends && (recvs || made->srq)) {
        sends_at = sends;
        if (recvs)
            recvs_at = recvs;
    }
}

/* The ring that the object points to at an offset known from objects like it, or NULL. */
static ring_t *known(const struct ibv_qp *qp, size_t at) {
    ring_t *ring = at ? pointer_at(qp, at) : NULL;
    /* msync tests whether the page is mapped */
    return ring && (uintptr_t)ring % PAGE == 0 && msync(ring, PAGE, MS_ASYNC) == 0 ? ring : NULL;
}

static int attach(struct ibv_qp *qp, const struct ibv_qp_init_attr *made, void **state) {
    if (!sends_at || (!recvs_at && !made->srq))
        learn(qp, made);
    rings_t found = {.sends = known(qp, sends_at), .recvs = made->srq ? NULL : known(qp, recvs_at)};
    if (!found.sends || !fits_sends(found.sends, &made->cap))
        return -ENOTSUP;
    if (!made->srq && (!found.recvs || !fits_recvs(found.recvs, &made->cap)))
        return -ENOTSUP;
    rings_t *rings = malloc(sizeof *rings);
    if (!rings)
        return -ENOMEM;
    *rings = found;
    *state = rings;
    return 0;
}

/* ---- decoding the slots ---- */

static uint32_t producer(const ring_t *r) { return __atomic_load_n(&r->producer_index, __ATOMIC_ACQUIRE); }

/* The slot of the post `back` posts ago (1: the last post). */
static void *slot_at(ring_t *r, uint32_t back) {
    return r->data + ((size_t)((producer(r) - back) & r->index_mask) << r->log2_elem_size);
}

/* Do the elements fit behind a slot's fixed part? */
static bool holds(const ring_t *r, size_t fixed, const struct rxe_dma_info *dma, bool bytes) {
    size_t room = (UINT64_C(1) << r->log2_elem_size) - fixed;
    return bytes ? dma->length <= room : dma->num_sge <= room / sizeof(struct rxe_sge);
}

static int decode_send(const ring_t *r, void *slot, shift_journal_t *to) {
    struct rxe_send_wqe *wqe = slot;
    _Static_assert(sizeof(struct rxe_sge) == sizeof(struct ibv_sge), "the provider copies scatter lists as they are");
    struct ibv_sge data = {.addr = (uintptr_t)wqe->dma.inline_data, .length = wqe->dma.length};
    bool bytes = wqe->wr.send_flags & IBV_SEND_INLINE;
    struct ibv_send_wr wr = {
        .wr_id = wqe->wr.wr_id,
        .sg_list = bytes ? &data : (struct ibv_sge *)wqe->dma.sge,
        .num_sge = bytes ? 1 : (int)wqe->dma.num_sge,
        .opcode = (enum ibv_wr_opcode)wqe->wr.opcode,
        .send_flags = wqe->wr.send_flags,
        .imm_data = wqe->wr.ex.imm_data, /* or the key to invalidate */
    };
    switch (wqe->wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
        break;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
        wr.wr.rdma.remote_addr = wqe->wr.wr.rdma.remote_addr;
        wr.wr.rdma.rkey = wqe->wr.wr.rdma.rkey;
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        wr.wr.atomic.remote_addr = wqe->wr.wr.atomic.remote_addr;
        wr.wr.atomic.compare_add = wqe->wr.wr.atomic.compare_add;
        wr.wr.atomic.swap = wqe->wr.wr.atomic.swap;
        wr.wr.atomic.rkey = wqe->wr.wr.atomic.rkey;
        break;
    default:
        return -EOPNOTSUPP;
    }
    if (!holds(r, sizeof *wqe, &wqe->dma, bytes))
        return -EBADMSG;
    return shift_journal_send(to, &wr) ? 0 : -ENOSPC;
}

static int decode_recv(const ring_t *r, void *slot, shift_journal_t *to) {
    struct rxe_recv_wqe *wqe = slot;
    struct ibv_recv_wr wr = {
        .wr_id = wqe->wr_id, .sg_list = (struct ibv_sge *)wqe->dma.sge, .num_sge = (int)wqe->dma.num_sge};
    if (!holds(r, sizeof *wqe, &wqe->dma, false))
        return -EBADMSG;
    return shift_journal_recv(to, &wr) ? 0 : -ENOSPC;
}

/* Decodes the last n slots, or none. */
static int decode(ring_t *r, int (*one)(const ring_t *r, void *slot, shift_journal_t *to), const uint64_t *wr_ids,
                  uint32_t n, shift_journal_t *to) {
    _Static_assert(offsetof(struct rxe_send_wqe, wr.wr_id) == 0 && offsetof(struct rxe_recv_wqe, wr_id) == 0,
                   "slots begin with their wr_id");
    if (n > r->index_mask + 1)
        return -ERANGE;
    uint64_t before = to->next;
    for (uint32_t i = 0; i < n; i++) {
        void *slot = slot_at(r, n - i);
        int rc = !wr_ids || *(uint64_t *)slot == wr_ids[i] ? one(r, slot, to) : -EBADMSG;
        if (rc) {
            to->next = before;
            return rc;
        }
    }
    return 0;
}

static void fenced(void *state) {
    rings_t *rings = state;
    memcpy(&rings->spare, slot_at(rings->sends, rings->sends->index_mask + 1), sizeof rings->spare);
    rings->kept = true;
}

static uint32_t failed(void *state) {
    ring_t *r = ((rings_t *)state)->sends;
    uint32_t n = 0;
    while (n <= r->index_mask && ((const struct rxe_send_wqe *)slot_at(r, n + 1))->status != IBV_WC_SUCCESS)
        n++;
    return n;
}

static int sends(void *state, const uint64_t *wr_ids, uint32_t n, shift_journal_t *to) {
    return decode(((rings_t *)state)->sends, decode_send, wr_ids, n, to);
}

static int recvs(void *state, const uint64_t *wr_ids, uint32_t n, shift_journal_t *to) {
    rings_t *rings = state;
    return rings->recvs ? decode(rings->recvs, decode_recv, wr_ids, n, to) : -ENOTSUP;
}

/* The slot before the oldest outstanding one has the last request that completed. Its packet numbers are certain; an
 * outstanding request may never have been started, or may have been started again. */
static int first_psn(void *state, uint32_t n, uint32_t *psn) {
    rings_t *rings = state;
    ring_t *r = rings->sends;
    for (uint32_t back = n + 1; back <= r->index_mask + 1 + rings->kept; back++) {
        const struct rxe_send_wqe *wqe = back > r->index_mask + 1 ? &rings->spare : slot_at(r, back);
        if (!wqe->mask)
            return -ENODATA;
        if (wqe->wr.opcode == IBV_WR_LOCAL_INV || wqe->wr.opcode == IBV_WR_BIND_MW)
            continue; /* sends no packet */
        *psn = (wqe->last_psn + 1) & PSN_MASK;
        return 0;
    }
    return -ENOTSUP;
}

/* ---- how far it has advanced: here consumer_index is valid ---- */

static uint32_t consumer(const ring_t *r) {
    return __atomic_load_n(&r->consumer_index, __ATOMIC_ACQUIRE) & r->index_mask;
}

/* The packet number changes with each request, the rest of `at` with each packet. */
static bool pending(void *state, shift_pending_t *p) {
    ring_t *r = ((rings_t *)state)->sends;
    uint32_t oldest = consumer(r);
    if (oldest == (producer(r) & r->index_mask))
        return false;
    const struct rxe_send_wqe *wqe = (void *)(r->data + ((size_t)oldest << r->log2_elem_size));
    *p = (shift_pending_t){.at = (uint64_t)oldest << 56 ^ (uint64_t)(wqe->first_psn & PSN_MASK) << 32 ^ wqe->dma.resid,
                           .count = (producer(r) - oldest) & r->index_mask,
                           .opcode = (enum ibv_wr_opcode)wqe->wr.opcode};
    return true;
}

static bool receivable(void *state) {
    const ring_t *r = ((rings_t *)state)->recvs;
    return r && consumer(r) != (producer(r) & r->index_mask);
}

const shift_rewind_t shift_rewind_rxe = {.name = "rxe",
                                         .serves = serves,
                                         .attach = attach,
                                         .detach = free,
                                         .fenced = fenced,
                                         .failed = failed,
                                         .sends = sends,
                                         .recvs = recvs,
                                         .first_psn = first_psn,
                                         .pending = pending,
                                         .receivable = receivable};
