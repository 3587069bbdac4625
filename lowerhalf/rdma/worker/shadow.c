/* shadow.c - the shadow verbs: what the program has set up on its RNIC, executed again on the backups (SHIFT paper,
 * section 4.1).
 *
 * Objects record what is still missing for them. The worker goes through them again and again and does what is
 * possible. A step that needs something that does not exist yet (mostly the peer's backup attributes) waits for the
 * next round. So no order of set-up on the two sides can cause a deadlock.
 *
 * A thousand queue pairs can be set up in a second or two only if the key-value agent isn't asked a thousand times. So
 * what is to be published is recorded, and sent many keys at a time (keys.c). Queries for peers are batched, too. A
 * peer that isn't there yet is queried less and less often, each by its own timer.
 *
 * The peers exchange information through the key-value agent (kv.h), under names made of attributes that the programs
 * themselves have exchanged:
 *   qp/<GID or LID>/<number>   of the default queue pair as the peer addresses it -> struct qp_value: the legs on the
 *                              backups
 *   mr/<device id>/<n>         n-th registered region -> uint32_t[SHIFT_PATHS]: remote keys on the default path and on
 *                              each backup; zeros: no longer exists
 * A number may belong to an earlier queue pair: a value is used only if that queue pair is connected to us and expects
 * our packet sequence number.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "journal/journal.h"
#include "objects/regions.h"
#include "objects/slow_path.h"
#include "worker/worker.h"

#include <errno.h>
#include <string.h>

enum {
    RECEIVER_NS = 300000000,
    ROUND_NS = 20000000,
    FIRST_LOOK_NS = 1000000,
    LAST_LOOK_NS = 500000000,
    STRANGER_MS = 10000,
};

struct __attribute__((packed)) qp_value {
    uint64_t device;
    uint32_t dest_qpn, expected_psn;
    uint8_t paths;
    uint8_t shares; /* it receives from a shared receive queue */
    uint8_t takes_writes; /* it has IBV_ACCESS_REMOTE_WRITE */
    struct __attribute__((packed)) {
        uint32_t qpn, psn;
        uint16_t lid;
        uint8_t mtu;
        union ibv_gid gid;
    } leg[SHIFT_PATHS];
};

/* Runs `verb`, which may take long, without the lock. The object is busy meanwhile. */
#define UNLOCKED(d, verb)                                                                                              \
    do {                                                                                                               \
        pthread_mutex_unlock(&(d)->lock);                                                                              \
        verb;                                                                                                          \
        pthread_mutex_lock(&(d)->lock);                                                                                \
    } while (0)

static bool shadow_pd(shift_device_t *d, shift_pd_t *p) {
    for (int i = 1; i < d->paths; i++) {
        if (!d->path[i].usable || p->on[i])
            continue;
        UNLOCKED(d, p->on[i] = shift_real()->alloc_pd(d->path[i].context));
        if (!p->on[i])
            shift_report("%s cannot make a protection domain (%s): connections that need it are not protected",
                         d->path[i].name, strerror(errno));
    }
    return true;
}

static bool shadow_mr(shift_device_t *d, shift_mr_t *m) {
    uint32_t keys[SHIFT_PATHS] = {m->mr->rkey};
    for (int i = 1; i < d->paths; i++) {
        struct ibv_pd *pd = m->pd->on[i];
        if (!d->path[i].usable)
            continue;
        if (!pd && m->pd->o.waiting)
            return false;
        if (!pd) /* there will be none, which has been reported */
            continue;
        if (!m->on[i] && !m->given_back)
            UNLOCKED(d, m->on[i] = shift_register(pd, &m->memory));
        if (!m->on[i] && !m->given_back)
            shift_report("%s cannot register memory (%s): requests that use it cannot move to a backup",
                         d->path[i].name, strerror(errno));
        else if (m->on[i])
            keys[i] = m->on[i]->rkey;
    }
    char key[64];
    if (!m->told)
        m->index = d->mrs_told++;
    m->told = true;
    shift_mr_key(key, d->id, m->index);
    if (shift_kv_note(d->kv, key, keys, sizeof keys) != 0)
        return false;
    shift_memory_close(&m->memory);
    return true;
}

/* A queue that the program's has outgrown grows, too. */
static bool shadow_cq(shift_device_t *d, shift_cq_t *c) {
    for (int i = 1; i < d->paths; i++) {
        struct ibv_cq *cq = c->on[i];
        if (cq && cq->cqe < c->cq->cqe) {
            int r;
            UNLOCKED(d, r = shift_real()->resize_cq(cq, c->cq->cqe));
            if (r != 0)
                shift_report("%s cannot make a completion queue larger (%s)", d->path[i].name, strerror(r));
        }
        if (d->path[i].usable && !cq) {
            UNLOCKED(d, cq = shift_real()->create_cq(d->path[i].context, c->cq->cqe, c, d->path[i].channel, 0));
            if (cq)
                cq->context->ops.req_notify_cq(cq, 0);
            else
                shift_report("%s cannot make a completion queue (%s): connections that need it are not protected",
                             d->path[i].name, strerror(errno));
            c->on[i] = cq;
        }
    }
    return true;
}

