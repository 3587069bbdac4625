/* verbs.c - the control verbs that the program calls, except those of memory (memory.c): the provider's verb first,
 * then a record of it for the backups (shadow.c).
 *
 * Invariant: the program gets what libibverbs returned, and no control verb waits for a backup. One exception:
 * destroying an object waits for a shadow verb that is being executed on it.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "failover/srq.h"
#include "journal/journal.h"
#include "objects/slow_path.h"
#include "objects/device.h"
#include "objects/gids.h"
#include "verbs/verbs.h"
#include "worker/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct ibv_context *context = shift_real()->open_device(device);
    if (!context || !getenv("MANAPY_SHIFT_AGENT"))
        return context;
    shift_device_t *d = shift_device_add(context);
    if (!d)
        return context;
    context->ops.post_send = shift_post_send;
    context->ops.post_recv = shift_post_recv;
    context->ops.post_srq_recv = shift_post_srq_recv;
    context->ops.poll_cq = shift_poll_cq;
    context->ops.req_notify_cq = shift_req_notify_cq;
    struct verbs_context *v = verbs_get_ctx(context);
    if (d->create_qp_ex)
        v->create_qp_ex = create_qp_ex;
    if (d->create_cq_ex)
        v->create_cq_ex = create_cq_ex;
    if (d->alloc_parent_domain)
        v->alloc_parent_domain = shift_alloc_parent_domain;
    return context;
}

EXPORT int ibv_close_device(struct ibv_context *context) {
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)context);
    if (d) {
        shift_worker_stop(d);
        shift_record_end(d);
        shift_map_remove(&shift_devices, (uintptr_t)context);
        shift_links_free(d);
        shift_keys_free(d);
        shift_device_free(d);
    }
    return shift_real()->close_device(context);
}

/* Queue pairs that we don't see may receive from a shared queue, and then the provider has our numbers of the receives.
 * Device lock held. */
static void mark_foreign(shift_cq_t *c) {
    shift_spin_lock(&c->lock);
    c->foreign = c->o.device->srqs && !c->known;
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
}

static shift_cq_t *record_cq(struct ibv_cq *cq) {
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)cq->context);
    shift_cq_t *c = d ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return NULL;
    c->cq = cq;
    c->poll = d->ops.poll_cq;
    shift_cq_mode(c);
    if (shift_map_put(&shift_cqs, (uintptr_t)cq, c) < 0) {
        free(c);
        return NULL;
    }
    shift_object_add(&c->o, SHIFT_CQ, d);
    pthread_mutex_lock(&d->lock);
    mark_foreign(c);
    pthread_mutex_unlock(&d->lock);
    return c;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                    struct ibv_comp_channel *channel, int comp_vector) {
    struct ibv_cq *cq = shift_real()->create_cq(context, cqe, cq_context, channel, comp_vector);
    if (cq)
        record_cq(cq);
    return cq;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)context);
    struct ibv_cq_init_attr_ex mine = *attr;
    bool can = shift_can_extend_cq(attr);
    mine.wc_flags |= IBV_WC_EX_WITH_QP_NUM; /* we must know which queue pair an error belongs to */
    if (can && d->paths > 1)
        mine.flags &= ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED; /* the worker polls it, too */
    struct ibv_cq_ex *x = d->create_cq_ex(context, &mine);
    if (!x || !can) {
        if (x)
            shift_pass("completion queues with time stamps, tags or ignored overruns");
        return x;
    }
    shift_cq_t *c = record_cq(ibv_cq_ex_to_cq(x));
    if (c)
        shift_extend_cq(c, x);
    return x;
}

EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe) {
    shift_cq_t *c = shift_map_get(&shift_cqs, (uintptr_t)cq);
    int r = shift_real()->resize_cq(cq, cqe);
    if (r == 0 && c) {
        pthread_mutex_lock(&c->o.device->lock);
        for (int p = 1; p < SHIFT_PATHS; p++)
            if (c->on[p])
                shift_real()->resize_cq(c->on[p], cqe);
        pthread_mutex_unlock(&c->o.device->lock);
    }
    return r;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq) {
    shift_cq_t *c = shift_map_get(&shift_cqs, (uintptr_t)cq);
    if (!c)
        return shift_real()->destroy_cq(cq);
    /* the worker must not find a queue that the provider has freed, and its address may be used again at once */
    shift_device_t *d = c->o.device;
    shift_object_remove(&c->o);
    shift_map_remove(&shift_cqs, (uintptr_t)cq);
    if (c->bell) /* it uses the queue */
        shift_real()->destroy_qp(c->bell);
    c->bell = NULL;
    pthread_mutex_unlock(&d->lock);
    int r = shift_real()->destroy_cq(cq);
    if (r != 0) { /* queue pairs still use it */
        shift_map_put(&shift_cqs, (uintptr_t)cq, c);
        shift_object_add(&c->o, SHIFT_CQ, d);
        return r;
    }
    for (int p = 1; p < SHIFT_PATHS; p++)
        if (c->on[p])
            shift_real()->destroy_cq(c->on[p]);
    free(c->provider);
    free(c->stash);
    free(c->ready);
    free(c);
    return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    int r = shift_real()->get_cq_event(channel, cq, cq_context);
    shift_cq_t *c = r == 0 ? shift_map_get(&shift_cqs, (uintptr_t)*cq) : NULL;
    if (c)
        c->armed = 0;
    return r;
}

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    struct ibv_srq *srq = shift_real()->create_srq(pd, attr);
    shift_pd_t *p = srq ? shift_map_get(&shift_pds, (uintptr_t)pd) : NULL;
    shift_device_t *d = p ? p->o.device : NULL;
    if (!d || d->paths == 1 || !shift_srq_add(srq, p, &attr->attr)) /* with the sizes that the provider has chosen */
        return srq;
    pthread_mutex_lock(&d->lock);
    for (shift_object_t *o = d->objects; o; o = o->next)
        if (o->kind == SHIFT_CQ)
            mark_foreign((shift_cq_t *)o);
    pthread_mutex_unlock(&d->lock);
    return srq;
}

/* If the new size is too small, receives wait, and fail at the next post. */
EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask) {
    shift_srq_t *s = shift_map_get(&shift_srqs, (uintptr_t)srq);
    int r = shift_real()->modify_srq(srq, attr, mask);
    if (r == 0 && s && (mask & IBV_SRQ_MAX_WR)) {
        struct ibv_srq_attr now;
        bool known = shift_real()->query_srq(srq, &now) == 0;
        pthread_mutex_lock(&s->o.device->lock);
        s->max_wr = known ? now.max_wr : attr->max_wr;
        for (int p = 1; p < SHIFT_PATHS; p++)
            if (s->on[p].srq)
                shift_real()->modify_srq(s->on[p].srq, attr, IBV_SRQ_MAX_WR);
        pthread_mutex_unlock(&s->o.device->lock);
    }
    return r;
}

EXPORT int ibv_destroy_srq(struct ibv_srq *srq) {
    shift_srq_t *s = shift_map_get(&shift_srqs, (uintptr_t)srq);
    if (s)
        shift_srq_close_taps(s);
    int r = shift_real()->destroy_srq(srq);
    if (r == 0 && s)
        shift_srq_remove(s);
    return r;
}

static const char *why_not(const struct ibv_qp_init_attr *attr, const shift_qp_t *q) {
    if (attr->qp_type != IBV_QPT_RC)
        return "queue pairs of another type than RC";
    if (attr->srq && !q->srq)
        return "queue pairs with an extended shared receive queue (ibv_create_srq_ex)";
    if (q->srq && q->srq->passed && q->recv_cq)
        return "queue pairs on a shared receive queue of which another queue pair is not protected";
    if (!q->pd || !q->send_cq || !q->recv_cq)
        return "queue pairs on imported protection domains, or on completion queues that are not protected,";
    return NULL;
}

