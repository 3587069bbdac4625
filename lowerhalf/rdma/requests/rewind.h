/* rewind.h - which work requests of a queue pair are outstanding, read from the provider's own queues.
 *
 * Asked only after the queue pair is in the error state and all its completions were polled: then the outstanding
 * requests are the last ones posted, as many as error completions came (unsignaled ones flush too), in the order of
 * those completions. Nothing is done when work is posted, so this costs the data path nothing. A backend decodes what
 * it finds back into ibv_send_wr / ibv_recv_wr and appends it, oldest first, to a journal (work.h); the replay is the
 * public ibv_post_send on another RNIC, which may have another provider. SHIFT paper, section 3.1, C#2.
 *
 * Shared receive queues have no backend: their requests complete out of order, so the ring doesn't tell which are
 * outstanding. Nor have queue pairs that bind memory windows or invalidate keys locally: such requests are refused with
 * -EOPNOTSUPP when found.
 */
#ifndef MANAPY_RDMA_REWIND_H
#define MANAPY_RDMA_REWIND_H

#include "requests/work.h"

/* What a send queue is at. */
typedef struct shift_pending {
    uint64_t at;               /* changes whenever it gets on */
    uint32_t count;            /* requests */
    enum ibv_wr_opcode opcode; /* of the oldest */
    uint64_t slack;            /* ns that the oldest may take without a change of `at`, because of its length */
} shift_pending_t;

typedef struct shift_rewind {
    const char *name; /* "rxe", "mlx5" */

    /* Are this device's queues of the kind that the backend knows? */
    bool (*serves)(const struct ibv_device *device);

    /* Find the queues of a reliable connected queue pair that was just made, with nothing posted; made: as
     * ibv_create_qp left it. The state is private to the backend. 0; -ENOTSUP when they are not of the layout that the
     * backend knows (the caller then keeps a software journal); -ENOMEM. */
    int (*attach)(struct ibv_qp *qp, const struct ibv_qp_init_attr *made, void **state);
    void (*detach)(void *state);

    /* The queue pair is in the error state and something is going to be posted to it for the first time since:
     * first_psn must still be known if that takes the last slot of a full queue. */
    void (*fenced)(void *state);

    /* How many of the last posted sends came back with an error completion; 0: the queue doesn't tell. */
    uint32_t (*failed)(void *state);

    /* Append the last n posted sends / receives to the journal, oldest first; wr_ids: of the n error completions, NULL
     * if it isn't known which were sends. 0, or nothing is appended and -ERANGE (the queue holds fewer than n),
     * -EBADMSG (it doesn't hold what the completions say), -EOPNOTSUPP (a request that can't be replayed), -ENOTSUP
     * (recvs: they are in a shared receive queue; or wr_ids are needed), -ENOSPC (the journal is too small). */
    int (*sends)(void *state, const uint64_t *wr_ids, uint32_t n, shift_journal_t *to);
    int (*recvs)(void *state, const uint64_t *wr_ids, uint32_t n, shift_journal_t *to);

    /* The packet sequence number at which the oldest of the last n posted sends begins. 0; -ENODATA when nothing was
     * posted before it since the queue pair was last reset (it begins at the sq_psn then set); -ENOTSUP when the queue
     * doesn't tell. NULL: it never does. */
    int (*first_psn)(void *state, uint32_t n, uint32_t *psn);

    /* While the queue pair works: false when nothing is outstanding. And whether it has posted receives that no message
     * has taken. NULL where the queues don't tell (or, for one queue pair of a shared receive queue: false). */
    bool (*pending)(void *state, shift_pending_t *p);
    bool (*receivable)(void *state);
} shift_rewind_t;

extern const shift_rewind_t shift_rewind_rxe;
extern const shift_rewind_t shift_rewind_mlx5;

/* The backend for this queue pair's provider, attached; NULL when there is none. */
const shift_rewind_t *shift_rewind_for(struct ibv_qp *qp, const struct ibv_qp_init_attr *made, void **state);

#endif
