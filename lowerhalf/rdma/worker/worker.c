/* worker.c - the background thread of a device: shadow verbs, links, switches. It starts with the first connection.
 *
 * It sleeps until a backup's completion channel, an asynchronous event, the agent or another thread (d->wake) wakes it,
 * or a time limit is near.
 */
#include "common/report.h"
#include "failover/failover.h"
#include "failover/srq.h"
#include "journal/journal.h"
#include "objects/slow_path.h"
#include "objects/device.h"
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { SWITCHING_MS = 2, TURN_NS = 3000000, GAP_US = 50 };

static void nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

static void take_events(shift_device_t *d, int path) {
    struct ibv_cq *cq;
    void *context;
    while (shift_real()->get_cq_event(d->path[path].channel, &cq, &context) == 0) {
        shift_real()->ack_cq_events(cq, 1);
        cq->context->ops.req_notify_cq(cq, 0);
    }
}

/* The port that carries the traffic went down: don't wait until the retries run out. */
static void port_event(shift_device_t *d, int path, bool up) {
    d->path[path].port_up = up;
    for (shift_object_t *o = d->objects; o && !up; o = o->next) {
        shift_qp_t *q = (shift_qp_t *)o;
        if (o->kind == SHIFT_QP && !q->plain && q->linked && q->path == path)
            shift_fail(q, NULL);
    }
    for (shift_link_t *l = d->links; l && !up; l = l->next)
        shift_link_down(l, path, true);
}

static void take_async(shift_device_t *d, int path) {
    struct ibv_async_event e;
    while (shift_real()->get_async_event(d->path[path].context, &e) == 0) {
        bool port = (e.event_type == IBV_EVENT_PORT_ERR || e.event_type == IBV_EVENT_PORT_ACTIVE) &&
                    e.element.port_num == d->path[path].port;
        bool fatal = e.event_type == IBV_EVENT_DEVICE_FATAL;
        shift_qp_t *q = e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED
                            ? shift_map_get(&d->path[path].qps, e.element.qp->qp_num)
                            : NULL;
        if (q)
            shift_last_reached(q, path);
        if (port || fatal)
            port_event(d, path, e.event_type == IBV_EVENT_PORT_ACTIVE);
        shift_real()->ack_async_event(&e);
    }
}

/* ms until the worker must do something without being woken */
static int patience(shift_device_t *d, int *set_up) {
    int ms = 1000;
    if (d->cursor || d->unsaid > 0)
        return 0;
    if (d->unsaid < 0)
        ms = 100;
    if (d->work) {
        ms = *set_up < ms ? *set_up : ms;
        *set_up = *set_up < 100 ? *set_up * 2 : 100; /* waiting for the peer's set-up */
    } else {
        *set_up = 1;
    }
    for (shift_link_t *l = d->links; l; l = l->next) {
        if (l->connected && !l->next_rkeys)
            return 0;
        for (int p = 0; p < d->paths; p++)
            if (!l->connected || (l->on[p].connected && !l->on[p].up))
                ms = ms < 20 ? ms : 20;
    }
    for (const shift_srq_t *s = d->srqs; s; s = s->next)
        if (shift_srq_busy(s))
            return 0;
    for (const shift_qp_t *q = d->active; q; q = q->next_active) {
        if (q->direct)
            continue;
        if (q->phase == SHIFT_DRAINING || q->phase == SHIFT_CLEARING)
            return 0;
        if (q->phase != SHIFT_STEADY || q->states.sq == SHIFT_SQ_WAIT_SINKED || q->lacks_key)
            ms = ms < SWITCHING_MS ? ms : SWITCHING_MS;
        else if (q->states.sq != SHIFT_SQ_RELEASED)
            ms = ms < 20 ? ms : 20;
    }
    return ms;
}

/* Gathers stashed completions, because the thread that stashed them could not. */
static void gather_stashed(shift_device_t *d) {
    for (shift_object_t *o = d->objects; o; o = o->next)
        if (o->kind == SHIFT_CQ && shift_stashed((shift_cq_t *)o)) {
            shift_gather((shift_cq_t *)o);
            if (shift_stashed((shift_cq_t *)o))
                __atomic_store_n(&d->stashed, true, __ATOMIC_RELAXED);
        }
}

static void poll_links(shift_device_t *d) {
    for (int p = 0; p < d->paths; p++)
        if (d->path[p].usable)
            shift_link_poll(d, p);
}

static void flush_links(shift_device_t *d) {
    for (shift_link_t *l = d->links; l; l = l->next)
        shift_link_flush(l);
}