static bool shadow_srq(shift_device_t *d, shift_srq_t *s) {
    for (int i = 1; i < d->paths; i++) {
        struct ibv_srq_init_attr init = {.attr = {.max_wr = s->max_wr, .max_sge = s->max_sge}};
        struct ibv_srq *srq;
        if (!d->path[i].usable || s->on[i].srq)
            continue;
        if (!s->pd->on[i] && s->pd->o.waiting)
            return false;
        if (!s->pd->on[i])
            continue;
        UNLOCKED(d, srq = shift_real()->create_srq(s->pd->on[i], &init));
        if (!srq)
            shift_report("%s cannot make a shared receive queue (%s): connections that need it are not protected",
                         d->path[i].name, strerror(errno));
        s->on[i].srq = srq;
    }
    return true;
}

static bool make_leg(shift_device_t *d, shift_qp_t *q, int path) {
    shift_leg_t *leg = &q->legs[path];
    struct ibv_qp_init_attr init = q->init;
    if (!q->pd->on[path] || !q->send_cq->on[path] || !q->recv_cq->on[path] || (q->srq && !q->srq->on[path].srq))
        return false;
    init.send_cq = q->send_cq->on[path];
    init.recv_cq = q->recv_cq->on[path];
    init.srq = q->srq ? q->srq->on[path].srq : NULL;
    init.qp_context = q;
    struct ibv_qp *qp;
    UNLOCKED(d, qp = shift_real()->create_qp(q->pd->on[path], &init));
    if (!qp) {
        shift_report("%s cannot make a queue pair (%s): connections that need it are not protected", d->path[path].name,
                     strerror(errno));
        return false;
    }
    leg->qp = qp;
    leg->send_psn = (uint32_t)(shift_now() * 2654435761u >> 8) & SHIFT_PSN_MASK;
    return shift_map_put(&d->path[path].qps, qp->qp_num, q) == 0;
}

static bool publish_qp(shift_device_t *d, shift_qp_t *q) {
    struct qp_value v = {.device = d->id,
                         .dest_qpn = q->attr.dest_qp_num,
                         .expected_psn = q->attr.rq_psn & SHIFT_PSN_MASK,
                         .paths = (uint8_t)d->paths,
                         .shares = q->srq != NULL,
                         .takes_writes = !!(q->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)};
    for (int i = 1; i < d->paths; i++) {
        v.leg[i].qpn = q->legs[i].qp ? q->legs[i].qp->qp_num : 0;
        v.leg[i].psn = q->legs[i].send_psn;
        v.leg[i].lid = d->path[i].lid;
        v.leg[i].mtu = (uint8_t)d->path[i].mtu;
        v.leg[i].gid = d->path[i].gid.gid;
    }
    char key[64];
    return shift_qp_key(key, q, false) && shift_kv_note(d->kv, key, &v, sizeof v) == 0;
}

/* Is the value that was found in the store under the peer's name really the peer's? */
static bool take_peer(shift_device_t *d, shift_qp_t *q, const shift_kv_found_t *found) {
    struct qp_value v;
    memcpy(&v, found->value, sizeof v);
    if (found->size != sizeof v || v.dest_qpn != q->qp->qp_num ||
        (q->state == IBV_QPS_RTS && v.expected_psn != (q->attr.sq_psn & SHIFT_PSN_MASK))) {
        /* while other peers are found, this one may only be slow */
        uint64_t since = q->since > d->found ? q->since : d->found;
        if (shift_now() - since > STRANGER_MS * UINT64_C(1000000))
            shift_report(
                "a peer of %s does not run under SHIFT (or without backups): connections to it are not protected",
                d->path[0].name);
        return false;
    }
    bool any = false;
    q->peer_shares = v.shares;
    q->peer_takes_writes = v.takes_writes;
    /* It has no number of its own for its sends. Our number on the way back must be the one that the peer expects. */
    if (q->state != IBV_QPS_RTS)
        q->legs[0].send_psn = q->legs[0].next_psn = v.expected_psn;
    for (int i = 1; i < d->paths && i < v.paths; i++) {
        shift_leg_t *leg = &q->legs[i];
        if (!leg->qp || !v.leg[i].qpn)
            continue;
        leg->peer_qpn = v.leg[i].qpn;
        leg->recv_psn = v.leg[i].psn;
        leg->peer_gid = v.leg[i].gid;
        leg->peer_lid = v.leg[i].lid;
        leg->mtu = v.leg[i].mtu < (uint8_t)d->path[i].mtu ? v.leg[i].mtu : (uint8_t)d->path[i].mtu;
        if (leg->mtu < (uint8_t)q->attr.path_mtu)
            shift_report("%s has a smaller MTU than %s: traffic on it uses %u bytes", d->path[i].name, d->path[0].name,
                         128u << leg->mtu);
        any = true;
    }
    d->found = shift_now();
    q->link = any ? shift_link_find(d, v.device, shift_message_in) : NULL;
    return q->link != NULL;
}

