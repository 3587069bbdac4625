/* compressors.h - see compressors.c. */
#ifndef MANAPY_IMAGE_COMPRESSORS_H
#define MANAPY_IMAGE_COMPRESSORS_H

#include <stddef.h>
#include <stdint.h>

enum { MPY_COMPRESSORS_MAX = 8 };

/* Makes a frame of some bytes. */
typedef struct mpy_frame {
    const void *from;
    size_t bytes;
    char *frame;    /* room for the content of a frame that shrinks; the workspace follows */
    size_t length;  /* 0: it does not shrink */
} mpy_frame_t;

typedef struct mpy_compressors {
    int helpers;        /* threads besides the caller */
    size_t workspace;   /* bytes of one */
    uint32_t round;     /* futex: rises when there is work */
    uint32_t working;   /* futex: helpers that have not finished this round */
    int count, stop;
    mpy_frame_t frames[MPY_COMPRESSORS_MAX];
    uint32_t ids[MPY_COMPRESSORS_MAX]; /* futexes: of the helpers; 0: it has ended */
    char *stacks;
} mpy_compressors_t;

/* Starts the helpers of a pool of `threads` threads, the caller included; fewer if the kernel refuses. */
void mpy_compressors_begin(mpy_compressors_t *pool, int threads, size_t workspace);
void mpy_compressors_end(mpy_compressors_t *pool);

/* Makes pool->frames[0 .. count - 1], each by a thread of its own: at most helpers + 1. */
void mpy_compressors_run(mpy_compressors_t *pool, int count);

#endif
