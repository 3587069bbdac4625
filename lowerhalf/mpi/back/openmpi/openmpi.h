/* openmpi.h - what the back for Open MPI (4.1 and 5.0) has of its own: MPI_Status, infos, hints of windows, windows of
 * one process. shared/translate.h has what all backs share. */
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

static inline void mpy_status_out(MPI_Status *to, const mpy_status_t *from) {
    mpy_status_put(to, from, from->bytes, from->cancelled);
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
bool mpy_info_has(MPI_Info info, const char *key);
int mpy_info_merge(MPI_Info into, MPI_Info from);
int mpy_info_dup(MPI_Info info, MPI_Info *new); /* this one and the next two: as MPI_Info_dup ... */
int mpy_info_delete(MPI_Info info, const char *key);
int mpy_info_free(MPI_Info *info);
void mpy_down(void);

/* ---- hints of windows (hints.c) ---- */
/* What a call gives to a window. */
typedef struct mpy_hints { MPI_Info given, copy; } mpy_hints_t; /* copy: what the library sees, if that is less */
mpy_hints_t mpy_hints_begin(MPI_Info given);
void *mpy_hints_theirs(const mpy_hints_t *hints);
int mpy_hints_end(mpy_hints_t *hints, int rc, MPI_Win win); /* after the call; returns rc, or another error */
void mpy_hints_drop(MPI_Win win);
bool mpy_hints_open(void);

/* ---- windows of one process (windows.c) ---- */
/* The part of the real window's memory that the core knows. */
typedef struct mpy_alone {
    char *pages;
    MPI_Aint shift; /* bytes before them */
    MPI_Aint size;
    int unit;
} mpy_alone_t;
extern mpy_alone_t **mpy_alone; /* by the index of a created handle; NULL: the core knows all of the window */
bool mpy_windows_open(void);
static inline MPI_Aint mpy_disp_in(MPI_Win win, MPI_Aint disp) {
    const mpy_alone_t *alone = mpy_alone[mpy_made_index(win)];
    return MPY_LIKELY(alone == NULL) || disp < 0 ? disp : alone->shift + disp * alone->unit;
}

/* ---- spawned processes (spawn.c) ---- */
void *mpy_spawn_info(void *given);

/* ---- functions ---- */
extern const mpy_ours_t mpy_ours_abi[], mpy_ours_added[], mpy_ours_infos[], mpy_ours_hints[],
    mpy_ours_sessions[], mpy_ours_windows[];
extern const size_t mpy_ours_abi_count, mpy_ours_added_count, mpy_ours_infos_count, mpy_ours_hints_count,
    mpy_ours_sessions_count, mpy_ours_windows_count;

#endif
