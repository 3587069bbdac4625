/* p2p.h - point-to-point: functions of p2p.c, sendrecv.c, bsend.c, partitioned.c and drain.c for other files. Requests
 * themselves are in request.h, stored messages in store.h.
 */
#ifndef MANAPY_P2P_H
#define MANAPY_P2P_H

#include "request.h"
#include "messages/store.h"

/* Receives data of partitioned communication that has arrived (partitioned.c). True if there was any. *rc: as in
 * mpy_internal_messages_take. */
MPY_HIDDEN bool mpy_partitioned_take(int *rc);

/* ---- requests that finish without the program: freed ones, and the sends of buffered sends (bsend.c); lower half
 * ---- */
MPY_HIDDEN void mpy_orphan_add(mpy_request_t *r);
MPY_HIDDEN bool mpy_orphan_reap(mpy_p2p_thread_t *th); /* releases the finished ones; true if none is left */

/* A buffered send: when it returns, the program may reuse `buf`. `datatype` is real. */
MPY_HIDDEN int mpy_bsend_start(mpy_p2p_thread_t *th, mpy_comm_t *c, const void *buf, MPI_Count count, int datatype,
                               int dest, int tag);

/* ---- sendrecv.c; lower half ---- */
MPY_HIDDEN bool mpy_sendrecv_sent(const mpy_request_t *r); /* has the send half of a SENDRECV finished? */
/* Packed copies. */
typedef struct mpy_packed {
    void *data;
    size_t capacity;
    MPI_Count bytes;
} mpy_packed_t;
/* `datatype` is real */
MPY_HIDDEN int mpy_pack(const mpy_comm_t *c, const void *buf, MPI_Count count, int datatype, mpy_packed_t *out);
MPY_HIDDEN void mpy_pack_free(mpy_packed_t *p);

/* ---- functions for other files ---- */
/* Creates the private communicator, after the real MPI_Init and after a restart (called by mpy_request_rebuild).
 * Collective. */
MPY_HIDDEN int mpy_p2p_init(void);
/* For MPI_Finalize. flush: first, before the call is counted (upper TLS); waits for the receivers of buffered sends.
 * finalize: later, inside the crossing. */
MPY_HIDDEN void mpy_p2p_flush(void);
/* For MPI_Comm_disconnect: waits for the sends on the communicator that the program has freed (upper TLS). */
MPY_HIDDEN void mpy_p2p_comm_flush(mpy_comm_t *c);
MPY_HIDDEN void mpy_p2p_finalize(void);
MPY_HIDDEN void mpy_partitioned_comm_free(const mpy_comm_t *comm);

/* ---- attached buffers (bsend.c) ---- */
typedef struct mpy_buffer mpy_buffer_t;
/* Waits for the sends and forgets the buffer, if there is one; upper TLS. *address is NULL if there was none. */
MPY_HIDDEN void mpy_buffer_detach(mpy_buffer_t **slot, void **address, MPI_Count *size);

#endif
