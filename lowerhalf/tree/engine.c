/* engine.c - the steps of a checkpoint of a tree, in its MPI process: those of image/checkpoint.c here, and orders to
 * the hub for all other processes.
 *
 * Half: lower; runs on the control plane's worker thread (control/engine.h has the rules).
 *
 * Invariants
 *  1. The MPI process stops first and goes on last, so what it waits for in other processes is never gone.
 *  2. Images of companions are complete before the rank's own image is begun, because that one contains their seals.
 *     They are written while the job is paused.
 */
#include "base/now.h"
#include "base/rank.h"
#include "base/reason.h"
#include "companion.h"
#include "control/control.h"
#include "image/checkpoint.h"
#include "isolate/trap/trap.h"
#include <manapy/control.h>
#include "member.h"
#include "isolate/fdguard.h"
#include "process/children.h"
#include "process/fds/fds.h"
#include "tree.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ORDER_MS = 600000, JOIN_MS = 2000, OTHERS_MS = 250 };

static mpy_image_member_t members[MPY_TREE_MAX];
static uint32_t nmembers;
static uint64_t more_bytes; /* of the companions' images */

static int lost(char *error, size_t n) {
    return mpy_reason(error, n, "the first process of the rank's tree has ended or does not answer");
}

/* This process knows the ids of all that have been restarted; those that were started later need not. */
static void note_member(const mpy_image_member_t *m) {
    if (nmembers == MPY_TREE_MAX) return;
    mpy_image_member_t *shown = &members[nmembers++];
    *shown = *m;
    shown->pid = mpy_id_shown(m->pid);
    shown->parent = mpy_id_shown(m->parent);
    shown->group = mpy_id_shown(m->group);
    shown->session = mpy_id_shown(m->session);
}

static void note_part(const mpy_tree_message_t *part) {
    note_member(&part->member);
    more_bytes += part->bytes;
}

/* A part of the answer to an order. `fd`: came with it, or -1. A connection without one has been lost on its way. */
static int take_part(uint32_t kind, const mpy_tree_message_t *part, int fd) {
    if (kind == MPY_TREE_LEND) return fd < 0 ? -1 : mpy_fds_borrow(fd, part->pid, (int)part->index);
    if (fd >= 0) mpy_fd_close(fd);
    if (kind == MPY_TREE_WRITE) note_part(part);
    return 0;
}

/* The hub may wait for the grace time, and then once more for an answer. */
static int limit_of(const mpy_tree_message_t *order) {
    if (order->kind == MPY_TREE_WRITE) return -1;
    return order->kind == MPY_TREE_CHECK && order->value < (INT_MAX - ORDER_MS) / 2 ? ORDER_MS + 2 * order->value
                                                                                    : ORDER_MS;
}

static int order(mpy_tree_message_t what, char *error, size_t n) {
    static uint64_t orders;
    mpy_tree_message_t answer;
    int fd, bad = 0;
    what.number = ++orders;
    if (!mpy_member_order(&what)) return lost(error, n);
    do {
        if (!mpy_member_answer(&answer, &fd, limit_of(&what))) return lost(error, n);
        const bool is_part = answer.kind == MPY_TREE_PART && answer.number == what.number;
        bad |= take_part(is_part ? what.kind : 0, &answer, fd);
    } while (answer.kind != MPY_TREE_ANSWER || answer.number != what.number);
    if (answer.npids) mpy_tree_note(answer.pids, answer.npids);
    if (answer.value) return mpy_reason(error, n, "%s", answer.text);
    if (bad)
        return mpy_reason(error, n, "the TCP connections of the rank's processes do not fit into its MPI process: "
                          "raise the limit on open descriptors (ulimit -n)");
    if (what.kind == MPY_TREE_WRITE && nmembers != answer.npids)
        return mpy_reason(error, n, "%u of the %u processes of the rank's tree have been saved", nmembers,
                          answer.npids);
    return 0;
}

static bool leads; /* in this checkpoint there are other processes */

