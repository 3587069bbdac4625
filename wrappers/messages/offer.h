/* offer.h - data that this rank offers to other ranks, which receive it when they need it (offer.c). All in the lower
 * half.
 */
#ifndef MANAPY_OFFER_H
#define MANAPY_OFFER_H

#include "core/runtime.h"

typedef struct mpy_offer mpy_offer_t;

/* `bytes` of data, to be received by n ranks in pieces of `piece` bytes. NULL if there is no memory. */
MPY_HIDDEN mpy_offer_t *mpy_offer_make(size_t bytes, size_t piece, int n);
MPY_HIDDEN char *mpy_offer_data(mpy_offer_t *o);
MPY_HIDDEN int32_t mpy_offer_tag(const mpy_offer_t *o); /* the receiver must know it */
/* The data is complete: offers it to these n ranks of the world. */
MPY_HIDDEN int mpy_offer_post(mpy_offer_t *o, const int32_t *worlds);
/* Its creator no longer needs it: it is freed when all ranks have received it. */
MPY_HIDDEN void mpy_offer_leave(mpy_offer_t *o);

/* Receives the next piece of an offer of a rank of the world; the drain completes it. */
MPY_HIDDEN int mpy_offer_ask(int32_t world, int32_t tag, void *to, size_t bytes, int *real);

MPY_HIDDEN bool mpy_offers_look(void); /* notices pieces that were received; true if there were any */
/* MPI_Finalize calls it until it is true: all offers of this rank were received, and the ranks from which this rank has
 * received know that. */
MPY_HIDDEN bool mpy_offers_end(void);
MPY_HIDDEN bool mpy_offers_take_ends(void); /* receives their messages about this; true if any has arrived */
MPY_HIDDEN int mpy_offers_rebuild(void);
/* Number of pieces by world rank, since the start: of ours that were received, and of others' that we have
 * requested. */
extern MPY_HIDDEN uint64_t *mpy_offers_received, *mpy_offers_asked;

#endif
