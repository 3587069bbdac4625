/* epoch.c - the checkpoint in progress on this rank: its messages, and the steps that they ask for.
 *
 * Lower half; libc; on the control thread (control.c), which the program's threads never wait for.
 *
 * Invariants
 *  1. After a request for engine->call or stop, engine->resume always follows, after the phase is NONE again. After a
 *     capture engine->persist follows, also if the checkpoint is given up: then it ends the writer. It runs beside the
 *     program, when the epoch of the clock has ended; `captured` remembers that of the checkpoint.
 *  2. One step runs at a time (worker.c). A message that arrives meanwhile and needs another step waits until it ends.
 */
#include "epoch.h"
#include "base/io/host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <manapy/boundary.h>

#include "callbacks.h"
#include "clockside.h"
#include "notify.h"
#include "worker.h"

static struct {
    const mpy_engine_ops_t *engine;
    mpy_text_t *out;
    void (*before_exit)(void);
} plane;

static struct {
    uint64_t epoch;    /* the pending epoch; 0: none */
    uint64_t check_epoch;
    /* CHECK arrived while a step of the last epoch runs, or while the program forbids checkpoints */
    bool check_waits;
    int check_grace_ms;
    bool stop_asked;   /* invariant 1 */
    bool resuming;     /* the RESUME step runs; the epoch ends after it */
    bool released;     /* the step runs because of RESUME, not of an abort, and must be answered */
    uint64_t captured; /* epoch of the image that is written beside the program, or was; 0: none */
    bool persisting;   /* that image is not complete yet */
    bool given_up;     /* nobody wants it any more */
} now;

#define WORDS (&mpy_control_words)

void mpy_epoch_init(const mpy_engine_ops_t *engine, mpy_text_t *out, void (*before_exit)(void)) {
    plane.engine = engine;
    plane.out = out;
    plane.before_exit = before_exit;
}

bool mpy_epoch_persisting(void) { return now.persisting; }

bool mpy_epoch_leave(void) {
    if (now.epoch != 0 || now.persisting || mpy_worker_busy()) return false;
    now.check_waits = false;
    MPY_LOWER->allow_awaited = 0;
    return true;
}

/* ---- its end ---- */

static void leave_epoch(void) {
    now.epoch = 0;
    now.stop_asked = now.resuming = false;
    MPY_LOWER->cancelled = 0;
}

static void start_resume(bool released, bool exit_after) {
    if (released) MPY_UPPER->checkpoints++; /* nobody reads it now: all threads are stopped */
    mpy_clockside_end();
    now.resuming = true;
    now.released = released;
    now.given_up = !released;
    if (released && exit_after) {
        mpy_text_add(plane.out, "RESUMED %" PRIu64 "\n", now.epoch);
        plane.before_exit();
    }
    mpy_worker_run(MPY_STEP_RESUME, exit_after, NULL);
}

/* Give up the image that is written beside the program, or was. */
static void give_up_image(void) {
    if (now.given_up) return;
    now.given_up = true;
    __atomic_sub_fetch(&MPY_UPPER->checkpoints, 1, __ATOMIC_SEQ_CST); /* start_resume has counted it */
    if (now.persisting && !now.resuming) MPY_LOWER->cancelled = 1;
}

static void start_persist(void) {
    MPY_LOWER->cancelled = now.given_up;
    mpy_worker_run(MPY_STEP_PERSIST, 0, NULL);
}

/* Give up the epoch. If a step of the epoch still runs, give up when the step has ended. */
static void abandon(void) {
    if (now.epoch == 0 || now.resuming) return;
    if (mpy_worker_busy()) {
        MPY_LOWER->cancelled = 1;
    } else if (now.stop_asked) {
        start_resume(false, false);
    } else {
        mpy_clockside_end();
        leave_epoch();
    }
}

/* Wait before the checkpoint if the program forbids it now: nothing has stopped yet. If the program forbids it later,
 * the clock waits. */
static bool wait_until_allowed(void) {
    bool told = MPY_LOWER->allow_awaited;
    MPY_LOWER->allow_awaited = 1;
    mpy_clockside_barrier(); /* a thread that allows checkpoints reads allow_awaited afterwards */
    if (MPY_UPPER->disabled > 0) {
        if (!told) mpy_text_add(plane.out, "DISABLED %" PRIu64 "\n", now.check_epoch);
        return true;
    }
    MPY_LOWER->allow_awaited = 0;
    return false;
}

