/* crew.h - see crew.c. */
#ifndef MANAPY_IMAGE_CREW_H
#define MANAPY_IMAGE_CREW_H

#include <stddef.h>
#include <stdint.h>

enum { MPY_CREW_MAX = 8 };

/* Makes a frame of some bytes. */
typedef struct mpy_frame {
    const void *from;
    size_t bytes;
    char *frame;    /* room for the content of a frame that shrinks; the workspace follows */
    size_t length;  /* 0: it does not shrink */
} mpy_frame_t;

typedef struct mpy_crew {
    int helpers;        /* threads besides the caller */
    size_t workspace;   /* bytes of one */
    uint32_t round;     /* futex: rises when there is work */
    uint32_t working;   /* futex: helpers that have not finished this round */
    int count, stop;
    mpy_frame_t frames[MPY_CREW_MAX];
    uint32_t ids[MPY_CREW_MAX]; /* futexes: of the helpers; 0: it has ended */
    char *stacks;
} mpy_crew_t;

/* Starts the helpers of a crew of `threads` threads, the caller included; fewer if the kernel refuses. */
void mpy_crew_begin(mpy_crew_t *crew, int threads, size_t workspace);
void mpy_crew_end(mpy_crew_t *crew);

/* Makes crew->frames[0 .. count - 1], each by a thread of its own: at most helpers + 1. */
void mpy_crew_compress(mpy_crew_t *crew, int count);

#endif
