/* links.c - see links.h. All functions run with the device's lock held, except for the key-value requests of the
 * set-up.
 */
#include "common/report.h"
#include "journal/journal.h"
#include "links/backoff.h"
#include "links/links.h"
#include "objects/completions.h"
#include "objects/device.h"
#include "objects/gids.h"
#include "objects/legs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 10, /* messages in one packet */
    PSN_STEP = 0x2468ad,
    TIMEOUT = 15, /* 4.096 us * 2^15 = 134 ms */
    RETRIES = 6,  /* together one second: a busy machine is not a broken path, and this link may be the only one left */
    PROBE_EVERY_MS = 200,
    PROBE_MS = 3000, /* the longest that the peer may take to answer */
    LOOK_MS = 1000,  /* between queries of the store */
    MEET_MS = 50,    /* the same, in the first MEETING_MS without a path */
    MEETING_MS = 30000,
};

typedef enum slot_kind { RECV, SEND, PROBE } slot_kind_t;

/* A message buffer of a control queue pair. */
typedef struct slot {
    shift_link_t *link;
    uint8_t path;
    slot_kind_t kind;
    bool used;
    struct outgoing *carries; /* SEND: copies of the messages, until the peer has them */
    shift_message_t messages[BATCH];
} slot_t;

/* A message that waits to be sent, or is being sent. */
typedef struct outgoing {
    struct outgoing *next;
    shift_message_t message;
} outgoing_t;

struct __attribute__((packed)) link_value {
    uint8_t paths;
    struct __attribute__((packed)) {
        uint32_t qpn;
        uint16_t lid;
        union ibv_gid gid;
        uint32_t generation;
    } on[SHIFT_PATHS];
};

static slot_t *slot_at(const shift_link_leg_t *leg, int i) { return (slot_t *)leg->slots + i; }

/* Room for the completions of one more leg: the worker may poll only after it has fenced all of them. */
static bool make_room(shift_path_t *via) {
    uint32_t all = via->promised + 2 * SHIFT_LINK_DEPTH + 1;
    int r = shift_cq_hold(via->cq, all);
    if (r == 0)
        via->promised = all;
    else
        errno = r;
    return r == 0;
}

static bool make_leg(shift_link_t *l, int path) {
    shift_device_t *d = l->device;
    shift_path_t *via = &d->path[path];
    shift_link_leg_t *leg = &l->on[path];
    struct ibv_qp_init_attr init = {.send_cq = via->cq,
                                    .recv_cq = via->cq,
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1,
                                    .cap = {.max_send_wr = SHIFT_LINK_DEPTH + 1,
                                            .max_recv_wr = SHIFT_LINK_DEPTH,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1}};
    size_t bytes = (2 * SHIFT_LINK_DEPTH + 1) * sizeof(slot_t);
    leg->slots = make_room(via) ? calloc(1, bytes) : NULL;
    leg->mr = leg->slots ? shift_real()->reg_mr(via->pd, leg->slots, bytes, IBV_ACCESS_LOCAL_WRITE) : NULL;
    leg->qp = leg->mr ? shift_real()->create_qp(via->pd, &init) : NULL;
    for (int i = 0; leg->slots && i <= 2 * SHIFT_LINK_DEPTH; i++) {
        slot_t *s = slot_at(leg, i);
        s->link = l;
        s->path = (uint8_t)path;
        s->kind = i < SHIFT_LINK_DEPTH ? RECV : i < 2 * SHIFT_LINK_DEPTH ? SEND : PROBE;
    }
    if (!leg->qp)
        shift_report("no control queue pair on %s: %s", via->name, strerror(errno));
    return leg->qp != NULL;
}

shift_link_t *shift_link_find(shift_device_t *d, uint64_t peer, shift_receive_t *receive) {
    for (shift_link_t *l = d->links; l; l = l->next)
        if (l->peer == peer)
            return l;
    shift_link_t *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->device = d;
    l->peer = peer;
    l->receive = receive;
    pthread_mutex_init(&l->rkeys.lock, NULL);
    l->rkeys.guarded = true;
    for (int p = 0; p < d->paths; p++)
        if (d->path[p].usable)
            make_leg(l, p);
    l->next = d->links;
    d->links = l;
    return l;
}

