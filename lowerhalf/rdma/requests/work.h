/* work.h - work requests by value, in the order in which they were posted.
 *
 * A verbs provider keeps a posted work request in its own queue, in its own format. To move the request to another
 * RNIC, we must know it as the program gave it to ibv_post_send or ibv_post_recv. A `journal` holds it in this form. An
 * entry owns its scatter list and the bytes of inline data.
 *
 * Invariants: entries are kept in posting order. Sequence numbers count up from 0 without gaps; `first` is the oldest
 * entry held, `next` is the next entry to be appended. An entry's address stays valid until the entry is dropped. No
 * locks: the owner of the queue holds its own.
 */
#ifndef MANAPY_RDMA_WORK_H
#define MANAPY_RDMA_WORK_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

/* One send-queue work request. wr.next is NULL, wr.sg_list points at the entry's own scatter list (one element that
 * points at the copied bytes for inline data). */
typedef struct shift_send {
    struct ibv_send_wr wr;
    uint64_t length;    /* bytes, of all scatter elements */
    uint32_t first_psn; /* of the first packet on the leg it was last posted to (24 bits); valid if packets > 0 */
    /* packet sequence numbers that it takes (a READ: one per response packet); 0: not posted to a leg yet */
    uint32_t packets;
    uint64_t base;      /* bytes that were omitted when it was last posted */
    /* bytes of it that the peer already has (RDMA writes only): omitted when it is posted again */
    uint64_t skip;
    bool done;          /* the peer has executed all of it; only its completion is missing */
} shift_send_t;

typedef struct shift_recv {
    struct ibv_recv_wr wr;
    uint64_t length;
} shift_recv_t;

typedef struct shift_journal {
    char *slots;
    size_t stride;     /* bytes per entry */
    uint32_t mask;     /* capacity - 1; the capacity is a power of two */
    uint32_t max_sge;
    uint32_t max_inline;
    uint32_t head_size; /* sizeof the entry's fixed part */
    uint64_t first, next;
} shift_journal_t;

/* Make room for `depth` entries of at most max_sge scatter elements and max_inline bytes. Return 0 or -ENOMEM. */
int shift_journal_sends(shift_journal_t *j, uint32_t depth, uint32_t max_sge, uint32_t max_inline);
int shift_journal_recvs(shift_journal_t *j, uint32_t depth, uint32_t max_sge);
void shift_journal_free(shift_journal_t *j);

static inline uint32_t shift_journal_count(const shift_journal_t *j) { return (uint32_t)(j->next - j->first); }
static inline bool shift_journal_full(const shift_journal_t *j) { return j->next - j->first > j->mask; }
static inline void *shift_journal_at(const shift_journal_t *j, uint64_t sequence) {
    return j->slots + (sequence & j->mask) * j->stride;
}
static inline void shift_journal_drop(shift_journal_t *j, uint64_t n) { j->first += n; }

/* Append a copy. Return NULL if the journal is full, or if the request has more scatter elements or inline bytes than
 * the journal has room for. */
shift_send_t *shift_journal_send(shift_journal_t *j, const struct ibv_send_wr *wr);
shift_recv_t *shift_journal_recv(shift_journal_t *j, const struct ibv_recv_wr *wr);

#endif
