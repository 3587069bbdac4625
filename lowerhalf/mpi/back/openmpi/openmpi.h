/* openmpi.h - what the back for Open MPI (4.1 and 5.0) has of its own: MPI_Status, infos. shared/translate.h has what all
 * backs share. */
#ifndef MANAPY_BACK_OPENMPI_H
#define MANAPY_BACK_OPENMPI_H

#include <stddef.h>

#include "back_constants.h"

#define MPY_LIBRARY "Open MPI"

typedef struct mpy_status {
    int source, tag, error, cancelled;
    size_t bytes;
} mpy_status_t;

#define MPY_STATUS_EMPTY {.source = BACK_ANY_SOURCE, .tag = BACK_ANY_TAG}

#include "mpi/back/shared/translate.h"

/* MPI_ERROR is written only by calls that complete several requests and fail (MPI-4 3.2.5). */
static inline void mpy_status_out(MPI_Status *to, const mpy_status_t *from) {
    to->count_lo = (int)(uint32_t)from->bytes;
    to->count_hi_and_cancelled = (int)(from->bytes >> 32) << 1 | (from->cancelled != 0);
    to->MPI_SOURCE = mpy_rank_out(from->source);
    to->MPI_TAG = from->tag;
}
static inline void mpy_status_in(mpy_status_t *to, const MPI_Status *from) {
    to->source = mpy_rank_in(from->MPI_SOURCE);
    to->tag = from->MPI_TAG;
    to->error = mpy_code_in(from->MPI_ERROR);
    to->cancelled = from->count_hi_and_cancelled & 1;
    to->bytes = mpy_status_bytes(from);
}

/* ---- infos (infos.c) ---- */
MPI_Info mpy_info_out(void *theirs); /* an info that Open MPI has made */
typedef struct mpy_pair { const char *key, *value; } mpy_pair_t;
int mpy_info_with(MPI_Info *info, int n, const mpy_pair_t *pairs); /* a new info */
void mpy_up(void);
void mpy_down(void);

extern const mpy_ours_t mpy_ours_infos[], mpy_ours_sessions[];
extern const size_t mpy_ours_infos_count, mpy_ours_sessions_count;

#endif
