/* srq.c - shared receive queues.
 *
 * Receives of a shared queue complete out of order and belong to no queue pair. So neither a ring nor a sequence number
 * tells which of them are outstanding. Each is recorded in an `entry` of ours, whose address is the wr_id that the
 * provider gets; when it completes, the entry gives the program's own wr_id.
 *
 * When some of its queue pairs are on a backup, the receives must be on both paths' queues, but no verb takes a posted
 * receive back. So each path has a *tap*: a queue pair on the shared queue that is connected to itself. An empty SEND
 * on it takes one receive out. Receives are distributed by the number of queue pairs that receive on each path. A queue
 * on which no queue pair receives any more is given up at once: its entries are free to be posted elsewhere. The
 * receives that remain in the provider's queue (`stale`) are removed by the tap before any queue pair receives there
 * again. If a path can't be tapped (its RNIC is dead), all queue pairs of the shared queue leave the path.
 *
 * Invariants:
 * - An entry is free, loose (held back) or posted to exactly one path; `level` counts those posted. With `direct` all
 *   of them are on path 0.
 * - Nothing is posted to a path with stale receives, and no queue pair receives on it.
 * - A shared queue's lock is the innermost of all. The slow path also holds the device's lock.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "failover/srq.h"
#include "objects/device.h"
#include "objects/gids.h"
#include "objects/legs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FREE = -1, LOOSE = -2, CHUNK = 1 << 16 /* bytes and alignment */, TAP_DEPTH = 32, TAP_AGAIN_MS = 500 };

struct shift_entry {
    struct ibv_recv_wr wr; /* as the provider gets it on path 0: wr_id is the entry's address */
    uint64_t wr_id;        /* the program's */
    struct shift_entry *next;
    int path;
    struct ibv_sge sge[];
};

/* Memory for entries, aligned to its size: from an entry's address follows its chunk, and so its shared queue. */
typedef struct chunk {
    shift_srq_t *srq;
    struct chunk *next;
    uint32_t count;
    char entries[] __attribute__((aligned(16)));
} chunk_t;

static shift_map_t chunks = SHIFT_MAP_INIT; /* address -> chunk_t */

static size_t entry_size(const shift_srq_t *s) { return sizeof(shift_entry_t) + s->max_sge * sizeof(struct ibv_sge); }

static void release_entry(shift_srq_t *s, shift_entry_t *e) {
    e->path = FREE;
    e->next = s->unused;
    s->unused = e;
}

static bool more_entries(shift_srq_t *s) {
    chunk_t *c = aligned_alloc(CHUNK, CHUNK);
    if (!c || shift_map_put(&chunks, (uintptr_t)c, c) < 0) {
        free(c);
        return false;
    }
    c->srq = s;
    c->next = s->chunks;
    c->count = (uint32_t)((CHUNK - sizeof *c) / entry_size(s));
    s->chunks = c;
    for (uint32_t i = c->count; i-- > 0;)
        release_entry(s, (shift_entry_t *)(c->entries + i * entry_size(s)));
    return true;
}

/* The entry whose address a provider has returned. NULL: it is not one of ours. */
static shift_entry_t *entry_of(uint64_t wr_id) {
    chunk_t *c = shift_map_get(&chunks, wr_id & ~(uint64_t)(CHUNK - 1));
    if (!c || wr_id < (uintptr_t)c->entries)
        return NULL;
    uint64_t at = wr_id - (uintptr_t)c->entries;
    return at % entry_size(c->srq) == 0 && at / entry_size(c->srq) < c->count ? (shift_entry_t *)(uintptr_t)wr_id
                                                                              : NULL;
}

static shift_srq_t *srq_of(const shift_entry_t *e) {
    return ((chunk_t *)((uintptr_t)e & ~(uintptr_t)(CHUNK - 1)))->srq;
}

/* Records a receive of the program. Returns 0, ENOMEM or EINVAL. */
static int note(shift_srq_t *s, const struct ibv_recv_wr *wr, shift_entry_t **noted) {
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > s->max_sge)
        return EINVAL;
    if (!s->unused && !more_entries(s))
        return ENOMEM;
    shift_entry_t *e = s->unused;
    s->unused = e->next;
    e->wr = (struct ibv_recv_wr){.wr_id = (uintptr_t)e, .sg_list = e->sge, .num_sge = wr->num_sge};
    e->wr_id = wr->wr_id;
    memcpy(e->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *e->sge);
    *noted = e;
    return 0;
}

