/* message.h - the messages between the processes of a rank's tree. See message.c. */
#ifndef MANAPY_TREE_MESSAGE_H
#define MANAPY_TREE_MESSAGE_H
#include <manapy/image.h>
#include <stdbool.h>
#include <stdint.h>

enum { MPY_TREE_MAX = 128 }; /* processes of a tree that can be saved */

/* To the hub: JOIN on the door, and EXIT from itself; LEAD, BACK and the orders from the MPI process on its line. From
 * the hub: the same orders to the other processes. BACK to BACK, and ANSWER to everything else but what comes on the
 * door; with PART before it, to LEND for each connection, to WRITE for each image. */
typedef enum {
    MPY_TREE_JOIN = 1, /* with the far end of the line of a new process */
    MPY_TREE_LEAD,     /* a process is about to load the MPI library */
    MPY_TREE_BACK,     /* the MPI process ends in order; the hub speaks for the rank again */
    MPY_TREE_CHECK,
    MPY_TREE_STOP,
    MPY_TREE_LEND,     /* TCP connections, to the MPI process (process/fds/fds_tcp.c) */
    MPY_TREE_WRITE,
    MPY_TREE_RESUME,
    MPY_TREE_EXIT,     /* ends the process */
    MPY_TREE_PART,
    MPY_TREE_ANSWER,
} mpy_tree_kind_t;

typedef struct mpy_tree_message {
    uint32_t kind;
    uint64_t number; /* of an order: different from those before it. ANSWER and PART: of the order; others are late */
    int32_t pid;     /* JOIN, LEAD, PART of LEND: who; answer to a LEAD that is refused: who leads */
    int32_t value;   /* ANSWER: 0, or -1 with the reason in `text`. CHECK: grace in ms. BACK: MPI was finalized.
                      EXIT: the exit code */
    uint32_t index;  /* WRITE: of the image; PART of LEND: descriptor in its process; EXIT: ms after which the first
                      process ends, at the latest */
    uint64_t bytes;  /* PART: memory saved */
    uint32_t npids;
    int32_t pids[MPY_TREE_MAX]; /* orders: all processes of the tree */
    mpy_image_member_t member;  /* PART */
    char text[2048];            /* WRITE: directory; ANSWER: reason */
} mpy_tree_message_t;

/* A pair of connected ends, high and close-on-exec. False: errno says why. */
bool mpy_tree_pair(int ends[2]);
/* `fd`: a descriptor to pass on, or -1. */
bool mpy_tree_send(int to, const mpy_tree_message_t *message, int fd);
/* Waits for one message, at most `ms` (negative: without limit). Returns 1, 0 if time is over, -1 if the other end is
 * closed. *fd (may be NULL): the descriptor that came with it, or -1. */
int mpy_tree_receive(int from, mpy_tree_message_t *message, int *fd, int ms);
#endif