/* Without a rewind, polls must retire completions. */
static void keep_notes(shift_qp_t *q) {
    shift_cq_t *both[] = {q->send_cq, q->recv_cq};
    for (int i = 0; i < 2 && !q->rewinds; i++) {
        shift_spin_lock(&both[i]->lock);
        both[i]->noted = true;
        shift_cq_mode(both[i]);
        shift_spin_unlock(&both[i]->lock);
    }
}

/* A queue pair of the queue is recorded. `shares`: receives from a shared queue complete there. NULL: it isn't recorded
 * itself. Device lock held. */
static void know(shift_cq_t *c, bool shares) {
    if (!c || (c->known && (c->shared || !shares)))
        return;
    shift_spin_lock(&c->lock);
    c->known = true;
    c->foreign = false;
    c->shared |= shares;
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
}

/* Nothing translates the completions of a queue that isn't recorded. So from now on the provider gets the program's own
 * receives, and no queue pair of the shared queue is protected any more. */
static void pass_srq(struct ibv_srq *srq, const struct ibv_cq *cq) {
    shift_srq_t *s = srq ? shift_map_get(&shift_srqs, (uintptr_t)srq) : NULL;
    if (!s || shift_map_get(&shift_cqs, (uintptr_t)cq))
        return;
    pthread_mutex_lock(&s->o.device->lock);
    __atomic_store_n(&s->passed, true, __ATOMIC_RELAXED);
    for (shift_object_t *o = s->o.device->objects; o; o = o->next) {
        shift_qp_t *q = (shift_qp_t *)o;
        if (o->kind == SHIFT_QP && q->srq == s && !q->plain)
            shift_release(q, NULL);
    }
    pthread_mutex_unlock(&s->o.device->lock);
}

/* `operations`: those that must be available as ibv_wr_*; 0: none */
static void record_qp(struct ibv_qp *qp, const struct ibv_qp_init_attr *attr, uint64_t operations) {
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)qp->context);
    shift_qp_t *q = d ? aligned_alloc(64, sizeof *q) : NULL;
    if (!q)
        return;
    memset(q, 0, sizeof *q);
    q->qp = qp;
    q->post_send = d->ops.post_send;
    q->post_recv = d->ops.post_recv;
    q->init = *attr;
    q->pd = shift_map_get(&shift_pds, (uintptr_t)qp->pd);
    q->send_cq = attr->send_cq ? shift_map_get(&shift_cqs, (uintptr_t)attr->send_cq) : NULL;
    q->recv_cq = attr->recv_cq ? shift_map_get(&shift_cqs, (uintptr_t)attr->recv_cq) : NULL;
    q->srq = attr->srq ? shift_map_get(&shift_srqs, (uintptr_t)attr->srq) : NULL;
    pass_srq(attr->srq, attr->recv_cq);
    const char *why = d->paths > 1 ? why_not(attr, q) : NULL;
    q->plain = why || d->paths == 1;
    q->direct = true;
    q->legs[0].qp = qp;
    if (!why && !q->plain && operations && !shift_extend_qp(q, operations)) {
        why = "queue pairs with unusual operations (ibv_wr_bind_mw, tso ...)";
        q->plain = true;
    }
    if (why)
        shift_pass(why);
    else if (!q->plain && (shift_journal_sends(&q->sends, attr->cap.max_send_wr + 1, attr->cap.max_send_sge,
                                               attr->cap.max_inline_data) < 0 ||
                           shift_journal_recvs(&q->recvs, attr->cap.max_recv_wr + 1, attr->cap.max_recv_sge) < 0 ||
                           shift_map_put(&d->path[0].qps, qp->qp_num, q) < 0)) {
        shift_report("no memory for the work requests of a queue pair: it is not protected");
        q->plain = true;
    }
    if (!q->plain) {
        shift_rewind_attach(q);
        q->unread = q->rewinds;
        keep_notes(q);
    }
    q->straight = q->plain || q->rewinds;
    if (shift_map_put(&shift_qps, (uintptr_t)qp, q) < 0) {
        shift_map_remove(&d->path[0].qps, qp->qp_num);
        shift_rewind_detach(q);
        shift_journal_free(&q->sends);
        shift_journal_free(&q->recvs);
        free(q);
        return;
    }
    pthread_mutex_lock(&d->lock);
    if (q->srq) /* it uses receives of the shared queue, protected or not */
        q->srq->on[0].users++;
    know(q->send_cq, false);
    know(q->recv_cq, q->srq);
    pthread_mutex_unlock(&d->lock);
    shift_object_add(&q->o, SHIFT_QP, d);
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    struct ibv_qp *qp = shift_real()->create_qp(pd, attr);
    if (qp)
        record_qp(qp, attr, 0);
    return qp;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr) {
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)context);
    struct ibv_qp *qp = d->create_qp_ex(context, attr);
    if (!qp)
        return NULL;
    if (attr->comp_mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)) {
        shift_pass("queue pairs with extended attributes (ibv_create_qp_ex)");
        pass_srq(attr->srq, attr->recv_cq);
        if (attr->srq && shift_map_get(&shift_srqs, (uintptr_t)attr->srq)) {
            pthread_mutex_lock(&d->lock);
            know(shift_map_get(&shift_cqs, (uintptr_t)attr->recv_cq), true);
            pthread_mutex_unlock(&d->lock);
        }
        return qp;
    }
    struct ibv_qp_init_attr plain;
    memcpy(&plain, attr, sizeof plain); /* verbs.h: the extended structure begins with the members of this one */
    record_qp(qp, &plain, attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? attr->send_ops_flags : 0);
    return qp;
}

