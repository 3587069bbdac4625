/* links.h - control messages between one device of this process and its peer process, on any path that is up.
 *
 * There is one control queue pair per path. Messages are small SENDs: a CQ event wakes the receiver's worker (SHIFT
 * paper, section 3.1, C#3). The paper uses a WRITE_WITH_IMM on the backup queue pair itself. With a queue pair of its
 * own, one message may carry more than 32 bits, its receives never mix with the program's, the number of posted
 * receives doesn't grow with the number of queue pairs, and messages of several queue pairs go in one SEND. A message
 * is kept until its completion says that the peer's RNIC has it. If the path breaks before, it is sent again on another
 * path. So messages may arrive twice, or out of order, and must be idempotent.
 *
 * A lost path is probed until it works again (when: backoff.h). For that, the control queue pairs of both sides start
 * again, with the packet sequence numbers of an agreed *generation*: the greatest that either side has proposed. Each
 * side tells the other the generation at which its own queue pair is ready. When they are equal, the side with the
 * smaller id makes an empty write to the other, and its completion says that the path is up. While no path is up, these
 * messages go through the key-value store (`link/<id>/<peer's id>`). Otherwise each side queries the store once a
 * second, because it may not know yet that it has been cut off.
 */
#ifndef MANAPY_RDMA_LINK_H
#define MANAPY_RDMA_LINK_H

#include "links/backoff.h"
#include "objects/objects.h"

enum { SHIFT_LINK_DEPTH = 64 };

typedef enum shift_message_type {
    /* my leg is fenced: a = rq_psn of it, b = path I left << 8 | path I go to; b has two flags, too: this is a command;
     * a is unknown */
    SHIFT_FENCE = 1,
    SHIFT_GONE,        /* no such queue pair exists here (any more) */
    SHIFT_LEG_READY,   /* my leg on path a is ready, generation b */
    SHIFT_SUNK,        /* my send queue is empty, ready for the return */
    SHIFT_ASK,         /* are receives posted? my send queue does not advance */
    SHIFT_RECEIVABLE,  /* receives are posted */
    SHIFT_PATH_DOWN,   /* path a does not work (as seen from here) */
    SHIFT_PATH_READY,  /* my control queue pair of path a is ready, generation b; make yours ready */
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
    bool worked;                          /* something has arrived, there or here */
    bool broken;                          /* in the error state: must start again */
    bool told;                            /* the peer has been told the generation */
    bool probing;                         /* an empty write is in progress */
    uint32_t generation, peer_generation; /* at which it is ready; at which the peer's is, as far as known */
    uint64_t next_begin, next_probe;      /* ns, not before that */
    shift_backoff_t backoff;              /* of probes, by the side that probes */
    struct slot *slots;
    struct ibv_mr *mr;
} shift_link_leg_t;

struct shift_link {
    shift_device_t *device;
    shift_link_t *next;
    uint64_t peer; /* id of the peer's device */
    shift_receive_t *receive; /* gets messages of queue pairs */
    bool published, connected;
    bool gone;                     /* the peer's entry has disappeared from the store */
    uint64_t dead_since;           /* ns, when the last path was lost; 0: a path is up */
    uint64_t next_look;            /* ns, of the next query of the peer's entry */
    shift_link_leg_t on[SHIFT_PATHS];
    struct outgoing *out, *out_last; /* messages that wait to be sent */
    uint32_t queued;                 /* total number of messages so far */
    uint32_t switching;              /* queue pairs of the link that are switching */
    uint64_t answered;               /* ns, the peer's last answer to one of them; or when the first began */
    shift_map_t rkeys; /* the peer's default rkey -> uint32_t[SHIFT_PATHS] */
    uint32_t rkeys_known;
    uint32_t rkeys_more; /* number to request next time, minus 1 */
    uint64_t next_rkeys; /* ns, when to request more; 0: now */
    uint64_t missed;     /* ns, when this was last set to 0 because one was missing */
};

/* Finds the link or creates it. NULL: no memory. `receive` gets the messages of queue pairs. The caller passes it,
 * because it is a function of failover/, a higher layer. */
shift_link_t *shift_link_find(shift_device_t *d, uint64_t peer, shift_receive_t *receive);
void shift_links_free(shift_device_t *d);
/* called by the worker, lock held: set-up, probes, keys */
void shift_link_step(shift_link_t *l);
/* sends soon: when there are several, or at the next flush */
void shift_link_send(shift_link_t *l, const shift_message_t *m);
void shift_link_flush(shift_link_t *l);                          /* called by the worker at the end of each round */
void shift_link_poll(shift_device_t *d, int path);
void shift_link_down(shift_link_t *l, int path, bool tell);
bool shift_link_alive(const shift_link_t *l); /* a path is up, or the first is not yet connected */
bool shift_link_lost(const shift_link_t *l);  /* no path has been up for so long that its connections are given up */

/* rkeys.c. NULL: not known yet, but asked for */
const uint32_t *shift_link_rkey(shift_link_t *l, uint32_t rkey);
void shift_rkeys_learn(shift_link_t *l); /* for links.c */

#endif
