/* shift.h - what SHIFT keeps of a program's RDMA objects.
 *
 * The program holds the provider's own objects, so every verb that we don't know of works as ever; ours are found from theirs (map.h).
 * A *path* is one way to the peer: path 0 is the program's own device on both sides, path p the p-th backup of both sides. A queue pair has a *leg* on
 * each path: leg 0 is the program's, the others are ours. A *link* joins this device to one peer process with a control queue pair on every path.
 *
 * Locks, in the order in which they are taken: device->lock (everything slow: control verbs' records, switching, links), cq->lock, qp->lock,
 * srq->lock (spinlocks, which the data verbs in the default state do without: away.c). The worker (worker.c, one thread per device) holds device->lock but
 * for verbs on backups and for key-value
 * requests; an object it works on without the lock is `busy`, and is not freed meanwhile.
 */
#ifndef MANAPY_RDMA_SHIFT_H
#define MANAPY_RDMA_SHIFT_H

#include "kv.h"
#include "map.h"
#include "real.h"
#include "rewind.h"
#include "sections.h"
#include "states.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

enum { SHIFT_PATHS = 4, SHIFT_PSN_MASK = 0xffffff };

typedef struct shift_device shift_device_t;
typedef struct shift_link shift_link_t;

typedef struct shift_spin {
    int held;
} shift_spin_t;

static inline void shift_spin_lock(shift_spin_t *s)
{
    for (int n = 0; __atomic_exchange_n(&s->held, 1, __ATOMIC_ACQUIRE); n++)
        n < 100 ? __builtin_ia32_pause() : (void)sched_yield();
}

static inline void shift_spin_unlock(shift_spin_t *s) { __atomic_store_n(&s->held, 0, __ATOMIC_RELEASE); }

typedef enum shift_kind { SHIFT_PD, SHIFT_MR, SHIFT_CQ, SHIFT_SRQ, SHIFT_QP } shift_kind_t;

/* The head of every recorded object. Its verbs are executed again on the backups by the worker, in any order that works (shadow.c). */
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
    bool straight;       /* what polls find goes to the program as it is, unless there is an error: not `special`, and not `noted` */
    bool noted;          /* some queue pair of it keeps a journal in the default state */
    bool special;        /* not all completions come straight from the default queue: see away.c */
    bool settled;        /* no straight poll that began before it was special is still under way */
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
    bool reading;               /* a straight section of ibv_start_poll .. ibv_end_poll is under way */
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
    uint32_t tapping;  /* sends of the tap under way */
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
    uint32_t send_psn, recv_psn; /* at the connection's start; + generation * PSN_STEP (shadow.c) afterwards */
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
    bool unread; /* what is outstanding on leg 0 is only in the provider's queues; the journals hold what was posted since the switch began */
    struct ibv_wc *errors; /* taken from leg 0 since the switch began, of which the program hasn't heard: readback.c */
    uint32_t errors_count, errors_room;
    enum ibv_qp_state state; /* that the program has brought it to */
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr; /* what the program set, over all ibv_modify_qp */
    int attr_mask;
    struct ibv_gid_entry gid; /* the program's choice, as it was when it made it; index: gids.c */
    bool has_gid;

    shift_spin_t lock;
    bool direct; /* posts go to leg 0 at once: no switch under way, default state */
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
    bool has_early;        /* and that of the next one: messages may overtake each other, and the peer may have found us first */
    uint32_t early_epoch, early_a, early_b;
    uint32_t peer_psn;
    uint64_t since;        /* ns, begin of this phase */
    uint64_t next_look;    /* ns, for its peer in the store */
    shift_times_t times;
    bool peer_sunk, sunk_told, marker_posted, marker_done;
    bool cut_off; /* no path was up during this switch, and that was told */
    bool washing; /* the first request on a leg that was reset is under way: switch.c */
    uint32_t missing_rkey; /* a key of the peer's that isn't known yet */
    struct ibv_qp_ex *provider; /* extended.c: its functions; NULL: no ibv_wr_* */
    bool writing;               /* a straight section of ibv_wr_start .. ibv_wr_complete is under way */
    bool uncounted;             /* there has been one: `posted` and `bytes` are too small */
    bool drafted;               /* in the object are our functions, not the provider's */
    pthread_mutex_t drafting;   /* one of ours is */
    shift_journal_t draft;
    struct ibv_send_wr spare;
    int draft_error;
    uint32_t switches, returns;
    uint64_t completed; /* report.c: the most sends that were known to have completed */
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
    bool tells_last; /* it has IBV_EVENT_QP_LAST_WQE_REACHED: all RNICs do, but not every Soft-RoCE (Linux 6.1 hasn't) */
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
    } events[1024]; /* for the agent: report.c */
    uint32_t event_first, event_next;
    struct mpy_trace_ring *ring; /* traffic.c; NULL: not recorded (yet) */
};

