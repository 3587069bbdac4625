/* gather.c - completions, from all paths, of a queue pair that is away from the default state.
 *
 * Invariants:
 * 1. A leg's receives complete in order, each exactly once. A leg's sends complete in order, unsignaled ones with the
 *    next signaled one.
 * 2. The program gets a queue pair's completions in posting order, with the number of its own queue pair, whichever leg
 *    they came from.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "failover/srq.h"
#include "journal/journal.h"
#include "objects/slow_path.h"
#include "objects/completions.h"
#include "objects/device.h"

#include <stdlib.h>
#include <string.h>

enum { PATIENT_YIELDS = 100 };

/* The oldest request is finished. If no leg has given a completion for it, this creates one. */
static void finish_first(shift_qp_t *q) {
    const shift_send_t *e = shift_journal_at(&q->sends, q->sends.first);
    if (e->done)
        shift_complete_send(q, e, IBV_WC_SUCCESS);
    shift_journal_drop(&q->sends, 1);
}

/* Retires the entries that a good completion of a leg covers. Requests that a switch found executed (done) come before
 * it in order: their completions are created here. */
void shift_retire(shift_qp_t *q, const struct ibv_wc *wc) {
    if (q->unread)
        return;
    if (wc->opcode & IBV_WC_RECV) {
        shift_journal_drop(&q->recvs, 1);
        return;
    }
    if (q->overtaken) {
        q->overtaken--;
        return;
    }
    shift_journal_t *j = &q->sends;
    while (j->first < j->next) {
        const shift_send_t *e = shift_journal_at(j, j->first);
        bool last = shift_signaled(q, e) && !e->done;
        finish_first(q);
        if (last)
            break;
    }
}

/* Creates completions of requests that were executed before the switch, if no other entry precedes them. */
void shift_retire_done(shift_qp_t *q) {
    shift_journal_t *j = &q->sends;
    while (j->first < j->next && ((shift_send_t *)shift_journal_at(j, j->first))->done)
        finish_first(q);
    if (q->posted_sends < j->first)
        q->posted_sends = j->first;
}

/* Remembers what went wrong on the leg in use. Others than the first are only flushed, as are receives. */
static void note_trouble(shift_qp_t *q, const shift_cq_t *c, const struct ibv_wc *wc) {
    if (!q->trouble && wc->status != IBV_WC_WR_FLUSH_ERR && c == q->send_cq)
        q->trouble = wc->status;
}

/* Does an error completion of a backup, which the program has caused, belong to its oldest receive? An error
 * completion doesn't say it if sends and receives share a queue. */
static bool of_receive(const shift_qp_t *q, const shift_cq_t *c, const struct ibv_wc *wc) {
    if (q->send_cq != q->recv_cq)
        return c == q->recv_cq;
    bool either = wc->status == IBV_WC_LOC_LEN_ERR || wc->status == IBV_WC_LOC_PROT_ERR;
    return either && q->recvs.first < q->posted_recvs &&
           ((shift_recv_t *)shift_journal_at(&q->recvs, q->recvs.first))->wr.wr_id == wc->wr_id;
}

/* The program itself has caused the error, and gets it, after what precedes it and before what is flushed. */
static void deliver_own_error(shift_qp_t *q, shift_cq_t *c, int path, const struct ibv_wc *wc) {
    if (path && of_receive(q, c, wc)) {
        shift_journal_drop(&q->recvs, q->recvs.first < q->recvs.next);
    } else if (path) {
        shift_journal_t *j = &q->sends;
        uint64_t failed = j->first;
        while (failed < q->posted_sends && ((shift_send_t *)shift_journal_at(j, failed))->wr.wr_id != wc->wr_id)
            failed++;
        while (failed < q->posted_sends && j->first < failed)
            finish_first(q);
        shift_journal_drop(j, j->first < j->next);
    }
    shift_deliver(c, wc);
    shift_release(q, NULL);
}

