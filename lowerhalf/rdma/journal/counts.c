/* counts.c - how many sends of a queue pair have been posted and have completed, for status displays. */
#include "journal/journal.h"

uint32_t shift_outstanding(const shift_qp_t *q) {
    shift_pending_t p = {0};
    if (q->unread && q->rewind->pending)
        q->rewind->pending(q->queues, &p);
    return p.count + shift_journal_count(&q->sends);
}

/* The number of outstanding sends is read from queues that a switch empties and fills again, so for a while it may be
 * too high. The number of completed sends never decreases. */
shift_counts_t shift_count(shift_qp_t *q) {
    uint64_t outstanding = shift_outstanding(q), completed = q->posted > outstanding ? q->posted - outstanding : 0;
    if (completed > q->completed)
        q->completed = completed;
    return (shift_counts_t){.known = !__atomic_load_n(&q->uncounted, __ATOMIC_RELAXED),
                            .posted = q->posted,
                            .bytes = q->bytes,
                            .completed = q->completed};
}