/* True: the only step left is to find its peer, or there is none. */
static bool shadow_qp(shift_device_t *d, shift_qp_t *q) {
    bool any = false;
    for (int i = 1; i < d->paths; i++) {
        if (d->path[i].usable && !q->legs[i].qp && !make_leg(d, q, i))
            return false;
        any |= q->legs[i].qp != NULL;
    }
    if (!any) { /* why no backup is usable has been reported already */
        q->o.waiting = false;
        return true;
    }
    if (!(q->attr_mask & IBV_QP_DEST_QPN) || !publish_qp(d, q))
        return false;
    q->published = true;
    q->since = shift_now();
    q->next_look = q->since + FIRST_LOOK_NS;
    return true;
}

/* A side that only receives may never go to RTS: then it has no number to compare. */
static bool look_now(const shift_qp_t *q, uint64_t now) {
    return q->published && now >= q->next_look && (q->state == IBV_QPS_RTS || now - q->since >= RECEIVER_NS);
}

/* Its peer is known: connects the backups' legs. True: this is finished. */
static bool connect_legs(shift_device_t *d, shift_qp_t *q) {
    bool any = false;
    for (int i = 1; i < d->paths; i++) {
        if (!q->legs[i].qp || !q->legs[i].peer_qpn)
            continue;
        struct ibv_qp_attr a = shift_leg_attributes(q, i, 0);
        bool early = q->state != IBV_QPS_RTS;
        int r;
        UNLOCKED(d, r = shift_leg_bring_up(q, i, &a));
        if (q->states.sq == SHIFT_SQ_RELEASED) /* the program has released it meanwhile */
            return true;
        if (r == 0) {
            shift_leg_make_ready(q, i, 0, &a);
            q->legs[i].early = early;
        }
        any |= r == 0;
    }
    if (any) {
        shift_tell(q, "protected");
        shift_linked(q);
        if (shift_needs_attention(q))
            shift_attend(q, true);
    }
    return true;
}

static void release(shift_device_t *d, shift_object_t *o) {
    o->busy = false;
    pthread_cond_broadcast(&d->idle);
}

/* Queries the peers of these queue pairs, which are busy, in one request, and continues with those that are found. */
static void find_peers(shift_device_t *d, shift_qp_t **of, int n) {
    shift_kv_found_t asked[SHIFT_KV_BATCH];
    int r;
    for (int i = 0; i < n; i++)
        shift_qp_key(asked[i].key, of[i], true);
    UNLOCKED(d, r = n ? shift_kv_find(d->kv, asked, n) : 0);
    uint64_t now = shift_now();
    for (int i = 0; i < n; i++) {
        shift_qp_t *q = of[i];
        uint64_t pause = (now - q->since) / 4;
        q->next_look = now + (pause < LAST_LOOK_NS ? pause : LAST_LOOK_NS);
        if (q->states.sq == SHIFT_SQ_RELEASED || (r == 0 && take_peer(d, q, &asked[i]) && connect_legs(d, q)))
            q->o.waiting = false;
        release(d, &q->o);
    }
}

static bool shadow(shift_device_t *d, shift_object_t *o) {
    switch (o->kind) {
    case SHIFT_PD:
        return shadow_pd(d, (shift_pd_t *)o);
    case SHIFT_MR:
        return shadow_mr(d, (shift_mr_t *)o);
    case SHIFT_CQ:
        return shadow_cq(d, (shift_cq_t *)o);
    default:
        return shadow_srq(d, (shift_srq_t *)o);
    }
}

void shift_shadow_step(shift_device_t *d) {
    if (!d->work)
        return;
    uint64_t begun = shift_now();
    shift_qp_t *seek[SHIFT_KV_BATCH];
    int n = 0;
    shift_object_t *o = d->cursor ? d->cursor : d->objects;
    if (!d->cursor)
        d->work = false;
    d->cursor = NULL;
    for (; o && n < SHIFT_KV_BATCH; o = o->next) {
        shift_qp_t *q = (shift_qp_t *)o;
        if (!o->waiting)
            continue;
        if (shift_now() - begun > ROUND_NS) /* queue pairs that are already protected may need the worker */
            break;
        o->busy = true;
        if (o->kind != SHIFT_QP)
            o->waiting = !shadow(d, o);
        else if (q->states.sq == SHIFT_SQ_RELEASED)
            o->waiting = false;
        else if (!q->published)
            shadow_qp(d, q);
        d->work |= o->waiting;
        if (o->kind == SHIFT_QP && o->waiting && look_now(q, begun))
            seek[n++] = q;
        else
            release(d, o);
    }
    d->cursor = o;
    d->work |= o != NULL;
    find_peers(d, seek, n);
}