static int check(int grace_ms, char *error, size_t n) {
    error[0] = '\0';
    leads = mpy_member_leads(error, n);
    if (!leads) mpy_tree_note(NULL, 0);
    if (!leads) return error[0] ? -1 : mpy_engine.check(grace_ms, error, n);
    if (mpy_options.checkpoints.local)
        return mpy_reason(error, n, "the MPI program is a child of another process of its rank; such a rank cannot be "
                          "saved to local storage: use no --local, or let the script start the program by exec");
    /* The failure may be due to the pipe to a child that was started meanwhile, and has not joined: look again. */
    const int64_t until = mpy_now_ms() + (grace_ms > JOIN_MS ? grace_ms : JOIN_MS);
    for (;;) {
        if (order((mpy_tree_message_t){.kind = MPY_TREE_CHECK, .value = grace_ms}, error, n)) return -1;
        if (mpy_engine.check(grace_ms, error, n) == 0) return 0;
        if (!mpy_children_may_join() || mpy_now_ms() > until || mpy_control_cancelled()) return -1;
    }
}

/* The first child may have been started after CHECK. */
static void look_again(char *error, size_t n) {
    int self = getpid();
    leads = mpy_member_leads(error, n);
    if (leads) mpy_tree_note(&self, 1);
}

static int stop(char *error, size_t n) {
    if (!leads) look_again(error, n);
    if (mpy_engine.stop(error, n)) return -1;
    if (!leads) return 0;
    if (order((mpy_tree_message_t){.kind = MPY_TREE_STOP}, error, n)) return -1;
    return order((mpy_tree_message_t){.kind = MPY_TREE_LEND}, error, n);
}

static int write_companions(const mpy_image_order_t *what, mpy_image_order_t *mine, char *error, size_t n) {
    mpy_tree_message_t m = {.kind = MPY_TREE_WRITE, .index = 1};
    *mine = *what;
    nmembers = 0, more_bytes = 0;
    if (!leads) return 0;
    snprintf(m.text, sizeof m.text, "%s", what->directory);
    const mpy_image_member_t self = mpy_tree_self(0);
    note_member(&self);
    mine->members = members;
    int failed = order(m, error, n);
    mine->nmembers = nmembers;
    return failed;
}

static int write_images(const mpy_image_order_t *what, mpy_image_result_t *result, char *error, size_t n) {
    mpy_image_order_t mine;
    if (write_companions(what, &mine, error, n) || mpy_engine.write(&mine, result, error, n)) return -1;
    result->bytes += more_bytes;
    return 0;
}

static int capture(const mpy_image_order_t *what, char *why_not, size_t m, char *error, size_t n) {
    mpy_image_order_t mine;
    if (write_companions(what, &mine, error, n)) return -1;
    return mpy_engine.capture(&mine, why_not, m, error, n);
}

static int persist(mpy_image_result_t *result, char *error, size_t n) {
    if (mpy_engine.persist(result, error, n)) return -1;
    result->bytes += more_bytes;
    return 0;
}

static int resume(int exit_after, char *error, size_t n) {
    int bad = 0;
    if (leads && exit_after) mpy_control_leave_process_manager(); /* before its first process ends */
    if (leads && !exit_after && mpy_fds_lent_is_unsent()) bad = mpy_fds_part(error, n);
    const mpy_tree_message_t what = {.kind = exit_after ? MPY_TREE_EXIT : MPY_TREE_RESUME,
                                     .value = MPY_EXIT_CHECKPOINTED};
    char unsaid[256];
    if (leads) order(what, unsaid, sizeof unsaid); /* if it fails, they have ended */
    return mpy_engine.resume(exit_after, error, n) || bad ? -1 : 0;
}

/* When the first rank has ended, mpirun ends the others: they need time to end their processes, too. */
static void abort_job(int code, const char *reason) {
    if (mpy_tree_end(code) && reason[0]) usleep(OTHERS_MS * 1000);
    mpy_engine.abort_job(code, reason);
}

const mpy_engine_ops_t *mpy_tree_engine(void) {
    static mpy_engine_ops_t ops;
    ops = mpy_engine;
    ops.check = check, ops.stop = stop, ops.write = write_images, ops.capture = capture, ops.persist = persist;
    ops.resume = resume, ops.abort_job = abort_job;
    return &ops;
}
