/* readback.c - reads what is outstanding on the default leg of a queue pair that keeps no journal from the provider's
 * queues, once they are drained.
 *
 * Every request that did not complete well comes back as an error completion; the sentinels (switch.c) come last. The
 * number of sends among them is known from their completion queue. If sends and receives share a completion queue, the
 * backend tells it, because an error completion doesn't. The rest comes from the queues. The wr_ids of the error
 * completions are compared with those in the queues, because only outstanding requests may be sent again.
 *
 * Invariant: either both journals begin with everything that was outstanding, in order and with packet numbers,
 * followed by what was held back; or nothing is changed.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "objects/completions.h"
#include "objects/legs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool wanted(void) {
    const char *choice = getenv("MANAPY_SHIFT_REWIND");
    return !choice || strcmp(choice, "off") != 0;
}

/* Makes room for every error completion: without room, requests would be missing. The worker makes the same room on
 * the backups. Returns n, or 0 if there is no room. */
static uint32_t make_room(shift_cq_t *c, uint32_t n) {
    shift_device_t *d = c->o.device;
    if (c->promised + n > (uint32_t)c->cq->cqe) {
        if (shift_cq_hold(c->cq, c->promised + n) != 0)
            return 0;
        pthread_mutex_lock(&d->lock);
        c->o.waiting = d->work = true;
        pthread_mutex_unlock(&d->lock);
    }
    c->promised += n;
    return n;
}

void shift_rewind_attach(shift_qp_t *q) {
    q->rewind = shift_rewind_for(q->qp, &q->init, &q->queues);
    q->room_sends = make_room(q->send_cq, q->init.cap.max_send_wr + 1);
    q->room_recvs = make_room(q->recv_cq, q->srq ? 1 : q->init.cap.max_recv_wr + 1); /* a shared queue isn't flushed */
    q->rewinds = q->rewind && q->rewind->first_psn && !q->srq && wanted() && q->room_sends && q->room_recvs;
}

void shift_rewind_detach(shift_qp_t *q) {
    if (q->send_cq)
        q->send_cq->promised -= q->room_sends;
    if (q->recv_cq)
        q->recv_cq->promised -= q->room_recvs;
    if (q->rewind)
        q->rewind->detach(q->queues);
    free(q->errors);
}

/* In order of completion. The opcode of an error completion is undefined: here it stores the queue, if that is
 * known. */
void shift_note_error(shift_qp_t *q, const shift_cq_t *c, const struct ibv_wc *wc) {
    if (q->errors_count == q->errors_room) {
        uint32_t room = q->errors_room * 2 + 64;
        struct ibv_wc *more = realloc(q->errors, room * sizeof *more);
        if (!more) {
            shift_report("no memory for completions: a connection will be lost");
            return;
        }
        q->errors = more;
        q->errors_room = room;
    }
    struct ibv_wc *e = &q->errors[q->errors_count++];
    *e = *wc;
    if (q->send_cq != q->recv_cq)
        e->opcode = c == q->recv_cq ? IBV_WC_RECV : IBV_WC_SEND;
}