static void loosen(shift_srq_t *s, shift_entry_t *e) {
    e->path = LOOSE;
    e->next = NULL;
    *(s->loose ? &s->loose_last->next : &s->loose) = e;
    s->loose_last = e;
    s->loosened++;
}

/* Number of the program's outstanding receives. */
static uint32_t held(const shift_srq_t *s) {
    uint32_t n = s->loosened;
    for (int p = 0; p < SHIFT_PATHS; p++)
        n += s->on[p].level;
    return n;
}

/* ---- posting ---- */

/* Device lock held. */
static int post_slowly(shift_srq_t *s, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    int r = 0;
    shift_spin_lock(&s->lock);
    for (; wr; wr = wr->next) {
        shift_entry_t *e;
        r = held(s) < s->max_wr ? note(s, wr, &e) : ENOMEM;
        if (r != 0) {
            *bad = wr;
            break;
        }
        loosen(s, e);
    }
    shift_spin_unlock(&s->lock);
    shift_srq_step(s);
    return r;
}

int shift_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    shift_srq_t *s = shift_map_get(&shift_srqs, (uintptr_t)srq);
    if (!s || __atomic_load_n(&s->passed, __ATOMIC_RELAXED))
        return ((const shift_device_t *)shift_map_get(&shift_devices, (uintptr_t)srq->context))
            ->ops.post_srq_recv(srq, wr, bad);
    shift_device_t *d = s->o.device;
    shift_spin_lock(&s->lock);
    if (!s->direct) {
        shift_spin_unlock(&s->lock);
        pthread_mutex_lock(&d->lock);
        int r = post_slowly(s, wr, bad);
        pthread_mutex_unlock(&d->lock);
        return r;
    }
    struct ibv_recv_wr *head = NULL, **at = &head, *w = wr, *refused = NULL;
    int r = 0;
    for (; w; w = w->next) {
        shift_entry_t *e;
        r = note(s, w, &e);
        if (r != 0)
            break;
        e->path = 0;
        s->on[0].level++;
        *at = &e->wr;
        at = &e->wr.next;
    }
    if (r != 0)
        *bad = w;
    int provider = head ? d->ops.post_srq_recv(srq, head, &refused) : 0;
    /* it refused `refused` and the rest: the bad request is the program's request at the same position in its list */
    if (provider != 0) {
        struct ibv_recv_wr *theirs = wr, *ours = head;
        for (; ours != refused; ours = ours->next)
            theirs = theirs->next;
        *bad = theirs;
        while (ours) {
            struct ibv_recv_wr *next = ours->next;
            release_entry(s, (shift_entry_t *)ours);
            s->on[0].level--;
            ours = next;
        }
        r = provider;
    }
    shift_spin_unlock(&s->lock);
    return r;
}

/* ---- completions ---- */

/* Translates completions that were taken directly from the default queue, on their way to the program. */
void shift_srq_translate(struct ibv_wc *wc, int n) {
    for (int i = 0; i < n; i++) {
        shift_entry_t *e =
            wc[i].status != IBV_WC_SUCCESS || (wc[i].opcode & IBV_WC_RECV) ? entry_of(wc[i].wr_id) : NULL;
        if (!e)
            continue;
        shift_srq_t *s = srq_of(e);
        shift_spin_lock(&s->lock);
        wc[i].wr_id = e->wr_id;
        s->on[0].level--;
        release_entry(s, e);
        shift_spin_unlock(&s->lock);
    }
}

/* Handles a completion that the slow path has taken from a path's queue. again: a message that failed because of the
 * path will be sent again. */
