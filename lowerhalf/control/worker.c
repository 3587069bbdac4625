/* worker.c - the thread that runs the steps of a checkpoint, so that the control thread can receive an abort meanwhile.
 * Lower half; libc.
 *
 * Invariants
 *  1. At most one step runs. The control thread sets `step` when the worker is idle and clears it when it takes the
 *     result.
 */
#define _GNU_SOURCE
#include "worker.h"

#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct {
    const mpy_engine_ops_t *ops;
    int event_fd;
    pthread_mutex_t lock;
    pthread_cond_t posted;
    mpy_step_t step;
    bool running, ended;
    int number;
    mpy_image_order_t order;
    mpy_step_result_t result;
} worker = {.lock = PTHREAD_MUTEX_INITIALIZER, .posted = PTHREAD_COND_INITIALIZER};

static int execute(mpy_step_t step, mpy_step_result_t *r) {
    switch (step) {
    case MPY_STEP_CHECK: return worker.ops->check(worker.number, r->error, sizeof r->error);
    case MPY_STEP_CALL: return worker.ops->call(r->error, sizeof r->error);
    case MPY_STEP_STOP: return worker.ops->stop(r->error, sizeof r->error);
    case MPY_STEP_DRAIN: return worker.ops->drain(r->error, sizeof r->error);
    case MPY_STEP_WRITE: return worker.ops->write(&worker.order, &r->image, r->error, sizeof r->error);
    case MPY_STEP_CAPTURE:
        return worker.ops->capture(&worker.order, r->why_not, sizeof r->why_not, r->error, sizeof r->error);
    case MPY_STEP_PERSIST: return worker.ops->persist(&r->image, r->error, sizeof r->error);
    case MPY_STEP_RESUME: return worker.ops->resume(worker.number, r->error, sizeof r->error);
    case MPY_STEP_NONE: break;
    }
    return 0;
}

static void *worker_main(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "manapy-worker", 0, 0, 0);
    pthread_mutex_lock(&worker.lock);
    for (;;) {
        while (!worker.running || worker.ended) pthread_cond_wait(&worker.posted, &worker.lock);
        mpy_step_t step = worker.step;
        pthread_mutex_unlock(&worker.lock);
        mpy_step_result_t r = {.step = step};
        r.rc = execute(step, &r);
        if (r.rc != 0 && r.error[0] == '\0') snprintf(r.error, sizeof r.error, "no reason given");
        pthread_mutex_lock(&worker.lock);
        worker.result = r;
        worker.ended = true;
        uint64_t one = 1;
        /* fails only on overflow, and then event_fd is readable anyway */
        if (write(worker.event_fd, &one, sizeof one) < 0) {}
    }
    return NULL;
}

bool mpy_worker_start(const mpy_engine_ops_t *ops, int event_fd, char *error, unsigned long n) {
    worker.ops = ops;
    worker.event_fd = event_fd;
    return mpy_thread_start(worker_main, error, n);
}

bool mpy_worker_busy(void) {
    pthread_mutex_lock(&worker.lock);
    bool busy = worker.running;
    pthread_mutex_unlock(&worker.lock);
    return busy;
}

void mpy_worker_run(mpy_step_t step, int number, const mpy_image_order_t *order) {
    pthread_mutex_lock(&worker.lock);
    worker.step = step, worker.number = number, worker.running = true, worker.ended = false;
    if (order != NULL) worker.order = *order;
    pthread_cond_signal(&worker.posted);
    pthread_mutex_unlock(&worker.lock);
}

bool mpy_worker_take(mpy_step_result_t *out) {
    pthread_mutex_lock(&worker.lock);
    bool ended = worker.running && worker.ended;
    if (ended) {
        *out = worker.result;
        worker.running = worker.ended = false;
        worker.step = MPY_STEP_NONE;
    }
    pthread_mutex_unlock(&worker.lock);
    return ended;
}
