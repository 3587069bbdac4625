/* links.h - control messages between one device of this process and its peer process, on whatever path is up.
 *
 * One control queue pair per path. Messages are small SENDs: the receiver's worker is woken by a CQ event (SHIFT paper,
 * section 3.1, C#3; there a WRITE_WITH_IMM on the backup queue pair itself: with a queue pair of its own one message
 * may carry more than 32 bits, its receives never mix with the program's, and the number of posted receives doesn't
 * grow with the number of queue pairs; what several of them have to say goes in one SEND). A message is kept until its
 * completion says that the peer's RNIC has it; if the path breaks before, it goes again on another, so messages may
 * arrive twice, or out of order, and must be idempotent.
 *
 * A path that was lost is probed until it works again (when: backoff.h). For that the control queue pairs of both sides
 * begin again, with the packet sequence numbers of an agreed *generation*: the greatest that either side has wished
 * for. Each tells the other the generation at which its own is ready; when they are equal, the side with the smaller id
 * writes nothing to the other, and its completion says that the path is up. While no path is up, what is told goes
 * through the key-value store (`link/<id>/<peer's id>`), where each looks once a second otherwise: it may not know yet
 * that it has been cut off.
 */
#ifndef MANAPY_RDMA_LINK_H
#define MANAPY_RDMA_LINK_H

#include "links/backoff.h"
#include "objects/objects.h"

enum { SHIFT_LINK_DEPTH = 64 };

typedef enum shift_message_type {
    SHIFT_FENCE = 1,   /* my leg is fenced: a = rq_psn of it, b = path I left << 8 | path I go to */
    SHIFT_GONE,        /* no such queue pair here (any more) */
    SHIFT_LEG_READY,   /* my leg on path a is ready, generation b */
    SHIFT_SUNK,        /* my send queue is empty for the return */
    SHIFT_ASK,         /* are there receives? my send queue doesn't get on */
    SHIFT_RECEIVABLE,  /* there are */
    SHIFT_PATH_DOWN,   /* path a does not work (as I see it) */
    SHIFT_PATH_READY,  /* my control queue pair of path a is ready, generation b; make yours so */
    SHIFT_PATH_UP,     /* path a, generation b, works */
} shift_message_type_t;

typedef struct shift_message {
    uint8_t type;
    uint8_t reserved[3];
    uint32_t epoch;
    uint32_t from_qpn, to_qpn; /* the program's queue pairs, sender's and receiver's */
    uint32_t a, b;
} shift_message_t;

typedef void shift_receive_t(shift_link_t *l, const shift_message_t *m);

struct slot; /* links.c */

typedef struct shift_link_leg {
    struct ibv_qp *qp;
    uint32_t peer_qpn;
    union ibv_gid peer_gid;
    uint16_t peer_lid;
    bool connected, up;
    bool broken;                          /* in the error state: to begin again */
    bool told;                            /* the peer, of the generation */
    bool probing;                         /* an empty write is in progress */
    uint32_t generation, peer_generation; /* at which it is ready; at which the peer's is, as far as we know */
    uint64_t next_begin, next_probe;      /* ns, not before that */
    shift_backoff_t backoff;              /* of probes, by the side that probes */
    struct slot *slots;
    struct ibv_mr *mr;
} shift_link_leg_t;

struct shift_link {
    shift_device_t *device;
    shift_link_t *next;
    uint64_t peer; /* id of the peer's device */
    shift_receive_t *receive; /* messages of queue pairs */
    bool published, connected;
    bool gone;                     /* the peer's entry has vanished from the store */
    uint64_t dead_since;           /* ns, no path is up; 0: one is */
    uint64_t next_look;            /* ns, at the peer's entry */
    shift_link_leg_t on[SHIFT_PATHS];
    struct outgoing *out, *out_last; /* that wait to be sent */
    uint32_t queued;                 /* messages, ever */
    uint32_t switching;              /* queue pairs of it in the midst of a switch */
    uint64_t answered;               /* ns, by the peer to one of them, last; or when the first began */
    shift_map_t rkeys; /* the peer's default rkey -> uint32_t[SHIFT_PATHS] */
    uint32_t rkeys_known;
    uint32_t rkeys_more; /* to ask for next time, minus 1 */
    uint64_t next_rkeys; /* ns, when to ask for more; 0: now */
};

/* Makes it, too; NULL: no memory. `receive` gets the messages of queue pairs. The caller names it, because it is a
 * function of failover/, which is above. */
shift_link_t *shift_link_find(shift_device_t *d, uint64_t peer, shift_receive_t *receive);
void shift_links_free(shift_device_t *d);
void shift_link_step(shift_link_t *l);                          /* by the worker, lock held: set-up, probes, keys */
/* soon: when there are several, or at the next flush */
void shift_link_send(shift_link_t *l, const shift_message_t *m);
void shift_link_flush(shift_link_t *l);                          /* by the worker, at the end of each round */
void shift_link_poll(shift_device_t *d, int path);
void shift_link_down(shift_link_t *l, int path, bool tell);
bool shift_link_alive(const shift_link_t *l); /* a path is up, or the first is still to come */
bool shift_link_lost(const shift_link_t *l);  /* none has been for so long that its connections are given up */
const uint32_t *shift_link_rkey(shift_link_t *l, uint32_t rkey);

#endif
