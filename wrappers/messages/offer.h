/* offer.h - what this rank has ready for others, who receive it when they come to it (offer.c). All in the lower half.
 */
#ifndef MANAPY_OFFER_H
#define MANAPY_OFFER_H

#include "core/runtime.h"

typedef struct mpy_offer mpy_offer_t;

/* `bytes` of data, to be received by n ranks in pieces of `piece` bytes. NULL if there is no memory. */
MPY_HIDDEN mpy_offer_t *mpy_offer_make(size_t bytes, size_t piece, int n);
MPY_HIDDEN char *mpy_offer_data(mpy_offer_t *o);
MPY_HIDDEN int32_t mpy_offer_tag(const mpy_offer_t *o); /* what who receives it must know */
/* The data is there: for these n ranks of the world. */
MPY_HIDDEN int mpy_offer_post(mpy_offer_t *o, const int32_t *worlds);
/* Who has made it needs it no more: it goes when all have received it. */
MPY_HIDDEN void mpy_offer_leave(mpy_offer_t *o);

/* Receive the next piece of what a rank of the world offers; the drain ends it. */
MPY_HIDDEN int mpy_offer_ask(int32_t world, int32_t tag, void *to, size_t bytes, int *real);

MPY_HIDDEN bool mpy_offers_look(void); /* takes notice of what was received; true if anything was */
/* In MPI_Finalize, again and again until it is true: all that was offered here was received, and those of whom this
 * rank has received know that it has. */
MPY_HIDDEN bool mpy_offers_end(void);
MPY_HIDDEN bool mpy_offers_take_ends(void); /* what they say of it; true if anything has come */
MPY_HIDDEN int mpy_offers_rebuild(void);
/* Pieces by world rank, since the start: of ours that were received, and that we have asked for. */
extern MPY_HIDDEN uint64_t *mpy_offers_received, *mpy_offers_asked;

#endif