static void post_recv(slot_t *s) {
    shift_link_leg_t *leg = &s->link->on[s->path];
    struct ibv_sge sge = {(uintptr_t)s->messages, sizeof s->messages, leg->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uintptr_t)s, .sg_list = &sge, .num_sge = 1}, *bad;
    leg->qp->context->ops.post_recv(leg->qp, &wr, &bad);
}

/* Queues what a slot carries again, before the messages that are waiting. */
static void wait_again(shift_link_t *l, slot_t *s) {
    outgoing_t *last = s->carries;
    if (!last)
        return;
    while (last->next)
        last = last->next;
    last->next = l->out;
    if (!l->out)
        l->out_last = last;
    l->out = s->carries;
    s->carries = NULL;
}

/* Moves the leg from any state to RTS. Messages in progress are sent again. */
static bool connect_leg(shift_link_t *l, int path) {
    shift_path_t *via = &l->device->path[path];
    shift_link_leg_t *leg = &l->on[path];
    uint32_t psn = (leg->generation * PSN_STEP) & SHIFT_PSN_MASK;
    if (via->ethernet && !shift_gid_find(via->context, &via->gid))
        return false;
    struct ibv_qp_attr a = {
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
        .port_num = via->port,
        .path_mtu = IBV_MTU_256,
        .dest_qp_num = leg->peer_qpn,
        .rq_psn = psn,
        .sq_psn = psn,
        .max_dest_rd_atomic = 1,
        .max_rd_atomic = 1,
        .min_rnr_timer = 1,
        .timeout = TIMEOUT,
        .retry_cnt = RETRIES,
        .rnr_retry = 7,
        .ah_attr = {.dlid = leg->peer_lid,
                    .is_global = via->ethernet,
                    .port_num = via->port,
                    .grh = {.dgid = leg->peer_gid, .sgid_index = (uint8_t)via->gid.gid_index, .hop_limit = 64}}};
    if (shift_qp_step(leg->qp, &a, IBV_QPS_RESET) != 0)
        return false;
    /* no completion arrives after the reset, so one of an earlier use of a slot can't be taken for the new use */
    shift_link_poll(l->device, path);
    for (int k = SHIFT_LINK_DEPTH; k <= 2 * SHIFT_LINK_DEPTH; k++) {
        wait_again(l, slot_at(leg, k));
        slot_at(leg, k)->used = false;
    }
    if (shift_qp_step(leg->qp, &a, IBV_QPS_INIT) != 0)
        return false;
    for (int k = 0; k < SHIFT_LINK_DEPTH; k++)
        post_recv(slot_at(leg, k));
    return shift_qp_step(leg->qp, &a, IBV_QPS_RTR) == 0 && shift_qp_step(leg->qp, &a, IBV_QPS_RTS) == 0;
}

/* ---- our entry in the store, for the peer ---- */

static void key_of(char *key, uint64_t whose, uint64_t peer) {
    snprintf(key, 64, "link/%016llx/%016llx", (unsigned long long)whose, (unsigned long long)peer);
}

static void publish(shift_link_t *l) {
    shift_device_t *d = l->device;
    char key[64];
    struct link_value v = {.paths = (uint8_t)d->paths};
    for (int p = 0; p < d->paths; p++) {
        v.on[p].qpn = l->on[p].qp ? l->on[p].qp->qp_num : 0;
        v.on[p].lid = d->path[p].lid;
        v.on[p].gid = d->path[p].gid.gid;
        v.on[p].generation = l->on[p].generation;
    }
    key_of(key, d->id, l->peer);
    pthread_mutex_unlock(&d->lock);
    int r = shift_kv_put(d->kv, key, &v, sizeof v);
    pthread_mutex_lock(&d->lock);
    l->published = r == 0;
}

static int look(const shift_link_t *l, struct link_value *v) {
    shift_device_t *d = l->device;
    char key[64];
    key_of(key, l->peer, d->id);
    pthread_mutex_unlock(&d->lock);
    int r = shift_kv_get(d->kv, key, v, sizeof *v);
    pthread_mutex_lock(&d->lock);
    return r;
}

