/* work.c - the journal of work.h: a ring of entries of one size. Each consists of the fixed part, room for the scatter
 * list, and room for inline bytes.
 *
 * The memory is one anonymous mapping. Appending never allocates and calls no libc function that locks; pages that are
 * never reached cost nothing. Entries begin at cache lines. Every post appends an entry. So members are written one by
 * one: a whole entry would first be built elsewhere, which takes three times as long as everything else.
 */
#include "requests/work.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE = 64 };

static size_t bytes(const shift_journal_t *j) { return ((size_t)j->mask + 1) * j->stride; }

static int make(shift_journal_t *j, uint32_t depth, uint32_t max_sge, uint32_t max_inline, size_t head) {
    /* inline data needs one element */
    shift_journal_t made = {.max_sge = max_sge ? max_sge : 1, .max_inline = max_inline, .head_size = (uint32_t)head};
    while (made.mask < depth - (depth > 0))
        made.mask = made.mask << 1 | 1;
    made.stride = (head + made.max_sge * sizeof(struct ibv_sge) + max_inline + LINE - 1) / LINE * LINE;
    size_t room;
    if (__builtin_mul_overflow((size_t)made.mask + 1, made.stride, &room))
        return -ENOMEM;
    made.slots = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made.slots == MAP_FAILED)
        return -ENOMEM;
    *j = made;
    return 0;
}

int shift_journal_sends(shift_journal_t *j, uint32_t depth, uint32_t max_sge, uint32_t max_inline) {
    return make(j, depth, max_sge, max_inline, sizeof(shift_send_t));
}

int shift_journal_recvs(shift_journal_t *j, uint32_t depth, uint32_t max_sge) {
    return make(j, depth, max_sge, 0, sizeof(shift_recv_t));
}

void shift_journal_free(shift_journal_t *j) {
    if (j->slots)
        munmap(j->slots, bytes(j));
    *j = (shift_journal_t){0};
}

static struct ibv_sge *scatter_of(const shift_journal_t *j, void *entry) {
    return (struct ibv_sge *)((char *)entry + j->head_size);
}

/* Returns the number of bytes of a scatter list. Copies the list to `to` unless that is NULL. */
static uint64_t take(struct ibv_sge *to, const struct ibv_sge *list, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        if (to)
            to[i] = list[i];
        sum += list[i].length;
    }
    return sum;
}

/* Copies inline data behind the list; the first element then describes it. Returns UINT64_MAX if there are too many
 * bytes. */
static __attribute__((noinline)) uint64_t copy_inline(const shift_journal_t *j, struct ibv_sge *list,
                                                      const struct ibv_send_wr *wr) {
    uint64_t length = take(NULL, wr->sg_list, wr->num_sge);
    if (length > j->max_inline)
        return UINT64_MAX;
    char *data = (char *)(list + j->max_sge);
    *list = (struct ibv_sge){.addr = (uintptr_t)data, .length = (uint32_t)length};
    for (int i = 0; i < wr->num_sge; data += wr->sg_list[i].length, i++)
        memcpy(data, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
    return length;
}

shift_send_t *shift_journal_send(shift_journal_t *j, const struct ibv_send_wr *wr) {
    bool bytes = wr->send_flags & IBV_SEND_INLINE;
    if (shift_journal_full(j) || wr->num_sge < 0 || (!bytes && (uint32_t)wr->num_sge > j->max_sge))
        return NULL;
    shift_send_t *entry = shift_journal_at(j, j->next);
    struct ibv_sge *list = scatter_of(j, entry);
    uint64_t length = bytes ? copy_inline(j, list, wr) : take(list, wr->sg_list, wr->num_sge);
    if (length == UINT64_MAX)
        return NULL;
    if (wr->opcode == IBV_WR_BIND_MW)
        entry->wr = *wr;
    else
        /* the remaining members are for binding, XRC and segmentation */
        memcpy(&entry->wr, wr, offsetof(struct ibv_send_wr, qp_type));
    memset(&entry->length, 0, sizeof *entry - offsetof(shift_send_t, length));
    entry->length = length;
    entry->wr.next = NULL;
    entry->wr.sg_list = list;
    entry->wr.num_sge = bytes ? 1 : wr->num_sge;
    j->next++;
    return entry;
}

shift_recv_t *shift_journal_recv(shift_journal_t *j, const struct ibv_recv_wr *wr) {
    if (shift_journal_full(j) || wr->num_sge < 0 || (uint32_t)wr->num_sge > j->max_sge)
        return NULL;
    shift_recv_t *entry = shift_journal_at(j, j->next++);
    struct ibv_sge *list = scatter_of(j, entry);
    entry->length = take(list, wr->sg_list, wr->num_sge);
    entry->wr = (struct ibv_recv_wr){.wr_id = wr->wr_id, .sg_list = list, .num_sge = wr->num_sge};
    return entry;
}
