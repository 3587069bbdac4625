/* rewind.h - which work requests of a queue pair are outstanding, read from the provider's own queues.
 *
 * Used only after the queue pair is in the error state and all its completions were polled. Then the outstanding
 * requests are the last ones posted, as many as there were error completions (unsignaled ones are flushed, too), in the
 * order of those completions. Nothing is done when work is posted, so this costs the data path nothing. A backend
 * decodes what it finds back into ibv_send_wr / ibv_recv_wr and appends it, oldest first, to a journal (work.h). The
 * replay is the public ibv_post_send on another RNIC, which may have another provider. SHIFT paper, section 3.1, C#2.
 *
 * Shared receive queues have no backend: their requests complete out of order, so the ring doesn't tell which are
 * outstanding. Queue pairs that bind memory windows or invalidate keys locally are not supported, either: such requests
 * are refused with -EOPNOTSUPP when found.
 */
#ifndef MANAPY_RDMA_REWIND_H
#define MANAPY_RDMA_REWIND_H

#include "requests/work.h"

/* The position of a send queue. */
typedef struct shift_pending {
    uint64_t at;               /* changes whenever the queue advances */
    uint32_t count;            /* number of outstanding requests */
    enum ibv_wr_opcode opcode; /* of the oldest */
    uint64_t slack;            /* ns that the oldest may take without a change of `at`, due to its length */
} shift_pending_t;

typedef struct shift_rewind {
    const char *name; /* "rxe", "mlx5" */

    /* Does the backend know the queues of this device? */
    bool (*serves)(const struct ibv_device *device);

    /* Finds the queues of a reliable connected queue pair that was just created, with nothing posted. made: as
     * ibv_create_qp has set it. The state is private to the backend. Returns 0; -ENOTSUP if the queues have an unknown
     * layout (the caller then keeps a software journal); -ENOMEM. */
    int (*attach)(struct ibv_qp *qp, const struct ibv_qp_init_attr *made, void **state);
    void (*detach)(void *state);

    /* The queue pair is in the error state, and something will be posted to it for the first time since. first_psn must
     * still be known if this takes the last slot of a full queue. */
    void (*fenced)(void *state);

    /* How many of the last posted sends came back with an error completion. 0: the queue doesn't tell. */
    uint32_t (*failed)(void *state);

    /* Append the last n posted sends or receives to the journal, oldest first. wr_ids: those of the n error
     * completions, or NULL if it isn't known which were sends. Return 0. Or nothing is appended, and they return
     * -ERANGE (the queue holds fewer than n), -EBADMSG (it doesn't hold what the completions say), -EOPNOTSUPP (a
     * request that can't be replayed), -ENOTSUP (recvs: they are in a shared receive queue; or wr_ids are needed), or
     * -ENOSPC (the journal is too small). */
    int (*sends)(void *state, const uint64_t *wr_ids, uint32_t n, shift_journal_t *to);
    int (*recvs)(void *state, const uint64_t *wr_ids, uint32_t n, shift_journal_t *to);

    /* The packet sequence number at which the oldest of the last n posted sends begins. Returns 0; -ENODATA if nothing
     * was posted before it since the last reset of the queue pair (it begins at the sq_psn set then); -ENOTSUP if the
     * queue doesn't tell. NULL: it never tells. */
    int (*first_psn)(void *state, uint32_t n, uint32_t *psn);

    /* While the queue pair works. pending: false if nothing is outstanding. receivable: has the queue pair posted
     * receives that no message has taken? NULL if the queues don't tell (for a queue pair with a shared receive queue:
     * false). */
    bool (*pending)(void *state, shift_pending_t *p);
    bool (*receivable)(void *state);
} shift_rewind_t;

extern const shift_rewind_t shift_rewind_rxe;
extern const shift_rewind_t shift_rewind_mlx5;

/* The backend for this queue pair's provider, attached. NULL if there is none. */
const shift_rewind_t *shift_rewind_for(struct ibv_qp *qp, const struct ibv_qp_init_attr *made, void **state);

#endif
