/* notify.c - what threads of the program call to reach the control thread.
 *
 * Half: lower, but on either TLS: sys.h only, no libc, no stack protector.
 *
 * Invariants
 *  1. A call stores a word, then writes the eventfd; the control thread reads the eventfd, then the words.
 *  2. After a fork the child shares eventfd and memory layout but has no control thread: all calls do nothing there.
 */
#include "notify.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "control.h"
#include "sys.h"

#define FINISH_WAIT_NS 2000000000l

mpy_control_words_t mpy_control_words = {.event = -1};
#define WORDS (&mpy_control_words)

static int ours(void) { return WORDS->pid != 0 && mpy_sys(SYS_getpid) == WORDS->pid; }

void mpy_control_notify(void) {
    if (!ours()) return;
    uint64_t one = 1;
    mpy_sys(SYS_write, WORDS->event, &one, sizeof one);
}

int64_t mpy_control_request(void) {
    if (!ours() || WORDS->lost || WORDS->finish_asked) return -1;
    int64_t ticket = __atomic_add_fetch(&WORDS->tickets, 1, __ATOMIC_SEQ_CST);
    mpy_control_notify();
    return ticket;
}

int64_t mpy_control_request_done(void) { return __atomic_load_n(&WORDS->tickets_done, __ATOMIC_SEQ_CST); }

void mpy_control_finished(void) {
    if (!ours()) return;
    __atomic_store_n(&WORDS->finish_asked, 1, __ATOMIC_SEQ_CST);
    mpy_control_notify();
    if (WORDS->alone && !WORDS->connected) return; /* a short program doesn't wait for the coordinator's interpreter to start */
    struct timespec timeout = {.tv_nsec = FINISH_WAIT_NS % 1000000000l, .tv_sec = FINISH_WAIT_NS / 1000000000l};
    if (!WORDS->finish_sent && !WORDS->lost) mpy_sys(SYS_futex, &WORDS->finish_sent, MPY_FUTEX_WAIT, 0, &timeout);
}