/* The answer to CHECK also tells the coordinator that this rank has left the last epoch. */
static void start_check(void) {
    if (!now.check_waits || now.epoch != 0 || mpy_worker_busy() || wait_until_allowed()) return;
    now.check_waits = false;
    mpy_callbacks_expect(true, plane.engine->has_gpu && plane.engine->has_gpu());
    mpy_worker_run(MPY_STEP_CHECK, now.check_grace_ms, NULL);
}

static void add_reason(const char *kind, uint64_t epoch, const char *reason) {
    mpy_text_add(plane.out, "%s %" PRIu64 " ", kind, epoch);
    mpy_text_add_encoded(plane.out, reason);
    mpy_text_add(plane.out, "\n");
}

static void add_written(uint64_t epoch, const mpy_image_result_t *image) {
    char host[MPY_HOST_NAME];
    mpy_hostname(host, sizeof host);
    mpy_text_add(plane.out, "WRITTEN %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 " %.6f ", epoch, image->bytes,
                 image->file_bytes, image->crc, image->seconds);
    mpy_text_add_encoded(plane.out, host);
    mpy_text_add(plane.out, " %s %" PRIu64 " %s\n", image->seal[0] != '\0' ? image->seal : "%", image->kept,
                 image->way[0] != '\0' ? image->way : "%");
}

static void on_persisted(const mpy_step_result_t *r) {
    MPY_LOWER->cancelled = 0;
    now.persisting = false;
    if (now.given_up) return;
    if (r->rc == 0) {
        add_written(now.captured, &r->image);
    } else {
        give_up_image();
        add_reason("FAILED", now.captured, r->error);
    }
}

static void on_step_done(const mpy_step_result_t *r) {
    if (r->step == MPY_STEP_CAPTURE && r->rc == 0) {
        now.captured = now.epoch;
        now.persisting = true;
        __atomic_store_n(&WORDS->writing, 1, __ATOMIC_SEQ_CST);
    }
    if (r->step == MPY_STEP_CHECK) {
        MPY_LOWER->cancelled = 0;
        /* this step belongs to a checkpoint that was given up; the next CHECK is already here */
        if (now.check_waits) {
        } else if (r->rc == 0) {
            const char *callbacks = mpy_callbacks_expected() ? " 1" : "";
            mpy_text_add(plane.out, "CHECKED %" PRIu64 "%s\n", now.check_epoch, callbacks);
        } else {
            add_reason("REFUSED", now.check_epoch, r->error);
        }
    } else if (r->step == MPY_STEP_RESUME) {
        if (r->rc != 0) plane.engine->abort_job(1, r->error);
        if (now.released) mpy_text_add(plane.out, "RESUMED %" PRIu64 "\n", now.epoch);
        leave_epoch();
        if (now.persisting) start_persist();
    } else if (r->step == MPY_STEP_PERSIST) {
        on_persisted(r);
    } else if (MPY_LOWER->cancelled) {
        MPY_LOWER->cancelled = 0;
        start_resume(false, false);
    } else if (r->rc != 0) {
        add_reason("FAILED", now.epoch, r->error);
    } else if (r->step == MPY_STEP_WRITE) {
        add_written(now.epoch, &r->image);
    } else if (r->step == MPY_STEP_CAPTURE) {
        add_reason("CAPTURED", now.epoch, r->why_not);
    } else {
        const char *answer = r->step == MPY_STEP_CALL ? "CALLED" : r->step == MPY_STEP_STOP ? "STOPPED" : "DRAINED";
        mpy_text_add(plane.out, "%s %" PRIu64 "\n", answer, now.epoch);
    }
}

void mpy_epoch_take_step(void) {
    mpy_step_result_t result;
    if (mpy_worker_take(&result)) on_step_done(&result);
    start_check();
}

/* ---- its messages ---- */