/* With these values (perftest's and UCX's defaults) Soft-RoCE retries for ever: no error would show that the path is
 * cut. */
static void make_errors_possible(const shift_device_t *d, struct ibv_qp_attr *attr, int mask) {
    if (!d->rxe)
        return;
    if ((mask & IBV_QP_RETRY_CNT) && attr->retry_cnt == 7)
        attr->retry_cnt = 6;
    if ((mask & IBV_QP_TIMEOUT) && attr->timeout == 0)
        attr->timeout = 14;
}

/* A queue pair that has only received so far goes to RTS; a leg that we have connected again is in RTS already. Device
 * lock held. */
static bool is_there(const shift_qp_t *q, const struct ibv_qp_attr *attr, int mask) {
    const shift_leg_t *own = &q->legs[0];
    return q->linked && (mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_RTS && q->state == IBV_QPS_RTR &&
           (q->path || own->generation || own->fenced);
}

/* Does this end the connection, or our knowledge of it? A reset of a new queue pair does not. */
static bool ends(const shift_qp_t *q, const struct ibv_qp_attr *attr, int mask) {
    bool reset = attr->qp_state == IBV_QPS_RESET && q->state != IBV_QPS_RESET;
    return (mask & IBV_QP_STATE) && (reset || attr->qp_state == IBV_QPS_ERR || attr->qp_state == IBV_QPS_SQD);
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
    shift_qp_t *q = shift_map_get(&shift_qps, (uintptr_t)qp);
    if (!q || q->plain) {
        /* Report this only now: UCX opens all devices, but connects only on those that it uses. */
        if (q && q->o.device->paths == 1 && q->init.qp_type == IBV_QPT_RC && (mask & IBV_QP_STATE) &&
            attr->qp_state == IBV_QPS_RTR)
            shift_report("%s has no backup: name one in MANAPY_SHIFT_BACKUP", q->o.device->path[0].name);
        return shift_real()->modify_qp(qp, attr, mask);
    }
    shift_device_t *d = q->o.device;
    struct ibv_qp_attr mine = *attr;
    struct ibv_gid_entry gid = {0};
    bool has_gid = (mask & IBV_QP_AV) && attr->ah_attr.is_global &&
                   shift_gid_at(qp->context, attr->ah_attr.port_num, attr->ah_attr.grh.sgid_index, &gid);
    make_errors_possible(d, &mine, mask);
    pthread_mutex_lock(&d->lock);
    bool there = is_there(q, &mine, mask);
    if (there) {
        qp->state = mine.qp_state;
    } else {
        pthread_mutex_unlock(&d->lock); /* so that the verbs of a device don't wait for each other */
        int r = shift_real()->modify_qp(qp, &mine, mask);
        if (r != 0)
            return r;
        pthread_mutex_lock(&d->lock);
    }
    if (has_gid) {
        q->gid = gid;
        q->has_gid = true;
    }
    if (ends(q, &mine, mask)) {
        if (mine.qp_state == IBV_QPS_SQD)
            shift_pass("queue pairs that the program has drained (SQD state)");
        shift_release(q, NULL);
    } else if (q->states.sq == SHIFT_SQ_RELEASED) {
        if ((mask & IBV_QP_STATE) && mine.qp_state == IBV_QPS_RTR)
            shift_pass("queue pairs that the program has reset, and connects again,");
    } else {
#define KEEP(bit, field)                                                                                               \
    if (mask & (bit)) q->attr.field = mine.field;
        KEEP(IBV_QP_ACCESS_FLAGS, qp_access_flags)
        KEEP(IBV_QP_PKEY_INDEX, pkey_index)
        KEEP(IBV_QP_PORT, port_num)
        KEEP(IBV_QP_AV, ah_attr)
        KEEP(IBV_QP_PATH_MTU, path_mtu)
        KEEP(IBV_QP_TIMEOUT, timeout)
        KEEP(IBV_QP_RETRY_CNT, retry_cnt)
        KEEP(IBV_QP_RNR_RETRY, rnr_retry)
        KEEP(IBV_QP_RQ_PSN, rq_psn)
        KEEP(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic)
        KEEP(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic)
        KEEP(IBV_QP_MIN_RNR_TIMER, min_rnr_timer)
        KEEP(IBV_QP_SQ_PSN, sq_psn)
        KEEP(IBV_QP_DEST_QPN, dest_qp_num)
#undef KEEP
        q->attr_mask |= mask;
        if (mask & IBV_QP_STATE) {
            q->state = mine.qp_state;
            if (mine.qp_state == IBV_QPS_RTR) {
                q->legs[0].recv_psn = mine.rq_psn & SHIFT_PSN_MASK;
                q->legs[0].peer_qpn = mine.dest_qp_num;
                q->legs[0].mtu = (uint8_t)mine.path_mtu;
                q->legs[0].ready = q->legs[0].peer_ready = true;
            } else if (mine.qp_state == IBV_QPS_RTS && !there) {
                q->legs[0].send_psn = q->legs[0].next_psn = mine.sq_psn & SHIFT_PSN_MASK;
            }
            if (q->linked && shift_needs_attention(q))
                shift_attend(q, true);
            d->work = true;
            if (mine.qp_state == IBV_QPS_RTR && !d->worker_runs)
                shift_worker_start(d);
        }
    }
    pthread_mutex_unlock(&d->lock);
    shift_wake(d);
    return 0;
}

/* The default leg may be in the error state without the program's knowledge. The program continues to see the
 * attributes that it has set. */
EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    int r = shift_real()->query_qp(qp, attr, mask, init);
    shift_qp_t *q = shift_map_get(&shift_qps, (uintptr_t)qp);
    if (r == 0 && q && !q->plain && q->linked && q->states.sq != SHIFT_SQ_RELEASED && attr->qp_state != q->state) {
        attr->qp_state = attr->cur_qp_state = q->state;
        attr->sq_psn = q->attr.sq_psn;
        attr->rq_psn = q->attr.rq_psn;
        qp->state = q->state;
    }
    return r;
}

