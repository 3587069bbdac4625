/* objects.h - SHIFT's records of a program's RDMA objects. For every layer above base/, kv/ and requests/.
 *
 * The program holds the provider's own objects, so every verb that we don't know works as usual; our records are found
 * from them (map.h). A *path* is one way to the peer: path 0 is the program's own device on both sides, path p the p-th
 * backup of both sides. A queue pair has a *leg* on each path: leg 0 is the program's, the others are ours. A *link*
 * connects this device to one peer process with a control queue pair on every path.
 *
 * Locks, in the order in which they are taken: device->lock (everything slow: control verbs' records, switching,
 * links), cq->lock, qp->lock, srq->lock (spinlocks; the data verbs in the default state need none of them:
 * slow_path.c). The worker (worker.c, one thread per device) holds device->lock except during verbs on backups and
 * key-value requests. An object that it uses without the lock is `busy`, and is not freed meanwhile.
 *
 * This file has only the records. Each file of functions has a header of its own, or its layer has one.
 */
#ifndef MANAPY_RDMA_OBJECTS_H
#define MANAPY_RDMA_OBJECTS_H

#include "common/map.h"
#include "common/real.h"
#include "common/sections.h"
#include "common/spin.h"
#include "kv/kv.h"
#include "objects/states.h"
#include "requests/rewind.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { SHIFT_PATHS = 4, SHIFT_PSN_MASK = 0xffffff };

typedef struct shift_device shift_device_t;
typedef struct shift_link shift_link_t;

typedef enum shift_kind { SHIFT_PD, SHIFT_MR, SHIFT_CQ, SHIFT_SRQ, SHIFT_QP } shift_kind_t;

/* The head of every recorded object. The worker executes its verbs again on the backups, in any order that works
 * (shadow.c). */
typedef struct shift_object {
    shift_kind_t kind;
    shift_device_t *device;
    struct shift_object *next, *previous; /* all objects of the device, in order of creation */
    bool busy;                            /* the worker uses it without the lock */
    bool waiting;                         /* work on a backup is still to be done for it */
} shift_object_t;

typedef struct shift_pd {
    shift_object_t o;
    struct ibv_pd *pd;
    struct ibv_pd *on[SHIFT_PATHS];
    unsigned users; /* 1, plus one for each parent domain made of it */
} shift_pd_t;

/* The arguments of a region's registration. */
typedef struct shift_memory {
    void *address;
    size_t length;
    uint64_t iova;
    int access;
    /* memory of a device, at `offset` of `fd`. fd is our own copy until the backups have the region; -1: none */
    bool dmabuf;
    int fd;
    uint64_t offset;
} shift_memory_t;

typedef struct shift_mr {
    shift_object_t o;
    shift_pd_t *pd;
    struct ibv_mr *mr;
    shift_memory_t memory;
    struct ibv_mr *on[SHIFT_PATHS];
    bool given_back; /* the backups' registrations were released to make room for the program's */
    bool told;    /* peers can find its keys by this index */
    uint32_t index;
} shift_mr_t;

typedef struct shift_cq {
    shift_object_t o;
    struct ibv_cq *cq;
    int (*poll)(struct ibv_cq *, int, struct ibv_wc *); /* the provider's */
    /* neither `special` nor `noted`: polled completions go to the program unchanged, unless there is an error */
    bool straight;
    bool noted;          /* a queue pair of it keeps a journal in the default state */
    bool special;        /* not all completions come straight from the default queue: see slow_path.c */
    bool settled;        /* all straight polls that began before it was special have ended */
    struct ibv_cq *on[SHIFT_PATHS];
    shift_spin_t lock;
    bool shared;         /* some of its receives belong to shared queues: srq.c */
    bool known;          /* a queue pair of it is recorded */
    bool foreign;        /* none is, and there is a shared queue: others may use that (mlx5dv) */
    uint32_t promised;   /* completions that its queue pairs may have outstanding at once */
    uint64_t gathered;   /* round of the worker in which it was gathered last */
    /* 0, or 1 + solicited_only of the program's last ibv_req_notify_cq that has not had its event */
    int armed;
    int away;            /* queue pairs of it that are not in the default state */
    struct ibv_wc *stash; /* taken from the default queue by polls that met an error among them; not processed yet */
    uint32_t stashed, stash_room;
    struct ibv_wc *ready; /* completions for the program, oldest first */
    uint32_t first, count, room;
    struct ibv_cq_ex *provider; /* extended.c: its functions; NULL: no ibv_start_poll */
    bool reading;               /* a straight section of ibv_start_poll .. ibv_end_poll is in progress */
    bool emulated;              /* the object has our functions, not the provider's */
    pthread_mutex_t polling;    /* held during a section of ours */
    struct ibv_wc current;
    struct ibv_qp *bell; /* completes at once what is posted to it: causes an event */
} shift_cq_t;

