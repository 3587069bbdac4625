/* links.c - see links.h. All functions run with the device's lock held, but for the key-value requests of the set-up. */
#include "links.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PSN_STEP = 0x2468ad,
    TIMEOUT = 15, /* 4.096 us * 2^15 = 134 ms */
    RETRIES = 6,  /* a second in all: a busy machine is not a broken path, and this link may be the last way out */
    PROBE_EVERY_MS = 200,
};

typedef enum slot_kind { RECV, SEND, PROBE } slot_kind_t;

/* A message buffer that a control queue pair is using. */
typedef struct slot {
    shift_link_t *link;
    uint8_t path;
    slot_kind_t kind;
    bool used;
    struct outgoing *carries; /* SEND */
    shift_message_t message;
} slot_t;

/* A message until the peer has it. */
typedef struct outgoing {
    struct outgoing *next;
    shift_message_t message;
    int8_t path; /* that it is on; -1: waits */
} outgoing_t;

struct __attribute__((packed)) link_value {
    uint8_t paths;
    struct __attribute__((packed)) {
        uint32_t qpn;
        uint16_t lid;
        union ibv_gid gid;
    } on[SHIFT_PATHS];
};

static slot_t *slot_at(const shift_link_leg_t *leg, int i) { return (slot_t *)leg->slots + i; }