void shift_tell_errors(shift_qp_t *q) {
    for (uint32_t i = 0; i < q->errors_count; i++)
        shift_deliver(q->errors[i].opcode & IBV_WC_RECV ? q->recv_cq : q->send_cq, &q->errors[i]);
    q->errors_count = 0;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Do the two journals, without their sentinels, match the error completions? */
static bool same(const shift_qp_t *q, const shift_journal_t *sends, const shift_journal_t *recvs) {
    uint32_t n = q->errors_count, k = 0;
    uint64_t *found = calloc(2 * (size_t)n + 1, sizeof *found), *said = found + n;
    if (!found || shift_journal_count(sends) + shift_journal_count(recvs) != n) {
        free(found);
        return false;
    }
    for (uint64_t s = sends->first; s < sends->next; s++)
        found[k++] = ((shift_send_t *)shift_journal_at(sends, s))->wr.wr_id;
    for (uint64_t s = recvs->first; s < recvs->next; s++)
        found[k++] = ((shift_recv_t *)shift_journal_at(recvs, s))->wr.wr_id;
    for (uint32_t i = 0; i < n; i++)
        said[i] = q->errors[i].wr_id;
    qsort(found, n, sizeof *found, compare);
    qsort(said, n, sizeof *said, compare);
    bool equal = memcmp(found, said, n * sizeof *found) == 0;
    free(found);
    return equal;
}

/* Sets the packet numbers of the outstanding sends. `n` includes the sentinel. Returns 0 or the backend's error. */
static int number_sends(shift_qp_t *q, shift_journal_t *sends, uint32_t n) {
    uint32_t psn;
    int r = q->rewind->first_psn(q->queues, n, &psn);
    if (r != 0 && r != -ENODATA)
        return r;
    q->legs[0].next_psn = r == 0 ? psn : shift_leg_psn(q->legs[0].send_psn, q->legs[0].generation);
    for (uint64_t s = sends->first; s < sends->next; s++)
        shift_number(q, shift_journal_at(sends, s));
    return 0;
}

/* Appends the requests that were held back meanwhile to the outstanding ones: the new journal replaces the old one. */
static void append_sends(shift_qp_t *q, shift_journal_t *all) {
    q->posted_sends = all->next;
    for (uint64_t s = q->sends.first; s < q->sends.next; s++)
        shift_journal_send(all, &((shift_send_t *)shift_journal_at(&q->sends, s))->wr);
    shift_journal_free(&q->sends);
    q->sends = *all;
}

static void append_recvs(shift_qp_t *q, shift_journal_t *all) {
    q->posted_recvs = all->next;
    for (uint64_t s = q->recvs.first; s < q->recvs.next; s++)
        shift_journal_recv(all, &((shift_recv_t *)shift_journal_at(&q->recvs, s))->wr);
    shift_journal_free(&q->recvs);
    q->recvs = *all;
}

/* Decodes both queues, including the sentinels. Returns 0 or an error of rewind.h. */
static int decode(shift_qp_t *q, shift_journal_t *sends, shift_journal_t *recvs) {
    uint32_t n = q->errors_count, of_sends = 0;
    if (q->send_cq == q->recv_cq) {
        uint32_t failed = q->rewind->failed(q->queues);
        if (failed == 0 || failed - 1 > n)
            return -EBADMSG;
        of_sends = failed - 1;
    } else {
        for (uint32_t i = 0; i < n; i++)
            of_sends += !(q->errors[i].opcode & IBV_WC_RECV);
    }
    const struct ibv_qp_cap *cap = &q->init.cap;
    uint32_t held_sends = shift_journal_count(&q->sends), held_recvs = shift_journal_count(&q->recvs),
             of_recvs = n - of_sends;
    uint32_t room_sends = of_sends + held_sends > cap->max_send_wr ? of_sends + held_sends : cap->max_send_wr;
    uint32_t room_recvs = of_recvs + held_recvs > cap->max_recv_wr ? of_recvs + held_recvs : cap->max_recv_wr;
    int r = shift_journal_sends(sends, room_sends + 1, cap->max_send_sge, cap->max_inline_data);
    if (r == 0)
        r = shift_journal_recvs(recvs, room_recvs + 1, cap->max_recv_sge);
    if (r == 0)
        r = q->rewind->sends(q->queues, NULL, of_sends + 1, sends);
    if (r == 0)
        r = q->rewind->recvs(q->queues, NULL, of_recvs + 1, recvs);
    if (r != 0)
        return r;
    sends->next--; /* remove the sentinels */
    recvs->next--;
    if (((shift_send_t *)shift_journal_at(sends, sends->next))->wr.wr_id != (uintptr_t)&q->legs[0].drained_sends ||
        ((shift_recv_t *)shift_journal_at(recvs, recvs->next))->wr.wr_id != (uintptr_t)&q->legs[0].drained_recvs ||
        !same(q, sends, recvs))
        return -EBADMSG;
    return number_sends(q, sends, of_sends + 1);
}

const char *shift_read_back(shift_qp_t *q) {
    shift_journal_t sends = {0}, recvs = {0};
    if (!q->legs[0].drained_sends || !q->legs[0].drained_recvs)
        return "its RNIC does not return the requests that were posted to it";
    switch (decode(q, &sends, &recvs)) {
    case 0:
        append_sends(q, &sends);
        append_recvs(q, &recvs);
        q->errors_count = 0;
        q->unread = false;
        return NULL;
    case -EOPNOTSUPP:
        shift_journal_free(&sends);
        shift_journal_free(&recvs);
        return "an outstanding request cannot be repeated";
    default:
        shift_journal_free(&sends);
        shift_journal_free(&recvs);
        return "its RNIC's queues do not show which requests were outstanding";
    }
}