typedef struct shift_entry shift_entry_t; /* srq.c: one receive */

/* A shared receive queue on one path. */
typedef struct shift_shared {
    struct ibv_srq *srq;
    uint32_t level; /* receives of the program's that are posted here */
    uint32_t stale; /* older ones that were given up but are still in the provider's queue, before those of `level` */
    uint32_t users; /* queue pairs that receive here */
    struct ibv_qp *tap;
    struct ibv_cq *cq; /* of the tap */
    uint32_t tapping;  /* sends of the tap in progress */
    bool tap_works;    /* it is connected */
    uint64_t tap_again; /* ns: earliest time of the next try */
    bool lacks_memory;  /* some receives use memory that is not registered there, and will not be */
} shift_shared_t;

typedef struct shift_srq {
    shift_object_t o;
    shift_pd_t *pd;
    uint32_t max_wr, max_sge;
    shift_spin_t lock;
    bool direct;   /* posts go directly to path 0: no queue pair receives elsewhere */
    bool passed;   /* the provider gets the program's own receives, not our entries */
    uint32_t away; /* queue pairs that receive on another path */
    shift_shared_t on[SHIFT_PATHS];
    shift_entry_t *unused, *loose, *loose_last;
    uint32_t loosened; /* entries in `loose` */
    struct chunk *chunks;
    struct shift_srq *next; /* next one of the device */
} shift_srq_t;

/* One queue pair of a protected connection on one path. */
typedef struct shift_leg {
    struct ibv_qp *qp;
    uint32_t peer_qpn;
    union ibv_gid peer_gid;
    uint16_t peer_lid;
    uint8_t mtu; /* enum ibv_mtu */
    uint32_t send_psn, recv_psn; /* at the connection's start; later + generation * PSN_STEP (connect.c) */
    uint32_t next_psn;           /* of the next packet to post */
    uint32_t generation, peer_generation; /* epoch of the switch after which it was made ready again */
    bool ready, peer_ready;
    bool early; /* connected before the program had set the attributes of its sends */
    bool fenced; /* in the error state, set by us (or found there): its completions are drained */
    uint32_t lost_in; /* epoch in which it was fenced: both sides make it ready again with this generation */
    bool sentinel_send, sentinel_recv;   /* posted, */
    bool drained_sends, drained_recvs;   /* and have come back */
    /* the RNIC has reported that it takes no more receives of a shared queue for it */
    bool last_reached;
    uint64_t settled;                    /* ns: by this time, completions of a shared receive queue have arrived */
    bool closed;                         /* its further completions are ignored */
} shift_leg_t;

typedef enum shift_phase {
    SHIFT_STEADY,   /* no switch is in progress */
    SHIFT_BROKEN,   /* an error was seen: the worker must fence the leg */
    SHIFT_CLEARING, /* the leg will be fenced as soon as no thread is in a data verb on it */
    SHIFT_DRAINING, /* fenced; completions still arrive */
    SHIFT_WAITING,  /* our progress was sent; we wait for the peer's */
    SHIFT_RENEWING, /* the same leg is ready again here; we wait for the peer's */
} shift_phase_t;

/* Does the send queue advance? watch.c */
typedef struct shift_watch {
    uint64_t at;     /* its last known position, */
    uint32_t epoch;  /* in this epoch, */
    bool answered;   /* and the peer has said that it has receives; */
    uint64_t since;  /* ns, since when */
    uint64_t asked;  /* ns, when the peer was asked */
} shift_watch_t;

