/* internal_messages.h - messages between the ranks' runtimes (internal_messages.c). All in the lower half. */
#ifndef MANAPY_INTERNAL_MESSAGES_H
#define MANAPY_INTERNAL_MESSAGES_H

#include "core/runtime.h"

extern MPY_HIDDEN int mpy_private_comm; /* real handle, with the ranks of the world; not the program's */
extern MPY_HIDDEN int mpy_private_rank;
enum {
    MPY_TAG_NOBODY = 0, /* never sent */
    MPY_TAG_ACK = 1,
    MPY_TAG_PARTITIONED = 2,
    MPY_TAG_OFFERS_END = 3,
    MPY_TAG_DELIVER = 16, /* + thread slot: to ourselves, not counted */
    MPY_TAG_OFFER = 2048, /* + tag: no internal messages, see offer.c */
    MPY_OFFERS_MAX = 32768 - MPY_TAG_OFFER, /* MPI_TAG_UB is 32767 at least */
};

typedef struct mpy_internal_message {
    struct mpy_internal_message *next;
    int real;
    int world, tag;    /* of one that arrives */
    uint32_t *counter; /* of one that leaves */
    size_t bytes;
    uint8_t data[];
} mpy_internal_message_t;

MPY_HIDDEN mpy_internal_message_t *mpy_internal_message_alloc(size_t bytes); /* NULL if there is no memory */
MPY_HIDDEN void mpy_internal_message_free(mpy_internal_message_t *l);
/* Some bytes, for which there is memory; sent. */
MPY_HIDDEN int mpy_internal_message_send_short(const void *data, size_t bytes, int world, int tag);
/* Takes the message over, also on failure. While it's in progress it counts in *counter, if that isn't NULL. */
MPY_HIDDEN int mpy_internal_message_send(mpy_internal_message_t *l, int world, int tag, uint32_t *counter);
MPY_HIDDEN void mpy_internal_messages_disown(const uint32_t *counter); /* the counter goes away */
MPY_HIDDEN bool mpy_internal_messages_all_sent(void);                        /* none is in progress from here */
/* Give the messages of a tag that have arrived to `deliver`, which owns them then and is called with mpy_p2p_lock; true
 * if there was one. *rc: MPI_ERR_NO_MEM if there is no memory for one, which stays in the network. */
MPY_HIDDEN bool mpy_internal_messages_take(int tag, void (*deliver)(mpy_internal_message_t *l), int *rc);
extern MPY_HIDDEN uint64_t *mpy_internal_messages_sent, *mpy_internal_messages_received; /* by world rank */

#endif
