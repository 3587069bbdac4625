/* internal_messages.h - messages between the ranks' runtimes (internal_messages.c). All in the lower half. */
#ifndef MANAPY_INTERNAL_MESSAGES_H
#define MANAPY_INTERNAL_MESSAGES_H

#include "core/runtime.h"

extern MPY_HIDDEN int mpy_private_comm; /* real handle, with the ranks of the world; not visible to the program */
extern MPY_HIDDEN int mpy_private_rank;
enum {
    MPY_TAG_NOBODY = 0, /* never sent */
    MPY_TAG_ACK = 1,
    MPY_TAG_PARTITIONED = 2,
    MPY_TAG_OFFERS_END = 3,
    MPY_TAG_DELIVER = 16, /* + thread slot: to ourselves, not counted */
    MPY_TAG_OFFER = 2048, /* + tag: not for internal messages, see offer.c */
    MPY_OFFERS_MAX = 32768 - MPY_TAG_OFFER, /* MPI_TAG_UB is at least 32767 */
};

typedef struct mpy_internal_message {
    struct mpy_internal_message *next;
    int real;
    int world, tag;    /* of an arriving message */
    uint32_t *counter; /* of a departing message */
    size_t bytes;
    uint8_t data[];
} mpy_internal_message_t;

MPY_HIDDEN mpy_internal_message_t *mpy_internal_message_alloc(size_t bytes); /* NULL if there is no memory */
MPY_HIDDEN void mpy_internal_message_free(mpy_internal_message_t *l);
/* Sends a few bytes, for which there is always memory. */
MPY_HIDDEN int mpy_internal_message_send_short(const void *data, size_t bytes, int world, int tag);
/* Takes ownership of the message, even on failure. While it is in progress it counts in *counter, if that isn't
 * NULL. */
MPY_HIDDEN int mpy_internal_message_send(mpy_internal_message_t *l, int world, int tag, uint32_t *counter);
MPY_HIDDEN void mpy_internal_messages_disown(const uint32_t *counter); /* the counter will no longer exist */
MPY_HIDDEN void mpy_internal_messages_reap(void); /* with mpy_p2p_lock: notices messages whose sends have finished */
MPY_HIDDEN bool mpy_internal_messages_all_sent(void); /* no message from here is in progress */
/* Passes arrived messages with a tag to `deliver`, which then owns them and is called with mpy_p2p_lock. True if there
 * was one. *rc: MPI_ERR_NO_MEM if there is no memory for a message; it stays in the network. */
MPY_HIDDEN bool mpy_internal_messages_take(int tag, void (*deliver)(mpy_internal_message_t *l), int *rc);
/* The same for a caller that has the lock. */
MPY_HIDDEN bool mpy_internal_messages_take_locked(int tag, void (*deliver)(mpy_internal_message_t *l), int *rc);
extern MPY_HIDDEN uint64_t *mpy_internal_messages_sent, *mpy_internal_messages_received; /* by world rank */

/* Lets the real library carry out what other calls have begun. It doesn't use MPI_COMM_SELF, because the library would
 * then only look inside this process. A probe that found a message would stop there, too, so an internal message that
 * nobody receives must not be found. */
static inline void mpy_real_progress(void) {
    int flag;
    MPY_REAL(Iprobe)(MPI_ANY_SOURCE, MPY_TAG_NOBODY, mpy_private_comm, &flag, MPI_STATUS_IGNORE);
}

#endif