shift_srq_fate_t shift_srq_take(int path, bool again, struct ibv_wc *wc) {
    shift_entry_t *e = wc->status != IBV_WC_SUCCESS || (wc->opcode & IBV_WC_RECV) ? entry_of(wc->wr_id) : NULL;
    if (!e)
        return SHIFT_SRQ_OTHER;
    shift_srq_t *s = srq_of(e);
    shift_srq_fate_t fate = SHIFT_SRQ_DELIVER;
    shift_spin_lock(&s->lock);
    if (e->path != path) {
        fate = wc->status == IBV_WC_SUCCESS ? SHIFT_SRQ_LATE : SHIFT_SRQ_KEPT;
    } else {
        s->on[path].level--;
        if (wc->status != IBV_WC_SUCCESS && again) { /* the receive was being filled */
            loosen(s, e);
            s->direct = false;
            fate = SHIFT_SRQ_KEPT;
        } else {
            wc->wr_id = e->wr_id;
            release_entry(s, e);
        }
    }
    shift_spin_unlock(&s->lock);
    return fate;
}

/* ---- taps; device lock held from here on ---- */

static bool connect_tap(shift_srq_t *s, int path) {
    shift_path_t *via = &s->o.device->path[path];
    struct ibv_qp *tap = s->on[path].tap;
    if (via->ethernet && !shift_gid_find(via->context, &via->gid))
        return false;
    struct ibv_qp_attr a = {
        .port_num = via->port,
        .path_mtu = IBV_MTU_256,
        .dest_qp_num = tap->qp_num,
        .max_dest_rd_atomic = 1,
        .max_rd_atomic = 1,
        .min_rnr_timer = 1,
        .timeout = 15,
        .retry_cnt = 3,
        .rnr_retry = 0,
        .ah_attr = {.dlid = via->lid,
                    .is_global = via->ethernet,
                    .port_num = via->port,
                    .grh = {.dgid = via->gid.gid, .sgid_index = (uint8_t)via->gid.gid_index, .hop_limit = 64}}};
    for (int to = IBV_QPS_RESET; to <= IBV_QPS_RTS; to++)
        if (shift_qp_step(tap, &a, (enum ibv_qp_state)to) != 0)
            return false;
    s->on[path].tap_works = true;
    return true;
}

static bool open_tap(shift_srq_t *s, int path) {
    shift_device_t *d = s->o.device;
    shift_shared_t *on = &s->on[path];
    if (!on->cq)
        on->cq = shift_real()->create_cq(path ? d->path[path].context : d->context, 2 * TAP_DEPTH, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = on->cq,
                                    .recv_cq = on->cq,
                                    .srq = on->srq,
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1,
                                    .cap = {.max_send_wr = TAP_DEPTH, .max_send_sge = 1}};
    if (on->cq && !on->tap)
        on->tap = shift_real()->create_qp(path ? s->pd->on[path] : s->pd->pd, &init);
    return on->tap && connect_tap(s, path);
}

/* A receive was taken out of a path's queue. */
static void tapped(shift_srq_t *s, int path, const struct ibv_wc *wc) {
    shift_shared_t *on = &s->on[path];
    shift_entry_t *e = entry_of(wc->wr_id);
    if (on->stale) {
        on->stale--;
    } else if (e && e->path == path) {
        on->level--;
        loosen(s, e);
    }
}

static void poll_tap(shift_srq_t *s, int path) {
    shift_shared_t *on = &s->on[path];
    struct ibv_wc wc[TAP_DEPTH];
    int n;
    while (on->tapping && (n = shift_verbs_on(s->o.device, path)->poll_cq(on->cq, TAP_DEPTH, wc)) > 0)
        for (int i = 0; i < n; i++) {
            if (wc[i].wr_id != (uintptr_t)on) {
                shift_spin_lock(&s->lock);
                tapped(s, path, &wc[i]);
                shift_spin_unlock(&s->lock);
                continue;
            }
            on->tapping--;
            if (wc[i].status == IBV_WC_SUCCESS || wc[i].status == IBV_WC_WR_FLUSH_ERR)
                continue;
            on->tap_works = false;
            if (wc[i].status == IBV_WC_RNR_RETRY_EXC_ERR)
                on->stale = 0; /* the queue is empty */
            else
                on->tap_again = shift_now() + TAP_AGAIN_MS * 1000000u;
        }
}

static bool can_tap(const shift_srq_t *s, int path) {
    return s->o.device->path[path].port_up && shift_now() >= s->on[path].tap_again;
}