extern shift_map_t shift_devices; /* ibv_context -> shift_device_t */
extern shift_map_t shift_pds;     /* ibv_pd -> shift_pd_t */
extern shift_map_t shift_qps;     /* ibv_qp -> shift_qp_t */
extern shift_map_t shift_cqs;     /* ibv_cq -> shift_cq_t */
extern shift_map_t shift_srqs;    /* ibv_srq -> shift_srq_t */

uint64_t shift_now(void); /* ns, monotonic */

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define EXPORT __attribute__((visibility("default")))

static inline const struct ibv_context_ops *shift_provider_verbs(const struct ibv_context *context)
{
    return &((const shift_device_t *)shift_map_get(&shift_devices, (uintptr_t)context))->ops;
}

static inline bool shift_signaled(const shift_qp_t *q, const shift_send_t *e) { return q->init.sq_sig_all || (e->wr.send_flags & IBV_SEND_SIGNALED); }

/* report.c: "manapy shift: ..." on standard error, once per message text; and events to the agent. */
void shift_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void shift_pass(const char *what); /* is left to the provider: not said with MANAPY_SHIFT_QUIET */
void shift_tell(shift_qp_t *q, const char *event); /* device lock held */
shift_counts_t shift_count(shift_qp_t *q);
/* traffic.c; device lock held */
void shift_record_begin(shift_device_t *d); /* if somebody records the process by now */
void shift_record(shift_qp_t *q, const shift_counts_t *n);
void shift_record_moved(shift_qp_t *q); /* if it has got on since */
void shift_record_end(shift_device_t *d);
void shift_tell_flowing(const shift_qp_t *q);       /* on standard error only */
void shift_tell_agent(shift_device_t *d);            /* by the worker; gives the lock up meanwhile */

/* device.c */
shift_device_t *shift_device_add(struct ibv_context *context);
void shift_device_free(shift_device_t *d);
void shift_device_backups(shift_device_t *d); /* opens the backups; by the worker */
void shift_object_add(shift_object_t *o, shift_kind_t kind, shift_device_t *d);
void shift_object_remove(shift_object_t *o); /* waits until the worker has left it */
void shift_wake(shift_device_t *d);
int shift_dup(int fd); /* close-on-exec */

/* memory.c */
struct ibv_pd *shift_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);
struct ibv_mr *shift_register(struct ibv_pd *pd, const shift_memory_t *m); /* on a backup */
void shift_memory_close(shift_memory_t *m);                               /* none needs it any more */

/* post.c */
int shift_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int shift_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int shift_post_failed(shift_qp_t *q, int error); /* of a straight section of posts, all of which the provider has taken: the error to be shown */
void shift_pump_sends(shift_qp_t *q); /* onto the leg in use; device lock held */
void shift_pump_recvs(shift_qp_t *q);