/* Waits for a noted poll that found the queue pair before it was removed. */
static void let_go(shift_cq_t *c) {
    shift_spin_lock(&c->lock);
    shift_spin_unlock(&c->lock);
}

/* Before nobody knows any more that they are ours: if its default leg is being drained, requests of ours complete to
 * the program's queues. Device lock held. */
static void take_sentinels(shift_qp_t *q) {
    const shift_leg_t *leg = &q->legs[0];
    for (int i = 0; i < 100 && ((leg->sentinel_send && !leg->drained_sends) ||
                                (leg->sentinel_recv && !leg->drained_recvs)); i++) {
        if (i > 0)
            usleep(100);
        shift_gather(q->send_cq);
        if (q->recv_cq != q->send_cq)
            shift_gather(q->recv_cq);
    }
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp) {
    shift_qp_t *q = shift_map_get(&shift_qps, (uintptr_t)qp);
    uint32_t number = qp->qp_num;
    if (!q)
        return shift_real()->destroy_qp(qp);
    /* No thread may find it any more when the provider frees it; its numbers may be reused at once. */
    shift_device_t *d = q->o.device;
    shift_object_remove(&q->o);
    take_sentinels(q);
    shift_map_remove(&shift_qps, (uintptr_t)qp);
    if (!q->plain)
        shift_map_remove(&d->path[0].qps, number);
    char key[64];
    if (q->published && shift_qp_key(key, q, false))
        shift_keys_withdraw(d, key, false);
    if (!q->plain) {
        shift_set_slow(q, false);
        let_go(q->send_cq);
        let_go(q->recv_cq);
    }
    shift_attend(q, false);
    if (q->srq) {
        shift_srq_move(q, 0);
        q->srq->on[0].users--;
    }
    for (int p = 1; p < SHIFT_PATHS; p++)
        if (q->legs[p].qp) {
            shift_map_remove(&d->path[p].qps, q->legs[p].qp->qp_num);
            shift_real()->destroy_qp(q->legs[p].qp);
        }
    pthread_mutex_unlock(&d->lock);
    shift_rewind_detach(q);
    int r = shift_real()->destroy_qp(qp);
    shift_journal_free(&q->sends);
    shift_journal_free(&q->recvs);
    shift_journal_free(&q->draft);
    free(q->provider);
    free(q);
    return r;
}

