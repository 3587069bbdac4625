/* exchange.h - how ranks exchange data while every thread of the program is halted, or doesn't run yet.
 *
 * The functions are collective: all ranks make the same calls in the same order. They return 0, or -1 if the MPI
 * library fails or the coordinator is lost; then no further call is allowed.
 */
#ifndef MANAPY_TCP_EXCHANGE_H
#define MANAPY_TCP_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

typedef struct mpy_exchange {
    int rank, size;
    /* Each value becomes the sum over all ranks. */
    int (*sum)(uint64_t *values, int count);
    /* Everybody gets the bytes of all: *all is to be freed; those of rank r are from at[r] to at[r + 1]. */
    int (*all)(const void *mine, size_t bytes, uint8_t **all, size_t *at);
    /* Everybody gets what the others have for it. Bytes for rank r: from to_at[r] to to_at[r + 1]. *from is to be
     * freed. */
    int (*each)(const uint8_t *to, const size_t *to_at, uint8_t **from, size_t *from_at);
} mpy_exchange_t;

#endif