/* poll.c */
int shift_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int shift_req_notify_cq(struct ibv_cq *cq, int solicited_only);
bool shift_stash_locked(shift_cq_t *c, uint32_t n, const struct ibv_wc *wc); /* c->lock held */
void shift_retire(shift_qp_t *q, const struct ibv_wc *wc); /* the entries of a journal that a good completion retires */
bool shift_stash(shift_cq_t *c, int n, const struct ibv_wc *wc); /* completions that a straight poll found, some with an error. False: they stay the program's */
static inline bool shift_stashed(const shift_cq_t *c) { return __atomic_load_n(&c->stashed, __ATOMIC_RELAXED) > 0; }
void shift_gather(shift_cq_t *c);  /* all completions that are there, into c->ready (device lock held) */
bool shift_catch_up(shift_cq_t *c); /* the same in the default state, when the program may not have polled for long. False: not now, somebody polls */
void shift_deliver(shift_cq_t *c, const struct ibv_wc *wc);
void shift_complete_send(shift_qp_t *q, const shift_send_t *e, enum ibv_wc_status status);
void shift_retire_done(shift_qp_t *q);
void shift_ring_bell(shift_cq_t *c);
void shift_ring_bells(shift_qp_t *q); /* of both its CQs */

/* away.c */
void shift_away(shift_qp_t *q, bool away); /* enter or leave the slow path */
void shift_cq_mode(shift_cq_t *c);         /* after a change of what it depends on; c->lock held, or nobody uses it yet */
bool shift_qp_busy(const shift_qp_t *q);   /* is a straight post, or section of posts, under way that began before shift_away? */
bool shift_cq_busy(const shift_cq_t *c);   /* a straight poll that began before `straight` was false? */

/* readback.c: rewind.h for a queue pair whose leg 0 has failed. Device lock held. */
void shift_rewind_attach(shift_qp_t *q); /* just made; q->rewinds, if its completion queues allow it, too */
void shift_rewind_detach(shift_qp_t *q);
void shift_note_error(shift_qp_t *q, const shift_cq_t *c, const struct ibv_wc *wc);
void shift_tell_errors(shift_qp_t *q);       /* the program gets them */
const char *shift_read_back(shift_qp_t *q);  /* into the journals, when the leg is drained. NULL, or why not */

/* extended.c */
bool shift_extend_qp(shift_qp_t *q, uint64_t operations);
bool shift_can_extend_cq(const struct ibv_cq_init_attr_ex *attr);
void shift_extend_cq(shift_cq_t *c, struct ibv_cq_ex *x);
void shift_build_with(struct ibv_qp_ex *x, const struct ibv_qp_ex *functions);
bool shift_draft_ends(shift_qp_t *q);
void shift_draft_ended(shift_qp_t *q);

/* srq.c: shared receive queues. With the device's lock held, but for the first two. */
int shift_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void shift_srq_translate(struct ibv_wc *wc, int n);
typedef enum shift_srq_fate {
    SHIFT_SRQ_OTHER,   /* not a receive of a shared queue */
    SHIFT_SRQ_DELIVER, /* for the program, with its own wr_id now */
    SHIFT_SRQ_KEPT,    /* the receive is still to be filled */
    SHIFT_SRQ_LATE,    /* a message came into a receive that has been given up already */
} shift_srq_fate_t;
shift_srq_fate_t shift_srq_take(int path, bool again, struct ibv_wc *wc);
void shift_srq_move(shift_qp_t *q, int path);
bool shift_srq_clean(const shift_srq_t *s, int path);
bool shift_srq_ready(const shift_srq_t *s, int path); /* clean, and some of the receives are there */
void shift_srq_step(shift_srq_t *s);                  /* by the worker */
bool shift_srq_busy(const shift_srq_t *s);
shift_srq_t *shift_srq_add(struct ibv_srq *srq, shift_pd_t *pd, const struct ibv_srq_attr *attr); /* without the lock; so are the next two */
void shift_srq_close_taps(shift_srq_t *s);
void shift_srq_remove(shift_srq_t *s);