/* Times of the steps of a queue pair's last switch, ns (shift_now); 0: not yet. */
typedef struct shift_times {
    uint64_t begun;    /* an error was seen here, or the peer had begun */
    uint64_t fenced;   /* the leg is in the error state */
    uint64_t drained;  /* all its completions have arrived */
    uint64_t told;     /* the receives are on the new leg, and our progress has been sent */
    uint64_t answered; /* the peer's progress has arrived; this may be before our own is sent */
    uint64_t replayed; /* what was outstanding is posted on the new leg */
    uint64_t flowing;  /* the first completion on the new leg */
} shift_times_t;

typedef struct shift_qp { /* starts at a cache line; a straight post uses only this line and the next */
    shift_object_t o;
    struct ibv_qp *qp;
    int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **); /* the provider's */
    int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    bool straight; /* posts use only the provider: `plain`, or `direct` and `rewinds` */
    bool plain;    /* can't be protected */
    uint64_t posted, bytes; /* of sends, if they were posted one by one: post.c */
    shift_pd_t *pd;
    shift_cq_t *send_cq, *recv_cq;
    shift_srq_t *srq; /* NULL: it has receives of its own */
    int receives_on;  /* path whose shared queue the peer sends to */
    bool peer_shares; /* the peer receives from a shared queue */
    bool peer_takes_writes; /* of this queue pair */
    const shift_rewind_t *rewind; /* of leg 0; NULL: its queues can't be read */
    void *queues;                 /* the rewind's */
    uint32_t room_sends, room_recvs; /* what it has added to `promised` of its completion queues */
    bool rewinds; /* it keeps no journals in the default state */
    /* what is outstanding on leg 0 is only in the provider's queues; the journals hold requests posted since the switch
     * began */
    bool unread;
    struct ibv_wc *errors; /* taken from leg 0 since the switch began; the program hasn't got them yet: readback.c */
    uint32_t errors_count, errors_room;
    enum ibv_qp_state state; /* the state that the program has set */
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr; /* the attributes that the program has set, over all ibv_modify_qp */
    int attr_mask;
    struct ibv_gid_entry gid; /* the program's choice, as it was at that time; index: gids.c */
    bool has_gid;

    shift_spin_t lock;
    bool direct; /* posts go directly to leg 0: no switch in progress, default state */
    shift_states_t states;
    shift_phase_t phase;
    shift_journal_t sends, recvs;
    uint64_t posted_sends, posted_recvs; /* sequence number of the first entry that is not on the leg in use */
    shift_leg_t legs[SHIFT_PATHS];
    int path, target;  /* path in use; path to use after the switch */
    bool moved;        /* moved by command: doesn't return by itself */
    uint32_t epoch;    /* number of the last switch begun */
    shift_link_t *link;
    bool published, linked;
    struct shift_qp *next_active, *previous_active;
    bool active; /* the worker must handle it: it is away, or has lost a leg */
    shift_watch_t watch;
    uint32_t overtaken; /* number of signaled requests that left the journal before they were polled */

    /* what went wrong on the leg in use, if its completions say it: the oldest outstanding send gets this if the
     * connection is lost */
    enum ibv_wc_status trouble;
    bool peer_fenced;      /* the peer's progress of this epoch has arrived */
    /* and that of the next epoch: messages may overtake each other, and the peer may have found us first */
    bool has_early;
    uint32_t early_epoch, early_a, early_b;
    uint32_t peer_psn;
    bool peer_unknown;     /* the peer's RNIC didn't tell peer_psn */
    uint64_t since;        /* ns, start of this phase */
    uint64_t next_look;    /* ns, when to search for its peer in the store */
    shift_times_t times;
    bool peer_sunk, sunk_told, marker_posted, marker_done;
    bool cut_off; /* no path was up during this switch, and this was reported */
    bool washing; /* the first request on a leg that was reset is in progress: switch.c */
    uint64_t lacks_key; /* ns, since when a request waits for a key on the backup: of the peer's memory, or of ours */
    struct ibv_qp_ex *provider; /* extended.c: its functions; NULL: no ibv_wr_* */
    bool writing;               /* a straight section of ibv_wr_start .. ibv_wr_complete is in progress */
    bool uncounted;             /* there was such a section, so `posted` and `bytes` are too small */
    bool drafted;               /* the object has our functions, not the provider's */
    pthread_mutex_t drafting;   /* held during a section of ours */
    shift_journal_t draft;
    struct ibv_send_wr spare;
    int draft_error;
    uint32_t switches, returns;
    uint64_t completed; /* counts.c: the largest number of completed sends seen so far */
    uint64_t recorded; /* traffic.c: sum of the counts in its last record */
} __attribute__((aligned(64))) shift_qp_t;