/* Events that the program need not see: problems of its queue pairs that we handle, and a port that went down. */
static bool hidden(shift_device_t *d, const struct ibv_async_event *e) {
    bool trouble = e->event_type == IBV_EVENT_QP_FATAL || e->event_type == IBV_EVENT_QP_REQ_ERR ||
                   e->event_type == IBV_EVENT_QP_ACCESS_ERR;
    bool last = e->event_type == IBV_EVENT_QP_LAST_WQE_REACHED; /* from a leg that we have fenced */
    if (!trouble && !last)
        return e->event_type == IBV_EVENT_PORT_ERR || e->event_type == IBV_EVENT_PORT_ACTIVE;
    pthread_mutex_lock(&d->lock);
    shift_qp_t *q = shift_map_get(&shift_qps, (uintptr_t)e->element.qp);
    bool ours = q && !q->plain && q->states.sq != SHIFT_SQ_RELEASED && (last || q->states.sq != SHIFT_SQ_DEFAULT);
    if (ours && last)
        shift_last_reached(q, 0);
    ours |= !q && shift_srq_is_tap(d, e->element.qp);
    pthread_mutex_unlock(&d->lock);
    return ours;
}

/* A program that was told of an event and then finds none (the descriptor does not block) may treat this as a failure,
 * as UCX does. So it gets a true event: a port is active. */
EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    for (bool hid = false;; hid = true) {
        int r = shift_real()->get_async_event(context, event);
        shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)context);
        if (r != 0 && hid && errno == EAGAIN) {
            *event = (struct ibv_async_event){.event_type = IBV_EVENT_PORT_ACTIVE,
                                              .element.port_num = d->path[0].port ? d->path[0].port : 1};
            return 0;
        }
        if (r != 0 || !d || d->paths == 1 || !hidden(d, event))
            return r;
        shift_real()->ack_async_event(event);
    }
}