/* gids.c: false: the port has no such GID now */
bool shift_gid_at(struct ibv_context *context, uint8_t port, uint32_t index, struct ibv_gid_entry *gid);
bool shift_gid_find(struct ibv_context *context, struct ibv_gid_entry *gid); /* sets its index to where it stands */
/* The first of the kind (RoCE version; IPv4 or IPv6) that `like` is: no other reaches the peer's. */
bool shift_gid_choose(struct ibv_context *context, uint8_t port, const struct ibv_gid_entry *like, struct ibv_gid_entry *gid);

/* legs.c: one queue pair, on whatever path */
int shift_qp_step(struct ibv_qp *qp, struct ibv_qp_attr *attr, enum ibv_qp_state to); /* RESET, INIT, RTR, RTS: 0 or an errno */
void shift_qp_fence(struct ibv_qp *qp);                                               /* to the error state */
const struct ibv_context_ops *shift_verbs_on(const shift_device_t *d, int path);        /* the provider's */
bool shift_elements_on(const shift_device_t *d, int path, struct ibv_sge *sge, int n); /* with this path's keys; false: a region isn't registered there */
int shift_leg_send(shift_qp_t *q, int path, struct ibv_send_wr *wr);
int shift_leg_recv(shift_qp_t *q, int path, struct ibv_recv_wr *wr);
void shift_number(shift_qp_t *q, shift_send_t *e); /* the packets that it takes on the leg in use, behind those before it */

/* shadow.c */
void shift_shadow_step(shift_device_t *d); /* by the worker */
struct ibv_qp_attr shift_leg_attributes(const shift_qp_t *q, int path, uint32_t generation);
int shift_leg_bring_up(shift_qp_t *q, int path, struct ibv_qp_attr *a);
void shift_leg_make_ready(shift_qp_t *q, int path, uint32_t generation, const struct ibv_qp_attr *a);
int shift_leg_connect(shift_qp_t *q, int path, uint32_t generation);
uint32_t shift_leg_psn(uint32_t first, uint32_t generation); /* the first packet's in a generation */
bool shift_leg_usable(const shift_qp_t *q, int path);

/* switch.c, and what belongs to it (switch.h) */
void shift_fail(shift_qp_t *q, const struct ibv_wc *wc); /* the leg in use is broken */
bool shift_transport_error(const shift_qp_t *q, const struct ibv_wc *wc);
void shift_switch_step(shift_qp_t *q);         /* by the worker */
bool shift_under_way(const shift_qp_t *q);
void shift_count_turns(shift_device_t *d);      /* by the worker, before each round */
void shift_attend(shift_qp_t *q, bool active); /* the worker's list */
bool shift_needs_attention(const shift_qp_t *q);
void shift_last_reached(shift_qp_t *q, int path); /* LAST_WQE_REACHED is here */
void shift_linked(shift_qp_t *q);                                          /* by the worker: the connection is protected from now on */
void shift_take_commands(shift_device_t *d); /* of the agent: by the worker */
void shift_release(shift_qp_t *q, const char *why);                        /* why it is lost; NULL: the program itself ended the connection */

/* watch.c: what has stopped without an error. Device lock held. */
void shift_watch_step(shift_device_t *d); /* by the worker */
uint32_t shift_outstanding(const shift_qp_t *q); /* sends that have not completed, for people */
void shift_watch_asked(shift_qp_t *q, uint32_t epoch);    /* by the peer, whether it can receive */
void shift_watch_answered(shift_qp_t *q, uint32_t epoch); /* by the peer: it can */

/* keys.c: what the peers can find of us. All by the worker, which gives the lock up meanwhile, but for `withdraw`. */
void shift_mr_key(char *key, uint64_t device, uint32_t index); /* room: 64 */
bool shift_qp_key(char *key, const shift_qp_t *q, bool peer);
void shift_keys_withdraw(shift_device_t *d, const char *key, bool regions); /* a region's entry is emptied, not deleted: they are counted through */
void shift_keys_step(shift_device_t *d);
void shift_keys_free(shift_device_t *d); /* after the worker has ended */

/* worker.c */
int shift_worker_start(shift_device_t *d);
void shift_worker_stop(shift_device_t *d);

#endif
