/* standard.h - what the back for the standard ABI of MPI 5.0 (chapter 20) has of its own: MPI_Status.
 * shared/translate.h has what all backs share. */
#ifndef MANAPY_BACK_STANDARD_H
#define MANAPY_BACK_STANDARD_H

#include "back_constants.h"

#define MPY_LIBRARY "the standard ABI"

/* 32 bytes. Only the library knows what the last ones mean: it is asked for the count and whether it was cancelled. */
typedef struct mpy_status {
    int source, tag, error, internal[5];
} mpy_status_t;

#define MPY_STATUS_EMPTY {.source = BACK_ANY_SOURCE, .tag = BACK_ANY_TAG}

#include "mpi/back/shared/translate.h"

_Static_assert(sizeof(mpy_status_t) == 8 * sizeof(int), "the standard's MPI_Status");

static inline void mpy_status_out(MPI_Status *to, const mpy_status_t *from) {
    MPI_Count bytes = 0;
    int cancelled = 0;
    MPY_THEIRS(Get_elements_c, from, (void *)BACK_BYTE, &bytes);
    MPY_THEIRS(Test_cancelled, from, &cancelled);
    mpy_status_put(to, from, (uint64_t)bytes, cancelled);
}
static inline void mpy_status_in(mpy_status_t *to, const MPI_Status *from) {
    *to = (mpy_status_t){
        .source = mpy_rank_in(from->MPI_SOURCE),
        .tag = mpy_tag_in(from->MPI_TAG),
        .error = mpy_code_in(from->MPI_ERROR),
    };
    MPY_THEIRS(Status_set_elements_c, to, (void *)BACK_BYTE, (MPI_Count)mpy_status_bytes(from));
    MPY_THEIRS(Status_set_cancelled, to, from->count_hi_and_cancelled & 1);
}

static inline void mpy_down(void) {}
static inline void *mpy_spawn_info(void *given) { return given; }

#endif
