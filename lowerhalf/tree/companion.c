/* companion.c - the steps of a checkpoint in a process of the tree that does not use MPI.
 *
 * Half: lower; runs on the thread of hub.c or member.c, which blocks all signals; libc may be called.
 *
 * Invariants
 *  1. The steps are those of image/checkpoint.c. There is no drain: nothing of MPI is in this process.
 *  2. Its callbacks are not called: they are the MPI process's.
 *  3. A companion is never left halted: if the hub or the MPI process ends, it goes on.
 */
#include "companion.h"
#include "base/reason.h"
#include "base/sys.h"
#include "control/callbacks.h"
#include "image/checkpoint.h"
#include "isolate/trap/trap.h"
#include "process/children.h"
#include "process/fds/fds.h"
#include <manapy/control.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool halted;

mpy_image_member_t mpy_tree_self(uint32_t index) {
    return (mpy_image_member_t){.index = index,
                                .pid = getpid(),
                                .parent = getppid(),
                                .group = getpgrp(),
                                .session = getsid(0)};
}

void mpy_tree_note(const int *pids, uint32_t n) {
    mpy_children_are_saved(pids, n);
}

static int write_image(const mpy_tree_message_t *order, mpy_tree_message_t *answer) {
    mpy_image_order_t what = {.index = order->index};
    mpy_image_result_t result;
    snprintf(what.directory, sizeof what.directory, "%s", order->text);
    if (mpy_engine.write(&what, &result, answer->text, sizeof answer->text)) return -1;
    answer->bytes = result.bytes;
    answer->member = mpy_tree_self(order->index);
    for (int i = 0; i < MPY_IMAGE_SEAL; i++) {
        unsigned byte = 0;
        sscanf(result.seal + 2 * i, "%2x", &byte);
        answer->member.seal[i] = (uint8_t)byte;
    }
    return 0;
}

typedef struct lending {
    uint64_t order;
    int line;
} lending_t;

static int lend(int number, void *context) {
    const lending_t *l = context;
    const mpy_tree_message_t part = {.kind = MPY_TREE_PART, .number = l->order, .pid = getpid(),
                                     .index = (uint32_t)number};
    return !mpy_tree_send(l->line, &part, number);
}

static int step(const mpy_tree_message_t *order, int line, mpy_tree_message_t *answer) {
    switch (order->kind) {
    case MPY_TREE_CHECK:
        mpy_tree_note(order->pids, order->npids);
        mpy_callbacks_expect(false, false);
        mpy_fds_be_patient(order->value > 0);
        return mpy_engine.check(order->value, answer->text, sizeof answer->text);
    case MPY_TREE_STOP:
        if (halted) return 0; /* an end in the midst of a checkpoint (hub.c) */
        halted = true;
        mpy_tree_note(order->pids, order->npids);
        return mpy_engine.stop(answer->text, sizeof answer->text);
    case MPY_TREE_LEND:
        return mpy_fds_lend(lend, &(lending_t){order->number, line}, answer->text, sizeof answer->text);
    case MPY_TREE_WRITE: return write_image(order, answer);
    case MPY_TREE_RESUME: mpy_companion_release(); return 0;
    case MPY_TREE_EXIT: mpy_sys(SYS_exit_group, order->value);
    }
    return mpy_reason(answer->text, sizeof answer->text, "unknown order %u", order->kind);
}

void mpy_companion_do(const mpy_tree_message_t *order, int line, mpy_tree_message_t *answer) {
    *answer = (mpy_tree_message_t){.kind = order->kind == MPY_TREE_WRITE ? MPY_TREE_PART : MPY_TREE_ANSWER,
                                    .number = order->number};
    answer->value = step(order, line, answer);
}

void mpy_companion_forked(void) {
    halted = false;
    mpy_tree_note(NULL, 0);
}

void mpy_companion_release(void) {
    char error[64];
    if (halted) mpy_engine.resume(0, error, sizeof error);
    halted = false;
}
