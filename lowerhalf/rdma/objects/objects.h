/* objects.h - what SHIFT keeps of a program's RDMA objects. For every layer above base/, kv/ and requests/.
 *
 * The program holds the provider's own objects, so every verb that we don't know of works as usual; ours are found from
 * theirs (map.h). A *path* is one way to the peer: path 0 is the program's own device on both sides, path p the p-th
 * backup of both sides. A queue pair has a *leg* on each path: leg 0 is the program's, the others are ours. A *link*
 * joins this device to one peer process with a control queue pair on every path.
 *
 * Locks, in the order in which they are taken: device->lock (everything slow: control verbs' records, switching,
 * links), cq->lock, qp->lock, srq->lock (spinlocks, which the data verbs in the default state do without: away.c). The
 * worker (worker.c, one thread per device) holds device->lock except for verbs on backups and for key-value requests;
 * an object it works on without the lock is `busy`, and is not freed meanwhile.
 *
 * Here are the records only. Each file of functions has a header of its own, or its layer has one.
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

/* The head of every recorded object. Its verbs are executed again on the backups by the worker, in any order that works
 * (shadow.c). */
typedef struct shift_object {
    shift_kind_t kind;
    shift_device_t *device;
    struct shift_object *next, *previous; /* all of the device, in order of creation */
    bool busy;                            /* the worker uses it without the lock */
    bool waiting;                         /* something of it is still to be done on a backup */
} shift_object_t;

typedef struct shift_pd {
    shift_object_t o;
    struct ibv_pd *pd;
    struct ibv_pd *on[SHIFT_PATHS];
    unsigned users; /* 1, and one for each parent domain made of it */
} shift_pd_t;

/* What was asked for with a region. */
typedef struct shift_memory {
    void *address;
    size_t length;
    uint64_t iova;
    int access;
    bool dmabuf; /* of a device: at `offset` of `fd`, which is a copy of ours until the backups have it. -1: none */
    int fd;
    uint64_t offset;
} shift_memory_t;

typedef struct shift_mr {
    shift_object_t o;
    shift_pd_t *pd;
    struct ibv_mr *mr;
    shift_memory_t memory;
    struct ibv_mr *on[SHIFT_PATHS];
    bool given_back; /* the backups' were in the way of the program's own */
    bool told;    /* peers can find its keys, by this index */
    uint32_t index;
} shift_mr_t;

typedef struct shift_cq {
    shift_object_t o;
    struct ibv_cq *cq;
    int (*poll)(struct ibv_cq *, int, struct ibv_wc *); /* the provider's */
    /* what polls find goes to the program as it is, unless there is an error: not `special`, and not `noted` */
    bool straight;
    bool noted;          /* some queue pair of it keeps a journal in the default state */
    bool special;        /* not all completions come straight from the default queue: see away.c */
    bool settled;        /* no straight poll that began before it was special is still in progress */
    struct ibv_cq *on[SHIFT_PATHS];
    shift_spin_t lock;
    bool shared;         /* some of its receives are of shared queues: srq.c */
    uint32_t promised;   /* completions that its queue pairs may have outstanding at once */
    uint64_t gathered;   /* round of the worker in which it was, last */
    int armed;           /* 0, or 1 + solicited_only of the program's last ibv_req_notify_cq that had no event yet */
    int away;            /* queue pairs of it that are not in the default state */
    struct ibv_wc *stash; /* taken from the default queue by polls that met an error among them, not looked at yet */
    uint32_t stashed, stash_room;
    struct ibv_wc *ready; /* completions that the program is still to get, oldest first */
    uint32_t first, count, room;
    struct ibv_cq_ex *provider; /* extended.c: its functions; NULL: no ibv_start_poll */
    bool reading;               /* a straight section of ibv_start_poll .. ibv_end_poll is in progress */
    bool emulated;              /* in the object are our functions, not the provider's */
    pthread_mutex_t polling;    /* one of ours is */
    struct ibv_wc current;
    struct ibv_qp *bell; /* completes at once whatever is posted: makes an event */
} shift_cq_t;

typedef struct shift_entry shift_entry_t; /* srq.c: one receive */

/* A shared receive queue on one path. */
typedef struct shift_shared {
    struct ibv_srq *srq;
    uint32_t level; /* receives of the program's that are posted here */
    uint32_t stale; /* older ones, given up but still in the provider's queue: before those of `level` */
    uint32_t users; /* queue pairs that receive here */
    struct ibv_qp *tap;
    struct ibv_cq *cq; /* of the tap */
    uint32_t tapping;  /* sends of the tap in progress */
    bool tap_works;    /* is connected */
    uint64_t tap_again; /* ns: not before this */
} shift_shared_t;