static void set_up(shift_link_t *l) {
    shift_device_t *d = l->device;
    struct link_value v;
    if (!l->published)
        publish(l);
    if (look(l, &v) != sizeof v || !l->published)
        return;
    for (int p = 0; p < d->paths && p < v.paths; p++) {
        shift_link_leg_t *leg = &l->on[p];
        if (!leg->qp || !v.on[p].qpn)
            continue;
        leg->peer_qpn = v.on[p].qpn;
        leg->peer_lid = v.on[p].lid;
        leg->peer_gid = v.on[p].gid;
        leg->connected = leg->up = connect_leg(l, p);
        shift_backoff_up(&leg->backoff, shift_now());
        leg->told = true;
    }
    l->connected = true;
}

/* Queries the store while no path is up, and otherwise from time to time. */
static void meet(shift_link_t *l, uint64_t now) {
    struct link_value v;
    bool alive = shift_link_alive(l);
    if (alive) {
        l->dead_since = 0;
    } else if (!l->dead_since) {
        l->dead_since = now;
        l->published = false;
        l->next_look = 0;
    }
    if (!l->published && (!alive || now >= l->next_look))
        publish(l);
    if (now < l->next_look)
        return;
    int r = look(l, &v);
    for (int p = 0; p < l->device->paths && r == sizeof v; p++)
        if (v.on[p].generation > l->on[p].peer_generation)
            l->on[p].peer_generation = v.on[p].generation;
    if (r >= 0)
        l->gone = r == 0;
    l->next_look = now + (alive || now - l->dead_since > MEETING_MS * 1000000ull ? LOOK_MS : MEET_MS) * 1000000ull;
}

/* ---- messages ---- */

static slot_t *free_slot(shift_link_leg_t *leg) {
    for (int i = SHIFT_LINK_DEPTH; i < 2 * SHIFT_LINK_DEPTH; i++)
        if (!slot_at(leg, i)->used)
            return slot_at(leg, i);
    return NULL;
}

/* Backups first: they are idle, and the default path may be failing. */
static slot_t *free_slot_of(shift_link_t *l) {
    for (int k = 1; k <= l->device->paths; k++) {
        shift_link_leg_t *leg = &l->on[k % l->device->paths];
        slot_t *s = leg->up ? free_slot(leg) : NULL;
        if (s)
            return s;
    }
    return NULL;
}

static void pump(shift_link_t *l) {
    slot_t *s;
    while (l->out && (s = free_slot_of(l))) {
        shift_link_leg_t *leg = &l->on[s->path];
        outgoing_t **end = &l->out;
        uint32_t n = 0;
        for (; n < BATCH && *end; end = &(*end)->next)
            s->messages[n++] = (*end)->message;
        struct ibv_sge sge = {(uintptr_t)s->messages, n * (uint32_t)sizeof *s->messages, leg->mr->lkey};
        struct ibv_send_wr wr = {.wr_id = (uintptr_t)s,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED},
                           *bad;
        if (leg->qp->context->ops.post_send(leg->qp, &wr, &bad) != 0) {
            shift_link_down(l, s->path, true);
            continue;
        }
        outgoing_t *rest = *end;
        *end = NULL;
        s->used = true;
        s->carries = l->out;
        l->out = rest;
    }
}

/* Sends it together with messages that follow soon: the worker sends them at the end of its round. */
void shift_link_send(shift_link_t *l, const shift_message_t *message) {
    outgoing_t *m = calloc(1, sizeof *m);
    if (!m) {
        shift_report("no memory for a control message");
        return;
    }
    m->message = *message;
    *(l->out ? &l->out_last->next : &l->out) = m;
    l->out_last = m;
    if (++l->queued % BATCH == 0)
        pump(l);
}

void shift_link_flush(shift_link_t *l) {
    if (l->out)
        pump(l);
}

static void sent(slot_t *s) {
    while (s->carries) {
        outgoing_t *m = s->carries;
        s->carries = m->next;
        free(m);
    }
}

bool shift_link_alive(const shift_link_t *l) {
    for (int p = 0; p < l->device->paths; p++)
        if (l->on[p].up)
            return true;
    return !l->connected;
}

bool shift_link_lost(const shift_link_t *l) {
    return l->dead_since && (l->gone || shift_now() - l->dead_since > l->device->longest_wait);
}