/* Starts to take up to n receives out. */
static void tap(shift_srq_t *s, int path, uint32_t n) {
    shift_shared_t *on = &s->on[path];
    if (on->tapping)
        return;
    if (!on->tap_works && !open_tap(s, path)) {
        on->tap_again = shift_now() + TAP_AGAIN_MS * 1000000u;
        return;
    }
    struct ibv_send_wr wr = {.wr_id = (uintptr_t)on, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    while (on->tapping < TAP_DEPTH && n-- > 0 && shift_verbs_on(s->o.device, path)->post_send(on->tap, &wr, &bad) == 0)
        on->tapping++;
}

/* No queue pair receives on this path: its receives are ours again, although the provider holds them. */
static void give_up(shift_srq_t *s, int path) {
    shift_shared_t *on = &s->on[path];
    on->stale += on->level;
    on->level = 0;
    for (chunk_t *c = s->chunks; c; c = c->next)
        for (uint32_t i = 0; i < c->count; i++) {
            shift_entry_t *e = (shift_entry_t *)(c->entries + i * entry_size(s));
            if (e->path == path)
                loosen(s, e);
        }
}

/* The path can't be tapped, but other paths need its receives: queue pairs that receive there must leave. */
static void leave(shift_srq_t *s, int path) {
    for (shift_object_t *o = s->o.device->objects; o; o = o->next) {
        shift_qp_t *q = (shift_qp_t *)o;
        if (o->kind == SHIFT_QP && q->srq == s && !q->plain && q->linked && q->path == path)
            shift_fail(q, NULL);
    }
}

/* ---- distribution ---- */

/* Posts a loose receive. False: not now, or (then the path `lacks_memory`) never. */
static bool post(shift_srq_t *s, shift_entry_t *e, int path) {
    shift_device_t *d = s->o.device;
    struct ibv_sge sge[s->max_sge + 1];
    struct ibv_recv_wr wr = e->wr, *bad;
    wr.next = NULL;
    wr.sg_list = sge;
    memcpy(sge, e->sge, (size_t)wr.num_sge * sizeof *sge);
    int r = shift_elements_on(d, path, sge, wr.num_sge);
    s->on[path].lacks_memory |= r == -ENOKEY;
    if (r != 0)
        return false;
    e->path = path;
    if (shift_verbs_on(d, path)->post_srq_recv(s->on[path].srq, &wr, &bad) == 0) {
        s->on[path].level++;
        return true;
    }
    e->path = LOOSE;
    return false;
}

static uint32_t wanted(const shift_srq_t *s, int path, uint32_t all) {
    uint32_t users = 0;
    for (int p = 0; p < SHIFT_PATHS; p++)
        users += s->on[p].users;
    if (users == 0)
        return path == 0 ? all : 0;
    /* rounded up, so that each receive has a place */
    return (uint32_t)(((uint64_t)all * s->on[path].users + users - 1) / users);
}

/* The path that lacks most receives, or (sign -1) has most too many. -1: none. */
static int extreme(const shift_srq_t *s, uint32_t all, int sign) {
    int best = -1;
    int64_t most = 0;
    for (int p = 0; p < SHIFT_PATHS; p++) {
        int64_t lacks = sign * ((int64_t)wanted(s, p, all) - s->on[p].level);
        if (s->on[p].srq && (sign < 0 || s->on[p].stale == 0) && lacks > most) {
            most = lacks;
            best = p;
        }
    }
    return best;
}

static void post_loose(shift_srq_t *s, uint32_t all) {
    shift_entry_t *list = s->loose;
    s->loose = s->loose_last = NULL;
    s->loosened = 0;
    for (int p = 0; p < SHIFT_PATHS; p++)
        s->on[p].lacks_memory = false;
    for (shift_entry_t *e = list, *next; e; e = next) {
        next = e->next;
        int to = extreme(s, all, 1);
        if (to < 0 || !post(s, e, to))
            loosen(s, e);
    }
}

static void clean(shift_srq_t *s) {
    for (int p = 0; p < s->o.device->paths; p++) {
        poll_tap(s, p);
        if (s->on[p].stale && can_tap(s, p))
            tap(s, p, s->on[p].stale);
    }
}

void shift_srq_step(shift_srq_t *s) {
    shift_device_t *d = s->o.device;
    clean(s);
    if (s->direct && !s->away)
        return;
    shift_spin_lock(&s->lock);
    s->direct = false;
    for (int p = 0; p < d->paths; p++)
        if (s->on[p].users == 0 && s->on[p].level && s->on[p].tapping == 0 && (p || s->away))
            give_up(s, p);
    uint32_t all = held(s);
    post_loose(s, all);
    shift_spin_unlock(&s->lock);
    int poor = extreme(s, all, 1), rich = extreme(s, all, -1);
    if (poor >= 0 && rich >= 0 && s->on[poor].level <= wanted(s, poor, all) / 2) {
        uint32_t surplus = s->on[rich].level - wanted(s, rich, all);
        if (can_tap(s, rich))
            tap(s, rich, surplus);
        else if (s->on[poor].level == 0)
            leave(s, rich);
    }
    shift_spin_lock(&s->lock);
    s->direct = !s->away && !s->loose && s->on[0].stale == 0 && s->on[0].tapping == 0;
    for (int p = 1; p < d->paths; p++)
        s->direct &= s->on[p].level == 0;
    shift_spin_unlock(&s->lock);
}

/* From now on the peer of q sends to this path. */
void shift_srq_move(shift_qp_t *q, int path) {
    shift_srq_t *s = q->srq;
    if (!s || q->receives_on == path)
        return;
    s->on[q->receives_on].users--;
    s->on[path].users++;
    s->away += (path != 0) - (q->receives_on != 0);
    q->receives_on = path;
    shift_srq_step(s);
}

bool shift_srq_clean(const shift_srq_t *s, int path) { return s->on[path].stale == 0; }

bool shift_srq_ready(const shift_srq_t *s, int path) {
    return shift_srq_clean(s, path) && (s->on[path].level > 0 || held(s) == 0);
}

bool shift_srq_is_tap(const shift_device_t *d, const struct ibv_qp *qp) {
    for (const shift_srq_t *s = d->srqs; s; s = s->next)
        if (s->on[0].tap == qp)
            return true;
    return false;
}

/* Something is in progress that advances only when the worker checks it. */
bool shift_srq_busy(const shift_srq_t *s) {
    for (int p = 0; p < SHIFT_PATHS; p++)
        if (s->on[p].tapping)
            return true;
    return false;
}

shift_srq_t *shift_srq_add(struct ibv_srq *srq, shift_pd_t *pd, const struct ibv_srq_attr *attr) {
    shift_srq_t *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->pd = pd;
    s->max_wr = attr->max_wr;
    s->max_sge = attr->max_sge;
    s->on[0].srq = srq;
    s->direct = true;
    if (shift_map_put(&shift_srqs, (uintptr_t)srq, s) < 0) {
        free(s);
        return NULL;
    }
    shift_device_t *d = pd->o.device;
    shift_object_add(&s->o, SHIFT_SRQ, d);
    pthread_mutex_lock(&d->lock);
    s->next = d->srqs;
    d->srqs = s;
    pthread_mutex_unlock(&d->lock);
    return s;
}

/* Before the provider destroys the shared queue: removes our objects that would prevent this. */
void shift_srq_close_taps(shift_srq_t *s) {
    pthread_mutex_lock(&s->o.device->lock);
    for (int p = 0; p < SHIFT_PATHS; p++) {
        shift_shared_t *on = &s->on[p];
        if (on->tap)
            shift_real()->destroy_qp(on->tap);
        if (on->cq)
            shift_real()->destroy_cq(on->cq);
        on->tap = NULL;
        on->cq = NULL;
        on->tap_works = false;
        on->tapping = 0;
    }
    pthread_mutex_unlock(&s->o.device->lock);
}

void shift_srq_remove(shift_srq_t *s) {
    shift_object_remove(&s->o);
    shift_srq_t **at = &s->o.device->srqs;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    shift_map_remove(&shift_srqs, (uintptr_t)s->on[0].srq);
    for (int p = 1; p < SHIFT_PATHS; p++)
        if (s->on[p].srq)
            shift_real()->destroy_srq(s->on[p].srq);
    pthread_mutex_unlock(&s->o.device->lock);
    for (chunk_t *c = s->chunks, *next; c; c = next) {
        next = c->next;
        shift_map_remove(&chunks, (uintptr_t)c);
        free(c);
    }
    free(s);
}