typedef struct shift_srq {
    shift_object_t o;
    shift_pd_t *pd;
    uint32_t max_wr, max_sge;
    shift_spin_t lock;
    bool direct;   /* posts go straight to path 0: nobody receives elsewhere */
    uint32_t away; /* queue pairs that receive on another path */
    shift_shared_t on[SHIFT_PATHS];
    shift_entry_t *unused, *loose, *loose_last;
    uint32_t loosened; /* entries in `loose` */
    struct chunk *chunks;
    struct shift_srq *next; /* of the device */
} shift_srq_t;

/* One queue pair of a protected connection on one path. */
typedef struct shift_leg {
    struct ibv_qp *qp;
    uint32_t peer_qpn;
    union ibv_gid peer_gid;
    uint16_t peer_lid;
    uint8_t mtu; /* enum ibv_mtu */
    uint32_t send_psn, recv_psn; /* at the connection's start; + generation * PSN_STEP (connect.c) afterwards */
    uint32_t next_psn;           /* of the next packet to be posted */
    uint32_t generation, peer_generation; /* epoch of the switch after which it was made ready again */
    bool ready, peer_ready;
    bool fenced; /* in the error state by our will (or found there): its completions are drained */
    uint32_t lost_in; /* epoch in which it was fenced: the generation in which both sides make it ready again */
    bool sentinel_send, sentinel_recv;   /* posted, */
    bool drained_sends, drained_recvs;   /* and come back */
    bool last_reached;                   /* the RNIC says that it takes no more receives of a shared queue for it */
    uint64_t settled;                    /* ns: by when a shared receive queue's completions have come at the latest */
    bool closed;                         /* whatever it still completes is ignored */
} shift_leg_t;

typedef enum shift_phase {
    SHIFT_STEADY,   /* nothing is going on */
    SHIFT_BROKEN,   /* an error was seen: to be fenced by the worker */
    SHIFT_CLEARING, /* to be fenced as soon as no thread is in a data verb on it any more */
    SHIFT_DRAINING, /* fenced, completions still coming */
    SHIFT_WAITING,  /* our progress is told, the peer's is awaited */
    SHIFT_RENEWING, /* the same leg is ready again here, the peer's is awaited */
} shift_phase_t;

/* Does the send queue get on? watch.c */
typedef struct shift_watch {
    uint64_t at;     /* where it was, */
    uint32_t epoch;  /* in this one, */
    bool answered;   /* and the peer has said that it has receives; */
    uint64_t since;  /* ns, from when */
    uint64_t asked;  /* ns, the peer was */
} shift_watch_t;

/* When the steps of a queue pair's last switch were done, ns (shift_now); 0: not yet. */
typedef struct shift_times {
    uint64_t begun;    /* an error was seen here, or the peer had begun */
    uint64_t fenced;   /* the leg is in the error state */
    uint64_t drained;  /* its completions are all here */
    uint64_t told;     /* the receives are on the new leg, our progress is on its way */
    uint64_t answered; /* the peer's progress is here; may be before our own is told */
    uint64_t replayed; /* what was outstanding is posted on the new leg */
    uint64_t flowing;  /* the first completion on it */
} shift_times_t;

typedef struct shift_qp { /* begins at a cache line, and a straight post needs only that and the next */
    shift_object_t o;
    struct ibv_qp *qp;
    int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **); /* the provider's */
    int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    bool straight; /* posts are the provider's alone: `plain`, or `direct` and `rewinds` */
    bool plain;    /* can't be protected */
    uint64_t posted, bytes; /* sends, as far as they were posted one by one: post.c */
    shift_pd_t *pd;
    shift_cq_t *send_cq, *recv_cq;
    shift_srq_t *srq; /* NULL: it has receives of its own */
    int receives_on;  /* path whose shared queue its peer sends to */
    bool peer_shares; /* the peer receives from a shared queue */
    const shift_rewind_t *rewind; /* of leg 0; NULL: its queues can't be read */
    void *queues;                 /* the rewind's */
    bool rewinds; /* it keeps no journals in the default state */
    /* what is outstanding on leg 0 is only in the provider's queues; the journals hold what was posted since the switch
     * began */
    bool unread;
    struct ibv_wc *errors; /* taken from leg 0 since the switch began, of which the program hasn't heard: readback.c */
    uint32_t errors_count, errors_room;
    enum ibv_qp_state state; /* that the program has brought it to */
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr; /* what the program set, over all ibv_modify_qp */
    int attr_mask;
    struct ibv_gid_entry gid; /* the program's choice, as it was when it made it; index: gids.c */
    bool has_gid;

    shift_spin_t lock;
    bool direct; /* posts go to leg 0 at once: no switch in progress, default state */
    shift_states_t states;
    shift_phase_t phase;
    shift_journal_t sends, recvs;
    uint64_t posted_sends, posted_recvs; /* sequence of the first entry that is not on the leg in use */
    shift_leg_t legs[SHIFT_PATHS];
    int path, target;  /* in use; to be used after the switch */
    bool moved;        /* away by command: doesn't go back by itself */
    uint32_t epoch;    /* of the last switch begun */
    shift_link_t *link;
    bool published, linked;
    struct shift_qp *next_active, *previous_active;
    bool active; /* the worker has something to do for it: it is away, or a leg of it is lost */
    shift_watch_t watch;
    uint32_t overtaken; /* signaled requests that left the journal before they were polled */

    struct ibv_wc trouble; /* the error completion that began the switch, should the program have to see it */
    bool has_trouble;
    bool peer_fenced;      /* the peer's progress of this epoch is here */
    /* and that of the next one: messages may overtake each other, and the peer may have found us first */
    bool has_early;
    uint32_t early_epoch, early_a, early_b;
    uint32_t peer_psn;
    uint64_t since;        /* ns, begin of this phase */
    uint64_t next_look;    /* ns, for its peer in the store */
    shift_times_t times;
    bool peer_sunk, sunk_told, marker_posted, marker_done;
    bool cut_off; /* no path was up during this switch, and that was told */
    bool washing; /* the first request on a leg that was reset is in progress: switch.c */
    uint32_t missing_rkey; /* a key of the peer's that isn't known yet */
    struct ibv_qp_ex *provider; /* extended.c: its functions; NULL: no ibv_wr_* */
    bool writing;               /* a straight section of ibv_wr_start .. ibv_wr_complete is in progress */
    bool uncounted;             /* there has been one: `posted` and `bytes` are too small */
    bool drafted;               /* in the object are our functions, not the provider's */
    pthread_mutex_t drafting;   /* one of ours is */
    shift_journal_t draft;
    struct ibv_send_wr spare;
    int draft_error;
    uint32_t switches, returns;
    uint64_t completed; /* counts.c: the most sends that were known to have completed */
    uint64_t recorded; /* traffic.c: the sum of the counts in its last record */
} __attribute__((aligned(64))) shift_qp_t;

