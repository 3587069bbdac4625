/* snapshot.h - see snapshot.c. */
#ifndef MANAPY_SNAPSHOT_H
#define MANAPY_SNAPSHOT_H
#include "control/engine.h"
#include "dirty/dirty.h"
#include "pages.h"
#include "process/blob.h"

typedef struct mpy_snapshot {
    char path[PATH_MAX];
    int64_t begun; /* CLOCK_MONOTONIC */
    mpy_image_output_t out;
    mpy_map_t *maps;
    long nmaps;
    int advised; /* is the advice about memory among the regions? */
    mpy_vector_t regions, files, strings;
    mpy_vector_t pages; /* mpy_pages_t of the regions whose pages are saved */
    mpy_vector_t threads;
    mpy_dirty_image_t *track; /* where the pages are remembered; NULL: they are not */
    const char *way;          /* how changed pages are found, if they are: as mpy_dirty_way says it */
    mpy_blob_t process, fds;
    const mpy_image_member_t *members; /* of the tree; NULL: none */
    uint32_t nmembers;
} mpy_snapshot_t;

/* What a snapshot gives: `failure` if it could not be written. */
typedef struct mpy_snapshot_outcome {
    mpy_image_result_t result;
    mpy_image_failure_t failure;
} mpy_snapshot_outcome_t;

/* Begins the image. Every upper thread must be halted. Takes all but the pages that a forked process has
 * as they are now; `forked`: also those that it has not. `outcome` must live as long as the snapshot. Returns 0, or -1
 * with one line in `error`; then no file remains. */
int mpy_snapshot_take(mpy_snapshot_t *s, const mpy_image_order_t *order, int forked, mpy_snapshot_outcome_t *outcome,
                      char *error, size_t n);
/* Copies all that is to be written, if the kernel has said what has changed and it is little. Then mpy_snapshot_write
 * may run in this process while the program runs. Returns 0; 1 if not all of it was copied; -1 with the reason in the
 * outcome. */
int mpy_snapshot_copy(mpy_snapshot_t *s);
/* This rank's part of the processors that this thread may use, at least 1. */
int mpy_snapshot_processors(void);
/* Writes the image and fsyncs it, in this process or in one that was forked from it. It compresses on so many
 * processors, at least 1. Returns 0, or -1 with the reason in the outcome. */
int mpy_snapshot_write(mpy_snapshot_t *s, int processors, mpy_snapshot_outcome_t *outcome);
/* Closes and frees all of it. `failed`: also removes the file. */
void mpy_snapshot_end(mpy_snapshot_t *s, int failed);
/* Puts the failure into one line. Returns -1. */
int mpy_snapshot_explain(const mpy_snapshot_outcome_t *outcome, char *error, size_t n);
#endif