static void tell_all(const shift_link_t *l, const char *event) {
    for (shift_object_t *o = l->device->objects; o; o = o->next)
        if (o->kind == SHIFT_QP && ((shift_qp_t *)o)->link == l)
            shift_tell((shift_qp_t *)o, event);
}

static bool has_backup(const shift_link_t *l) {
    for (int p = 1; p < l->device->paths; p++)
        if (l->on[p].up || l->on[p].worked)
            return true;
    return false;
}

/* Something has arrived on this path. */
static void works(shift_link_t *l, int path) {
    if (l->on[path].worked)
        return;
    bool had = has_backup(l);
    l->on[path].worked = true;
    if (path && !had)
        tell_all(l, "protected");
}

/* A path counts as working until something fails to arrive. If it is the first message already, the path has never
 * worked: its RNIC may not be connected to the peer's. */
static void never_worked(shift_link_t *l, int path) {
    shift_report("%s carries nothing to a peer: connections to it cannot move there", l->device->path[path].name);
    if (!has_backup(l))
        tell_all(l, "unprotected");
}

void shift_link_down(shift_link_t *l, int path, bool tell) {
    shift_link_leg_t *leg = &l->on[path];
    if (!leg->up && !leg->probing)
        return;
    bool was = leg->up;
    uint64_t now = shift_now();
    leg->up = leg->probing = false;
    leg->broken = true;
    leg->next_probe = now + PROBE_EVERY_MS * 1000000u;
    if (was)
        shift_backoff_failed(&leg->backoff, now);
    else
        shift_backoff_silent(&leg->backoff);
    if (was && path && !leg->worked)
        never_worked(l, path);
    if (leg->qp)
        shift_qp_fence(leg->qp); /* what is on it comes back flushed, and takes another path */
    if (was && tell)
        shift_link_send(l, &(shift_message_t){.type = SHIFT_PATH_DOWN, .a = (uint32_t)path, .b = leg->generation});
}

/* ---- probing a lost path ---- */

/* True for one of the two sides; also for a process that is connected to itself. */
static bool asks(const shift_link_t *l) { return l->device->id <= l->peer; }

static void begin(shift_link_t *l, int path, uint32_t generation, uint64_t now) {
    shift_link_leg_t *leg = &l->on[path];
    uint32_t before = leg->generation;
    leg->up = leg->probing = leg->told = l->published = false;
    leg->generation = generation;
    leg->broken = !connect_leg(l, path);
    leg->next_probe = now + PROBE_MS * 1000000ull;
    if (leg->broken) {
        leg->generation = before;
        leg->next_begin = leg->next_probe = now + PROBE_EVERY_MS * 1000000u;
    }
}

