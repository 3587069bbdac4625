/* rewind.h - which work requests of a queue pair are outstanding, read from the provider's own queues.
 *
 * Asked only after the queue pair is in the error state and all its completions were polled: then the outstanding requests are the last ones posted,
 * as many as error completions came (unsignaled ones flush too). Nothing is done when work is posted, so this costs the data path nothing.
 * A backend decodes what it finds back into ibv_send_wr / ibv_recv_wr and appends it, oldest first, to a journal (work.h); the replay is the public
 * ibv_post_send on another RNIC, which may have another provider. shift.txt section 3.1 C#2; design/shift.md "Rewind".
 */
#ifndef MANAPY_RDMA_REWIND_H
#define MANAPY_RDMA_REWIND_H

#include "work.h"

typedef struct shift_rewind {
    const char *name; /* "rxe", "mlx5" */

    /* Find the queues of a queue pair (or, with qp NULL, of an SRQ) that was just made. The state is private to the backend. 0; -ENOTSUP when this
     * provider's queues are not of the layout that the backend knows (the caller then keeps a software journal). */
    int (*attach)(struct ibv_qp *qp, void **state);
    void (*detach)(void *state);

    /* Append the last n posted sends / receives to the journal, oldest first. -ERANGE when the queue holds fewer than n. For sends, packets and
     * first_psn are set where the queue tells them (packets 0 else). */
    int (*sends)(void *state, uint32_t n, shift_journal_t *to);
    int (*recvs)(void *state, uint32_t n, shift_journal_t *to);
} shift_rewind_t;

extern const shift_rewind_t shift_rewind_rxe;
extern const shift_rewind_t shift_rewind_mlx5;

/* The backend for this queue pair's provider, attached; NULL when there is none. */
const shift_rewind_t *shift_rewind_for(struct ibv_qp *qp, void **state);

#endif