static bool make_leg(shift_link_t *l, int path)
{
    shift_device_t *d = l->device;
    shift_path_t *via = &d->path[path];
    shift_link_leg_t *leg = &l->on[path];
    struct ibv_qp_init_attr init = {.send_cq = via->cq, .recv_cq = via->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
                                    .cap = {.max_send_wr = SHIFT_LINK_DEPTH + 1, .max_recv_wr = SHIFT_LINK_DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
    size_t bytes = (2 * SHIFT_LINK_DEPTH + 1) * sizeof(slot_t);
    leg->slots = calloc(1, bytes);
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

shift_link_t *shift_link_find(shift_device_t *d, uint64_t peer)
{
    for (shift_link_t *l = d->links; l; l = l->next)
        if (l->peer == peer)
            return l;
    shift_link_t *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->device = d;
    l->peer = peer;
    pthread_mutex_init(&l->rkeys.lock, NULL);
    for (int p = 0; p < d->paths; p++)
        if (d->path[p].usable)
            make_leg(l, p);
    l->next = d->links;
    d->links = l;
    return l;
}

static void post_recv(slot_t *s)
{
    shift_link_leg_t *leg = &s->link->on[s->path];
    struct ibv_sge sge = {(uintptr_t)&s->message, sizeof s->message, leg->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uintptr_t)s, .sg_list = &sge, .num_sge = 1}, *bad;
    leg->qp->context->ops.post_recv(leg->qp, &wr, &bad);
}

/* To RTS, from whatever state. */
static bool connect_leg(shift_link_t *l, int path)
{
    shift_path_t *via = &l->device->path[path];
    shift_link_leg_t *leg = &l->on[path];
    uint32_t psn = (leg->generation * PSN_STEP) & SHIFT_PSN_MASK;
    struct ibv_qp_attr a = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .port_num = via->port, .path_mtu = IBV_MTU_256, .dest_qp_num = leg->peer_qpn, .rq_psn = psn,
                            .sq_psn = psn, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 1, .timeout = TIMEOUT, .retry_cnt = RETRIES, .rnr_retry = 7,
                            .ah_attr = {.dlid = leg->peer_lid, .is_global = via->ethernet, .port_num = via->port,
                                        .grh = {.dgid = leg->peer_gid, .sgid_index = via->gid_index, .hop_limit = 64}}};
    if (shift_qp_step(leg->qp, &a, IBV_QPS_RESET) != 0 || shift_qp_step(leg->qp, &a, IBV_QPS_INIT) != 0)
        return false;
    for (int k = 0; k < SHIFT_LINK_DEPTH; k++)
        post_recv(slot_at(leg, k));
    if (shift_qp_step(leg->qp, &a, IBV_QPS_RTR) != 0 || shift_qp_step(leg->qp, &a, IBV_QPS_RTS) != 0)
        return false;
    for (int k = SHIFT_LINK_DEPTH; k <= 2 * SHIFT_LINK_DEPTH; k++)
        slot_at(leg, k)->used = false;
    return true;
}

static void set_up(shift_link_t *l)
{
    shift_device_t *d = l->device;
    char key[64];
    struct link_value v = {.paths = (uint8_t)d->paths};
    int r;
    if (!l->published) {
        for (int p = 0; p < d->paths; p++) {
            v.on[p].qpn = l->on[p].qp ? l->on[p].qp->qp_num : 0;
            v.on[p].lid = d->path[p].lid;
            v.on[p].gid = d->path[p].gid;
        }
        snprintf(key, sizeof key, "link/%016llx/%016llx", (unsigned long long)d->id, (unsigned long long)l->peer);
        pthread_mutex_unlock(&d->lock);
        r = shift_kv_put(d->kv, key, &v, sizeof v);
        pthread_mutex_lock(&d->lock);
        l->published = r == 0;
    }
    snprintf(key, sizeof key, "link/%016llx/%016llx", (unsigned long long)l->peer, (unsigned long long)d->id);
    pthread_mutex_unlock(&d->lock);
    r = shift_kv_get(d->kv, key, &v, sizeof v);
    pthread_mutex_lock(&d->lock);
    if (!l->published || r != sizeof v)
        return;
    for (int p = 0; p < d->paths && p < v.paths; p++) {
        shift_link_leg_t *leg = &l->on[p];
        if (!leg->qp || !v.on[p].qpn)
            continue;
        leg->peer_qpn = v.on[p].qpn;
        leg->peer_lid = v.on[p].lid;
        leg->peer_gid = v.on[p].gid;
        leg->connected = leg->up = connect_leg(l, p);
    }
    l->connected = true;
}

/* ---- messages ---- */

static slot_t *free_slot(shift_link_leg_t *leg)
{
    for (int i = SHIFT_LINK_DEPTH; i < 2 * SHIFT_LINK_DEPTH; i++)
        if (!slot_at(leg, i)->used)
            return slot_at(leg, i);
    return NULL;
}

static void pump(shift_link_t *l)
{
    for (outgoing_t *m = l->out; m; m = m->next) {
        if (m->path >= 0)
            continue;
        for (int k = 0; k < l->device->paths; k++) {
            int p = (k + 1) % l->device->paths; /* backups first: they are idle, and the default path may be breaking */
            shift_link_leg_t *leg = &l->on[p];
            slot_t *s = leg->up ? free_slot(leg) : NULL;
            if (!s)
                continue;
            s->message = m->message;
            struct ibv_sge sge = {(uintptr_t)&s->message, sizeof s->message, leg->mr->lkey};
            struct ibv_send_wr wr = {.wr_id = (uintptr_t)s, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
            if (leg->qp->context->ops.post_send(leg->qp, &wr, &bad) != 0)
                continue;
            s->used = true;
            s->carries = m;
            m->path = (int8_t)p;
            break;
        }
    }
}

void shift_link_send(shift_link_t *l, const shift_message_t *message)
{
    outgoing_t *m = calloc(1, sizeof *m);
    if (!m) {
        shift_report("no memory for a control message");
        return;
    }
    m->message = *message;
    m->path = -1;
    *(l->out ? &l->out_last->next : &l->out) = m;
    l->out_last = m;
    pump(l);
}

static void sent(shift_link_t *l, const outgoing_t *m)
{
    outgoing_t **at = &l->out, *before = NULL;
    while (*at && *at != m) {
        before = *at;
        at = &(*at)->next;
    }
    if (!*at)
        return;
    if (l->out_last == *at)
        l->out_last = before;
    outgoing_t *gone = *at;
    *at = gone->next;
    free(gone);
}

bool shift_link_alive(const shift_link_t *l)
{
    for (int p = 0; p < l->device->paths; p++)
        if (l->on[p].up)
            return true;
    return !l->connected; /* still coming up */
}

void shift_link_down(shift_link_t *l, int path, bool tell)
{
    shift_link_leg_t *leg = &l->on[path];
    if (!leg->up && !leg->probing)
        return;
    bool was = leg->up;
    leg->up = leg->probing = false;
    leg->next_probe = shift_now() + PROBE_EVERY_MS * 1000000u;
    if (leg->qp)
        shift_qp_fence(leg->qp); /* what is on it comes back, and goes another way */
    if (was && tell)
        shift_link_send(l, &(shift_message_t){.type = SHIFT_PATH_DOWN, .a = (uint32_t)path, .b = leg->generation});
}

/* ---- probing of a lost path: the side with the smaller id asks, both make the control queue pair ready again, an empty write tells ---- */

static bool asks(const shift_link_t *l) { return l->device->id < l->peer; }

static void probe(shift_link_t *l, int path)
{
    shift_link_leg_t *leg = &l->on[path];
    leg->next_probe = shift_now() + 3000000000u; /* should the answer get lost */
    leg->generation++;
    if (!connect_leg(l, path))
        return;
    leg->probing = true;
    shift_link_send(l, &(shift_message_t){.type = SHIFT_PATH_RESET, .a = (uint32_t)path, .b = leg->generation});
}

static void write_probe(shift_link_t *l, int path)
{
    shift_link_leg_t *leg = &l->on[path];
    slot_t *s = slot_at(leg, 2 * SHIFT_LINK_DEPTH);
    struct ibv_send_wr wr = {.wr_id = (uintptr_t)s, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
    if (leg->qp->context->ops.post_send(leg->qp, &wr, &bad) == 0)
        s->used = true;
}

static void path_up(shift_link_t *l, int path)
{
    shift_link_leg_t *leg = &l->on[path];
    leg->probing = false;
    leg->up = true;
    shift_wake(l->device);
    pump(l);
}

/* ---- messages and completions that came in ---- */

static void message_in(shift_link_t *l, const shift_message_t *m)
{
    int p = (int)m->a;
    switch (m->type) {
    case SHIFT_PATH_DOWN:
        if (p < l->device->paths && l->on[p].generation == m->b)
            shift_link_down(l, p, false);
        break;
    case SHIFT_PATH_RESET:
        if (p >= l->device->paths || !l->on[p].qp)
            break;
        l->on[p].up = false;
        l->on[p].generation = m->b;
        if (connect_leg(l, p))
            shift_link_send(l, &(shift_message_t){.type = SHIFT_PATH_RESET_DONE, .a = m->a, .b = m->b});
        break;
    case SHIFT_PATH_RESET_DONE:
        if (p < l->device->paths && l->on[p].probing && l->on[p].generation == m->b)
            write_probe(l, p);
        break;
    case SHIFT_PATH_UP:
        if (p < l->device->paths && l->on[p].generation == m->b && !l->on[p].up)
            path_up(l, p);
        break;
    default:
        shift_message_in(l, m);
    }
}

static void completed(const struct ibv_wc *wc)
{
    slot_t *s = (slot_t *)(uintptr_t)wc->wr_id;
    shift_link_t *l = s->link;
    shift_link_leg_t *leg = &l->on[s->path];
    bool current = wc->qp_num == leg->qp->qp_num;
    if (s->kind == RECV) {
        if (wc->status == IBV_WC_SUCCESS && current) {
            shift_message_t m = s->message;
            post_recv(s);
            message_in(l, &m);
        }
        return;
    }
    s->used = false;
    if (s->kind == PROBE) {
        if (wc->status == IBV_WC_SUCCESS && leg->probing) {
            shift_link_send(l, &(shift_message_t){.type = SHIFT_PATH_UP, .a = s->path, .b = leg->generation});
            path_up(l, s->path);
        } else if (leg->probing) {
            leg->probing = false;
            leg->next_probe = shift_now() + PROBE_EVERY_MS * 1000000u;
        }
        return;
    }
    outgoing_t *m = s->carries;
    s->carries = NULL;
    if (wc->status == IBV_WC_SUCCESS) {
        if (m)
            sent(l, m);
    } else {
        if (m)
            m->path = -1;
        shift_link_down(l, s->path, true);
    }
    pump(l);
}

void shift_link_poll(shift_device_t *d, int path)
{
    struct ibv_cq *cq = d->path[path].cq;
    struct ibv_wc wc[16];
    int n;
    while ((n = cq->context->ops.poll_cq(cq, 16, wc)) > 0)
        for (int i = 0; i < n; i++)
            completed(&wc[i]);
}

/* ---- the peer's memory keys ---- */

const uint32_t *shift_link_rkey(shift_link_t *l, uint32_t rkey)
{
    const uint32_t *known = shift_map_get(&l->rkeys, (uint64_t)rkey + 1);
    if (!known)
        l->next_rkeys = 0; /* ask now */
    return known;
}

static void learn(shift_link_t *l, uint32_t *keys)
{
    uint32_t *old = shift_map_get(&l->rkeys, (uint64_t)keys[0] + 1);
    if (old) { /* the number was that of a region that is gone */
        memcpy(old, keys, SHIFT_PATHS * sizeof *keys);
        free(keys);
    } else {
        shift_map_put(&l->rkeys, (uint64_t)keys[0] + 1, keys);
    }
}

/* Regions are numbered in order of registration: ask for the next ones until there is none (yet). */
static void learn_rkeys(shift_link_t *l)
{
    shift_device_t *d = l->device;
    for (;;) {
        uint32_t *keys = calloc(SHIFT_PATHS, sizeof *keys);
        char key[64];
        shift_mr_key(key, l->peer, l->rkeys_known);
        pthread_mutex_unlock(&d->lock);
        int r = keys ? shift_kv_get(d->kv, key, keys, SHIFT_PATHS * sizeof *keys) : -ENOMEM;
        pthread_mutex_lock(&d->lock);
        if (r != (int)(SHIFT_PATHS * sizeof *keys)) {
            free(keys);
            break;
        }
        l->rkeys_known++;
        if (keys[0])
            learn(l, keys);
        else
            free(keys);
    }
    l->next_rkeys = shift_now() + 1000000000u;
}

void shift_link_step(shift_link_t *l)
{
    uint64_t now = shift_now();
    if (!l->connected)
        set_up(l);
    if (!l->connected)
        return;
    if (now >= l->next_rkeys)
        learn_rkeys(l);
    for (int p = 0; p < l->device->paths; p++) {
        shift_link_leg_t *leg = &l->on[p];
        if (leg->connected && !leg->up && asks(l) && now >= leg->next_probe && l->device->path[p].port_up && shift_link_alive(l))
            probe(l, p);
    }
    pump(l);
}

void shift_link_free(shift_link_t *l)
{
    for (int p = 0; p < SHIFT_PATHS; p++) {
        if (l->on[p].qp)
            shift_real()->destroy_qp(l->on[p].qp);
        if (l->on[p].mr)
            shift_real()->dereg_mr(l->on[p].mr);
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