static void write_probe(shift_link_t *l, int path) {
    shift_link_leg_t *leg = &l->on[path];
    slot_t *s = slot_at(leg, 2 * SHIFT_LINK_DEPTH);
    struct ibv_send_wr wr = {.wr_id = (uintptr_t)s, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
    leg->probing = s->used = leg->qp->context->ops.post_send(leg->qp, &wr, &bad) == 0;
}

/* May this side begin to probe the path? A path that fails repeatedly waits, unless it may be the only one. */
static bool may_begin(const shift_link_t *l, int path, uint64_t now) {
    const shift_link_leg_t *leg = &l->on[path];
    if (asks(l))
        return now >= leg->next_probe && (now >= leg->backoff.until || !shift_link_alive(l));
    return leg->broken && now >= leg->next_begin && !shift_link_alive(l);
}

static void mend(shift_link_t *l, int path, uint64_t now) {
    shift_link_leg_t *leg = &l->on[path];
    if (!leg->connected)
        return;
    if (leg->peer_generation > leg->generation) { /* the peer has given the path up, even if it works for us */
        if (now >= leg->next_begin)
            begin(l, path, leg->peer_generation, now);
    } else if (!leg->up && l->device->path[path].port_up && may_begin(l, path, now)) {
        begin(l, path, leg->generation + 1, now);
    }
    if (leg->up || leg->broken)
        return;
    if (!leg->told && shift_link_alive(l)) {
        shift_link_send(l, &(shift_message_t){.type = SHIFT_PATH_READY, .a = (uint32_t)path, .b = leg->generation});
        leg->told = true;
    }
    if (asks(l) && !leg->probing && leg->generation == leg->peer_generation)
        write_probe(l, path);
}

static void path_up(shift_link_t *l, int path) {
    shift_link_leg_t *leg = &l->on[path];
    works(l, path);
    leg->probing = false;
    leg->up = true;
    shift_backoff_up(&leg->backoff, shift_now());
    shift_wake(l->device);
    pump(l);
}

/* ---- incoming messages and completions ---- */

static void message_in(shift_link_t *l, const shift_message_t *m) {
    bool of_path = m->type == SHIFT_PATH_DOWN || m->type == SHIFT_PATH_READY || m->type == SHIFT_PATH_UP;
    if (of_path && m->a >= (uint32_t)l->device->paths)
        return;
    int p = (int)m->a;
    switch (m->type) {
    case SHIFT_PATH_DOWN:
        if (l->on[p].generation == m->b)
            shift_link_down(l, p, false);
        break;
    case SHIFT_PATH_READY:
        if (l->on[p].peer_generation < m->b) {
            l->on[p].peer_generation = m->b;
            shift_wake(l->device);
        }
        break;
    case SHIFT_PATH_UP:
        if (l->on[p].generation == m->b && !l->on[p].up && !l->on[p].broken)
            path_up(l, p);
        break;
    default:
        l->receive(l, m);
    }
}

static void completed(const struct ibv_wc *wc) {
    slot_t *s = (slot_t *)(uintptr_t)wc->wr_id;
    shift_link_t *l = s->link;
    shift_link_leg_t *leg = &l->on[s->path];
    bool current = wc->qp_num == leg->qp->qp_num;
    if (s->kind == RECV) {
        if (wc->status == IBV_WC_SUCCESS && current) {
            works(l, s->path);
            shift_message_t got[BATCH];
            uint32_t n = wc->byte_len / sizeof *got;
            memcpy(got, s->messages, n * sizeof *got);
            post_recv(s);
            for (uint32_t i = 0; i < n; i++)
                message_in(l, &got[i]);
        }
        return;
    }
    s->used = false;
    if (s->kind == PROBE) {
        if (wc->status == IBV_WC_SUCCESS && leg->probing) {
            shift_link_send(l, &(shift_message_t){.type = SHIFT_PATH_UP, .a = s->path, .b = leg->generation});
            path_up(l, s->path);
        } else {
            shift_link_down(l, s->path, false);
        }
        return;
    }
    if (wc->status == IBV_WC_SUCCESS) {
        works(l, s->path);
        sent(s);
    } else {
        wait_again(l, s);
        shift_link_down(l, s->path, true);
    }
    pump(l);
}

void shift_link_poll(shift_device_t *d, int path) {
    struct ibv_cq *cq = d->path[path].cq;
    struct ibv_wc wc[16];
    int n;
    while ((n = cq->context->ops.poll_cq(cq, 16, wc)) > 0)
        for (int i = 0; i < n; i++)
            completed(&wc[i]);
}

/* ---- rounds, and the end ---- */

void shift_link_step(shift_link_t *l) {
    uint64_t now = shift_now();
    if (!l->connected)
        set_up(l);
    if (!l->connected)
        return;
    if (now >= l->next_rkeys)
        shift_rkeys_learn(l);
    for (int p = 0; p < l->device->paths; p++)
        mend(l, p, now);
    meet(l, now);
}

static void free_link(shift_link_t *l) {
    for (int p = 0; p < SHIFT_PATHS; p++) {
        if (l->on[p].qp)
            shift_real()->destroy_qp(l->on[p].qp);
        if (l->on[p].mr)
            shift_real()->dereg_mr(l->on[p].mr);
        for (int k = 0; l->on[p].slots && k <= 2 * SHIFT_LINK_DEPTH; k++)
            sent(slot_at(&l->on[p], k));
        free(l->on[p].slots);
    }
    for (outgoing_t *m = l->out, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    for (uint32_t i = 0; l->rkeys.slots && i <= l->rkeys.slots->mask; i++)
        free(l->rkeys.slots->at[i].value);
    shift_map_free(&l->rkeys);
    free(l);
}

void shift_links_free(shift_device_t *d) {
    while (d->links) {
        shift_link_t *l = d->links;
        d->links = l->next;
        free_link(l);
    }
}