/* Of sends. known: false: nobody has counted them (uncounted). bytes: of those posted. */
typedef struct shift_counts {
    bool known;
    uint64_t posted, completed, bytes;
} shift_counts_t;

/* One of the host's RNICs as a path. on path 0 this is a second context of the program's device. */
typedef struct shift_path {
    char name[64];
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    struct ibv_pd *pd;
    struct ibv_cq *cq; /* of the links */
    uint8_t port;
    struct ibv_gid_entry gid; /* of RoCE; its index as it was last seen: gids.c */
    uint16_t lid;
    bool ethernet;
    enum ibv_mtu mtu;
    bool usable;  /* opened, with a port and a GID */
    bool port_up;
    uint32_t traced; /* its place in the trace's side table */
    shift_map_t qps; /* number of a leg -> shift_qp_t (path 0: the program's own) */
} shift_path_t;

struct shift_device {
    struct ibv_context *context;
    struct ibv_context_ops ops;                    /* the provider's */
    struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
    struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
    struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
    uint64_t id; /* random; names this context to its peers */
    uint64_t longest_wait; /* ns, of connections while no path works */
    bool rxe;
    /* it has IBV_EVENT_QP_LAST_WQE_REACHED: all RNICs do, but not every Soft-RoCE (Linux 6.1 hasn't) */
    bool tells_last;
    int paths; /* 1 + number of backups named */
    shift_path_t path[SHIFT_PATHS];

    pthread_mutex_t lock;
    pthread_cond_t idle; /* an object is no longer busy */
    shift_object_t *objects, *last;
    shift_object_t *cursor; /* shadow.c: where it goes on */
    shift_qp_t *active;
    shift_qp_t *next_step;  /* of these, in the worker's round */
    shift_srq_t *srqs;
    bool stashed;           /* some completion queue has a stash */
    uint64_t round;         /* of the worker */
    shift_map_t mrs; /* lkey -> shift_mr_t */
    uint32_t mrs_told;
    struct shift_withdrawal *withdrawn, *withdrawn_last; /* keys.c */
    uint64_t next_connect;                               /* ns, to the agent */
    uint64_t found;                                      /* ns, when a peer was, last */
    uint64_t next_flush;                                 /* ns, of keys that were noted; */
    int unsaid;                                          /* of which so many are left, or why they are */
    uint64_t next_watch;                                 /* ns, watch.c */
    shift_link_t *links;
    shift_kv_t *kv;
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

static inline const struct ibv_context_ops *shift_provider_verbs(const struct ibv_context *context)
{
    return &((const shift_device_t *)shift_map_get(&shift_devices, (uintptr_t)context))->ops;
}

static inline bool shift_signaled(const shift_qp_t *q, const shift_send_t *e) {
    return q->init.sq_sig_all || (e->wr.send_flags & IBV_SEND_SIGNALED);
}

static inline bool shift_stashed(const shift_cq_t *c) { return __atomic_load_n(&c->stashed, __ATOMIC_RELAXED) > 0; }

#endif