/* Takes one completion from a path's queue. Device lock and c->lock held. */
static void take(shift_cq_t *c, int path, const struct ibv_wc *wc) {
    shift_device_t *d = c->o.device;
    if (path == 0 && c->bell && wc->qp_num == c->bell->qp_num)
        return;
    shift_qp_t *q = shift_map_get(&d->path[path].qps, wc->qp_num);
    struct ibv_wc mine = *wc;
    if (!q) { /* not protected, or destroyed meanwhile */
        shift_srq_take(path, path > 0, &mine);
        if (path == 0)
            shift_deliver(c, &mine);
        return;
    }
    shift_leg_t *leg = &q->legs[path];
    bool released = q->states.sq == SHIFT_SQ_RELEASED;
    mine.qp_num = q->qp->qp_num;
    /* without the worker nobody would switch it */
    bool fails = leg->fenced || (d->worker_runs && shift_transport_error(q, wc));
    switch (shift_srq_take(path, leg->fenced || (!released && fails), &mine)) {
    case SHIFT_SRQ_KEPT:
        if (!leg->fenced && path == q->path)
            shift_fail(q, NULL);
        return;
    case SHIFT_SRQ_LATE:
        shift_release(q, "a message arrived after its path was left");
        return;
    case SHIFT_SRQ_DELIVER:
        shift_deliver(c, &mine);
        if (wc->status != IBV_WC_SUCCESS)
            shift_release(q, NULL); /* the program itself caused it */
        return;
    case SHIFT_SRQ_OTHER:
        break;
    }
    if (leg->closed && q->states.sq != SHIFT_SQ_RELEASED)
        return; /* too late: the request counts as outstanding, or as the peer has said */
    if (wc->wr_id == (uintptr_t)&leg->drained_sends) {
        leg->drained_sends = true;
    } else if (wc->wr_id == (uintptr_t)&leg->drained_recvs) {
        leg->drained_recvs = true;
    } else if (wc->wr_id == (uintptr_t)&q->marker_done || wc->wr_id == (uintptr_t)&q->washing) {
        if (wc->wr_id == (uintptr_t)&q->marker_done)
            q->marker_done = wc->status == IBV_WC_SUCCESS;
        else if (wc->status == IBV_WC_SUCCESS)
            q->washing = false;
        if (wc->status != IBV_WC_SUCCESS && path == q->path)
            note_trouble(q, c, wc);
        if (wc->status != IBV_WC_SUCCESS && !leg->fenced && q->states.sq != SHIFT_SQ_RELEASED && path == q->path &&
            q->phase == SHIFT_STEADY)
            shift_fail(q, wc);
    } else if (q->states.sq == SHIFT_SQ_RELEASED) {
        if (path == 0 || !leg->fenced)
            shift_deliver(c, &mine);
    } else if (wc->status == IBV_WC_SUCCESS) {
        shift_retire(q, wc);
        shift_deliver(c, &mine);
        shift_retire_done(q);
        if (q->times.replayed && !q->times.flowing && path == q->path) {
            q->times.flowing = shift_now();
            shift_tell_flowing(q);
        }
    } else if (path == q->path && fails) {
        if (path == 0)
            shift_note_error(q, c, wc);
        note_trouble(q, c, wc);
        if (q->phase == SHIFT_STEADY)
            shift_fail(q, wc);
    } else if (path == q->path) {
        deliver_own_error(q, c, path, &mine);
    }
}

/* Device lock held, so this must not take long: the worker calls it again. */
static bool settle(shift_cq_t *c) {
    if (c->settled)
        return true;
    for (int i = 0; shift_cq_busy(c); i++) {
        if (i == PATIENT_YIELDS) {
            shift_wake(c->o.device);
            return false;
        }
        sched_yield();
    }
    return c->settled = true;
}

void shift_gather(shift_cq_t *c) {
    shift_device_t *d = c->o.device;
    struct ibv_wc wc[16];
    int n;
    if (__atomic_load_n(&c->special, __ATOMIC_ACQUIRE) && !settle(c))
        return;
    shift_spin_lock(&c->lock);
    for (uint32_t i = 0; i < c->stashed; i++)
        take(c, 0, &c->stash[i]);
    __atomic_store_n(&c->stashed, 0, __ATOMIC_RELAXED);
    for (int p = 0; p < d->paths; p++) {
        struct ibv_cq *cq = p ? c->on[p] : c->cq;
        if (p && (!cq || !c->away))
            continue;
        while ((n = p ? cq->context->ops.poll_cq(cq, 16, wc) : c->poll(cq, 16, wc)) > 0)
            for (int i = 0; i < n; i++)
                take(c, p, &wc[i]);
    }
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
}

bool shift_catch_up(shift_cq_t *c) {
    shift_spin_lock(&c->lock);
    c->away++;
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
    shift_gather(c);
    bool done = c->settled;
    shift_spin_lock(&c->lock);
    c->away--;
    shift_cq_mode(c);
    shift_spin_unlock(&c->lock);
    return done;
}

/* One of these has an error, so all take the slow path, after those that other polls have stashed. False: this is not
 * possible. c->lock held. */
bool shift_stash_locked(shift_cq_t *c, uint32_t n, const struct ibv_wc *wc) {
    if (c->stashed + n > c->stash_room) {
        uint32_t room = c->stash_room + n + 64;
        struct ibv_wc *more = realloc(c->stash, room * sizeof *more);
        if (!more) {
            shift_report("no memory for completions with an error: the program gets them");
            return false;
        }
        c->stash = more;
        c->stash_room = room;
    }
    memcpy(c->stash + c->stashed, wc, n * sizeof *wc);
    __atomic_store_n(&c->stashed, c->stashed + n, __ATOMIC_RELAXED);
    __atomic_store_n(&c->o.device->stashed, true, __ATOMIC_RELEASE);
    shift_cq_mode(c);
    return true;
}

/* Call it in the section in which they were polled, so that a thread that waits for the end of the section finds
 * them. */
bool shift_stash(shift_cq_t *c, int n, const struct ibv_wc *wc) {
    if (c->o.device->paths == 1)
        return false;
    shift_spin_lock(&c->lock);
    bool stashed = shift_stash_locked(c, (uint32_t)n, wc);
    shift_spin_unlock(&c->lock);
    return stashed;
}