/* The fields of WRITE and CAPTURE. */
static bool read_order(char *line, mpy_image_order_t *order) {
    char *directory = mpy_field(&line), *way = mpy_field(&line);
    *order = (mpy_image_order_t){.epoch = now.epoch, .base_epoch = mpy_field_number(&line)};
    if (way != NULL) snprintf(order->way, sizeof order->way, "%s", way);
    char *base = mpy_field(&line);
    if (directory == NULL || !mpy_wire_decode(directory) || (base != NULL && !mpy_wire_decode(base))) return false;
    snprintf(order->directory, sizeof order->directory, "%s", directory);
    if (base == NULL || snprintf(order->base, sizeof order->base, "%s", base) >= (int)sizeof order->base)
        order->base_epoch = 0;
    return true;
}

/* Handles a message of the pending epoch. The caller has dropped messages of an epoch that is being given up. */
static void on_epoch_message(const char *kind, char *line) {
    mpy_text_t *out = plane.out;
    if (strcmp(kind, "TARGETS") == 0) {
        bool more = mpy_field_number(&line) != 0;
        mpy_field(&line); /* the number of rows */
        mpy_clockside_targets(more, line, out);
    } else if (strcmp(kind, "TARGET") == 0) {
        char *cid = mpy_field(&line);
        if (cid != NULL) mpy_clockside_target(strtoull(cid, NULL, 16), mpy_field_number(&line), out);
    } else if (strcmp(kind, "ADVANCE") == 0 || strcmp(kind, "WITHDRAW") == 0) {
        mpy_clockside_needed(kind[0] == 'A', out);
    } else if (strcmp(kind, "FREEZE") == 0) {
        mpy_clockside_freeze((uint32_t)mpy_field_number(&line), out);
    } else if (strcmp(kind, "THAW") == 0) {
        mpy_clockside_thaw(out);
    } else if (mpy_worker_busy()) {
        return; /* the coordinator sends a step only after the last one is answered */
    } else if (strcmp(kind, "STOP") == 0 && mpy_callbacks_missed()) {
        add_reason("FAILED", now.epoch, "the program has registered callbacks since the checkpoint began; try again");
    } else if (strcmp(kind, "CALL") == 0 || strcmp(kind, "STOP") == 0) {
        now.stop_asked = true;
        mpy_worker_run(kind[0] == 'C' ? MPY_STEP_CALL : MPY_STEP_STOP, 0, NULL);
    } else if (strcmp(kind, "DRAIN") == 0) {
        mpy_worker_run(MPY_STEP_DRAIN, 0, NULL);
    } else if (strcmp(kind, "WRITE") == 0 || strcmp(kind, "CAPTURE") == 0) {
        mpy_image_order_t order;
        if (read_order(line, &order)) mpy_worker_run(kind[0] == 'W' ? MPY_STEP_WRITE : MPY_STEP_CAPTURE, 0, &order);
    } else if (strcmp(kind, "RESUME") == 0) {
        char *then = mpy_field(&line);
        start_resume(true, then != NULL && strcmp(then, "exit") == 0);
    }
}

static void on_check(uint64_t epoch, int grace_ms) {
    now.check_epoch = epoch;
    now.check_grace_ms = grace_ms;
    now.check_waits = true;
    MPY_LOWER->allow_awaited = 0;
    /* Cancels the previous CHECK, which may wait long for children. */
    if (now.epoch == 0 && mpy_worker_busy()) MPY_LOWER->cancelled = 1;
    start_check();
}

void mpy_epoch_message(const char *kind, char *line) {
    uint64_t epoch = mpy_field_number(&line);
    if (strcmp(kind, "CHECK") == 0) {
        on_check(epoch, (int)mpy_field_number(&line));
    } else if (strcmp(kind, "INTENT") == 0) {
        now.epoch = epoch;
        now.captured = 0;
        mpy_clockside_intent(epoch, plane.out);
    } else if (strcmp(kind, "ABORT") == 0 && epoch == now.captured && (now.resuming || now.epoch == 0)) {
        give_up_image();
    } else if (epoch == 0 || epoch != now.epoch || MPY_LOWER->cancelled || now.resuming) {
        return; /* belongs to an epoch that was given up */
    } else if (strcmp(kind, "ABORT") == 0) {
        abandon();
        start_check();
    } else {
        on_epoch_message(kind, line);
    }
}

void mpy_epoch_lost(void) {
    now.check_waits = false;
    if (now.persisting && (now.resuming || now.epoch == 0)) give_up_image();
    abandon();
}