/* Counts of sends. known: false if they are not counted (uncounted). bytes: of those posted. */
typedef struct shift_counts {
    bool known;
    uint64_t posted, completed, bytes;
} shift_counts_t;

/* One of the host's RNICs as a path. For path 0 this is a second context of the program's device. */
typedef struct shift_path {
    char name[64];
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    struct ibv_pd *pd;
    struct ibv_cq *cq;    /* of the control queue pairs of the links */
    uint32_t promised;    /* completions that they may have outstanding at once */
    uint8_t port;
    struct ibv_gid_entry gid; /* of RoCE; with the last known index: gids.c */
    uint16_t lid;
    bool ethernet;
    enum ibv_mtu mtu;
    bool usable;  /* opened, with a port and a GID */
    bool port_up;
    uint32_t traced; /* its index in the trace's side table */
    shift_map_t qps; /* number of a leg -> shift_qp_t (path 0: the program's own) */
} shift_path_t;

struct shift_device {
    struct ibv_context *context;
    struct ibv_context_ops ops;                    /* the provider's */
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
    struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
    uint64_t id; /* random; names this context to its peers */
    uint64_t longest_wait; /* ns, how long connections wait while no path works */
    bool rxe;
    /* it has IBV_EVENT_QP_LAST_WQE_REACHED: all RNICs do, but not every Soft-RoCE (Linux 6.1 doesn't) */
    bool tells_last;
    int paths; /* 1 + number of configured backups */
    shift_path_t path[SHIFT_PATHS];

    pthread_mutex_t lock;
    pthread_cond_t idle; /* signaled when an object is no longer busy */
    shift_object_t *objects, *last;
    shift_object_t *cursor; /* shadow.c: where it continues */
    shift_qp_t *active;
    shift_qp_t *next_step;  /* the next one in the worker's round */
    shift_srq_t *srqs;
    bool stashed;           /* some completion queue has a stash */
    uint64_t round;         /* number of the worker's round */
    shift_map_t mrs; /* lkey -> shift_mr_t; with the lock held */
    uint32_t mrs_told;
    struct shift_withdrawal *withdrawn, *withdrawn_last; /* keys.c */
    uint64_t next_connect;                               /* ns, of the next try to connect to the agent */
    uint64_t found;                                      /* ns, when a peer was last found */
    uint64_t next_flush;                                 /* ns, of the next flush of recorded keys; */
    int unsaid;                                          /* the number of keys left then, or the error */
    uint64_t next_watch;                                 /* ns, watch.c */
    shift_link_t *links;
    shift_kv_t *kv;
    struct ibv_pd *pd; /* of the bells: the program can release all of its own */
    pthread_t worker;
    bool worker_runs, closing;
    int wake; /* eventfd */
    bool work; /* objects wait for their shadow verbs */
    struct {
        char json[768];
    } events[1024]; /* for the agent: events.c */
    uint32_t event_first, event_next;
    struct mpy_trace_ring *ring; /* traffic.c; NULL: not recorded (yet) */
};

extern shift_map_t shift_devices; /* ibv_context -> shift_device_t */
extern shift_map_t shift_pds;     /* ibv_pd -> shift_pd_t */
extern shift_map_t shift_qps;     /* ibv_qp -> shift_qp_t */
extern shift_map_t shift_cqs;     /* ibv_cq -> shift_cq_t */
extern shift_map_t shift_srqs;    /* ibv_srq -> shift_srq_t */

static inline const struct ibv_context_ops *shift_provider_verbs(const struct ibv_context *context) {
    return &((const shift_device_t *)shift_map_get(&shift_devices, (uintptr_t)context))->ops;
}

static inline bool shift_signaled(const shift_qp_t *q, const shift_send_t *e) {
    return q->init.sq_sig_all || (e->wr.send_flags & IBV_SEND_SIGNALED);
}

static inline bool shift_stashed(const shift_cq_t *c) { return __atomic_load_n(&c->stashed, __ATOMIC_RELAXED) > 0; }

#endif
