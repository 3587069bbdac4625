/* store.h - messages that a drain took off the network, and synchronous sends across a drain (store.c). All in the
 * lower half. Invariant 5 of request.h says when the store changes.
 */
#ifndef MANAPY_STORE_H
#define MANAPY_STORE_H

#include "bytes.h"
#include "p2p/request.h"

struct mpy_stored {
    mpy_stored_t *next, *prev;
    mpy_comm_t *comm;
    int source, tag;
    size_t bytes;
    void *data;
    mpy_bytes_t as;    /* until it is received */
    uint64_t sync_id; /* identity, at the sender, of the synchronous send that waits for this message; 0: none */
    int sync_world;
};
extern MPY_HIDDEN volatile uint32_t mpy_store_count; /* read without lock: invariant 5 */

/* Receives a stored message if one matches. Then returns true and sets *rc, and the status as a receive would.
 * `datatype` is a real handle. */
MPY_HIDDEN bool mpy_store_receive(mpy_thread_t *t, void *buf, MPI_Count count, int datatype, int source, int tag,
                                  mpy_comm_t *c, MPI_Status *status, int *rc);
MPY_HIDDEN bool mpy_store_probe(const mpy_comm_t *c, int source, int tag, MPI_Status *status);
/* Removes a matching message (Improbe) and returns it, or NULL. */
MPY_HIDDEN mpy_stored_t *mpy_store_extract(const mpy_comm_t *c, int source, int tag);
/* Delivers an extracted message into a buffer and frees it. If the arguments are wrong, the message stays and *rc has
 * the error. `datatype` is real. */
MPY_HIDDEN bool mpy_store_deliver(mpy_thread_t *t, mpy_stored_t *m, void *buf, MPI_Count count, int datatype,
                                  MPI_Status *status, int *rc);
/* make: memory for a message that the drain has probed, or NULL. Then mrecv receives the whole message, as bytes, or
 * drop gives the memory back. A message that can't be received would be lost: the job ends. */
MPY_HIDDEN mpy_stored_t *mpy_stored_make(mpy_comm_t *c, const MPI_Status *probed);
MPY_HIDDEN void mpy_stored_mrecv(mpy_stored_t *m, int *real_message);
MPY_HIDDEN void mpy_stored_drop(mpy_stored_t *m);
MPY_HIDDEN void mpy_store_append(mpy_stored_t *m);
MPY_HIDDEN mpy_stored_t *mpy_store_from_end(const mpy_comm_t *c, int source, int tag, uint32_t position);

MPY_HIDDEN void mpy_ssend_add(mpy_request_t *r);
MPY_HIDDEN void mpy_ssend_remove(mpy_request_t *r);
MPY_HIDDEN void mpy_ssend_later_slow(const mpy_comm_t *c, int dest, int tag);
MPY_HIDDEN mpy_request_t *mpy_ssend_first(void);
static inline void mpy_ssend_later(const mpy_comm_t *c, int dest, int tag) {
    if (MPY_UNLIKELY(c->incomplete_ssends != 0)) mpy_ssend_later_slow(c, dest, tag);
}
/* Receives acks that have arrived; true if there was one. */
MPY_HIDDEN bool mpy_ack_poll(void);

/* Called by MPI_Comm_free and _disconnect, in the lower half, before the object is removed. Active operations keep the
 * object alive (refs); its stored messages are dropped. */
MPY_HIDDEN void mpy_p2p_comm_free(mpy_comm_t *comm);

#endif