/* Advances the queue pairs that are switching, and does what their shared receive queues need. There are few of them
 * (AT_ONCE of begin.c) unless the peer is stuck. This takes no more time than the others have had. */
static void step_under_way(shift_device_t *d) {
    uint64_t since = shift_now();
    d->round++;
    for (shift_qp_t *q = d->active, *next; q && shift_now() - since < TURN_NS; q = next) {
        next = q->next_active;
        if (shift_under_way(q))
            shift_switch_step(q);
    }
    for (shift_srq_t *s = d->srqs; s; s = s->next)
        shift_srq_step(s);
}

/* A thousand queue pairs may switch at the same time, or have lost a leg that is made ready again. A queue pair that is
 * switching does not wait until all others have had their turn, because a peer waits for it. Threads of the program do
 * not wait that long for the lock, either: without a gap they would hardly ever get it. */
static void step_queue_pairs(shift_device_t *d) {
    uint64_t since = shift_now();
    shift_count_turns(d);
    d->next_step = d->active;
    for (shift_qp_t *q; (q = d->next_step);) {
        d->next_step = q->next_active;
        shift_switch_step(q);
        if (!shift_needs_attention(q))
            shift_attend(q, false);
        if (shift_now() - since < TURN_NS)
            continue;
        flush_links(d);
        pthread_mutex_unlock(&d->lock);
        usleep(GAP_US);
        pthread_mutex_lock(&d->lock);
        poll_links(d);
        step_under_way(d);
        since = shift_now();
    }
}

static void *work(void *arg) {
    shift_device_t *d = arg;
    int set_up = 1;
    shift_device_backups(d);
    for (int p = 0; p < d->paths; p++)
        if (d->path[p].usable) {
            nonblocking(d->path[p].channel->fd);
            nonblocking(d->path[p].context->async_fd);
        }
    pthread_mutex_lock(&d->lock);
    while (!d->closing) {
        shift_keys_step(d);
        shift_shadow_step(d);
        for (shift_link_t *l = d->links; l; l = l->next)
            shift_link_step(l);
        poll_links(d);
        d->round++;
        step_queue_pairs(d);
        for (shift_srq_t *s = d->srqs; s; s = s->next)
            shift_srq_step(s);
        if (__atomic_exchange_n(&d->stashed, false, __ATOMIC_ACQUIRE))
            gather_stashed(d);
        shift_watch_step(d);
        flush_links(d);
        struct pollfd fds[3 + 2 * SHIFT_PATHS] = {{.fd = d->wake, .events = POLLIN}};
        int n = 1, ms = patience(d, &set_up);
        if (ms > SWITCHING_MS) /* the agent may be slow, and a switch must not wait for it */
            shift_tell_agent(d);
        for (int p = 0; p < d->paths; p++)
            if (d->path[p].usable) {
                fds[n++] = (struct pollfd){.fd = d->path[p].channel->fd, .events = POLLIN};
                fds[n++] = (struct pollfd){.fd = d->path[p].context->async_fd, .events = POLLIN};
            }
        if (shift_kv_fd(d->kv) >= 0)
            fds[n++] = (struct pollfd){.fd = shift_kv_fd(d->kv), .events = POLLIN};
        pthread_mutex_unlock(&d->lock);
        if (ms == 0)
            sched_yield();
        poll(fds, (nfds_t)n, ms);
        uint64_t woken;
        if (read(d->wake, &woken, sizeof woken) < 0 && errno != EAGAIN)
            shift_report("the background thread cannot read its event: %s", strerror(errno));
        pthread_mutex_lock(&d->lock);
        shift_take_commands(d);
        for (int p = 0; p < d->paths; p++)
            if (d->path[p].usable) {
                take_events(d, p);
                take_async(d, p);
            }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* Device lock held. The program's signals must not reach this thread. */
int shift_worker_start(shift_device_t *d) {
    sigset_t all, before;
    if (d->paths == 1)
        return 0;
    if (!d->kv && !(d->kv = shift_kv_open())) {
        shift_report("no key-value agent (MANAPY_SHIFT_AGENT): connections are not protected");
        return -1;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&d->worker, NULL, work, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    d->worker_runs = r == 0;
    if (r != 0)
        shift_report("no background thread (%s): connections are not protected", strerror(r));
    return r;
}

void shift_worker_stop(shift_device_t *d) {
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    bool runs = d->worker_runs;
    pthread_mutex_unlock(&d->lock);
    if (!runs)
        return;
    shift_wake(d);
    pthread_join(d->worker, NULL);
    d->worker_runs = false;
}
