/* member.c - a process of the tree other than the first: it joins, takes orders, and may become the MPI process.
 *
 * Half: lower; mpy_tree_adopt and mpy_tree_join run before the program, mpy_tree_lead and mpy_tree_hand_back on a
 * thread that has a lower TLS; libc may be called. Only mpy_member_invited runs on the upper TLS.
 *
 * Invariants
 *  1. A member has a line to the hub, which its thread reads. Until it is the MPI process it gets orders there; then it
 *     gives orders and gets answers, which the thread passes to the waiting thread (`answers`). The line closes when
 *     the first process execs. The new program there invites the members that it finds, and they join again.
 *  2. One thread waits for an answer at a time: the program's in MPI_Init, then the control plane's. The MPI process
 *     may end while a check waits for its answer, so BACK has an answer of its own kind.
 */
#include "base/now.h"
#include "base/rank.h"
#include "base/reason.h"
#include "base/sys.h"
#include "base/thread.h"
#include "companion.h"
#include "control/control.h"
#include "isolate/fdguard.h"
#include "member.h"
#include "internal.h"
#include "process/fds/fds.h"
#include "tree.h"
#include <errno.h>
#include <fcntl.h>
#include <manapy/boundary.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int door = -1; /* the members' end; -1: this is the hub, or it has no tree */
static volatile int line = -1;
static volatile uint32_t invited; /* futex: this member is to join again */
static bool was_forked; /* without an exec after it */
static enum { TAKES_ORDERS, ASKS, LEADS } role;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t came;
    bool full, closed, back; /* back: the hub speaks for the rank again */
    mpy_tree_message_t message;
    int fd; /* came with it; -1: none */
} answers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_member(void) { return door >= 0; }

mpy_tree_role_t mpy_tree_role(void) {
    if (is_member()) return role == LEADS ? MPY_TREE_MEMBER_LEADS : MPY_TREE_MEMBER;
    return mpy_hub_is_away() ? MPY_TREE_FIRST_AWAY : MPY_TREE_FIRST;
}

void mpy_member_of_restart(bool leads) {
    mpy_tree_text();
    door = mpy_hub_door();
    mpy_fd_close(mpy_tree_door());
    role = leads ? LEADS : TAKES_ORDERS;
}

void mpy_member_make_way(void) {
    if (is_member()) door = mpy_fd_high(door);
    else mpy_hub_make_way();
}

int mpy_tree_kept(void) { return is_member() ? door : mpy_hub_door(); }

/* ---- the text that an exec passes on ---- */

static char inherited[8192]; /* as the first process of the tree has seen it */

const char *mpy_tree_text(void) {
    static char text[sizeof inherited + 16];
    if (!inherited[0]) mpy_fds_inherited_text(inherited, sizeof inherited);
    snprintf(text, sizeof text, "%d %s", mpy_tree_kept(), inherited);
    return text;
}

bool mpy_tree_adopt(const char *given, char *error, size_t n) {
    char *end;
    door = (int)strtol(given, &end, 10);
    if (*end != ' ' || fcntl(door, F_SETFD, FD_CLOEXEC)) return mpy_refuse(error, n, "--tree is for manapy's own use");
    snprintf(inherited, sizeof inherited, "%s", end + 1);
    mpy_fd_lower_add(door);
    mpy_fds_inherited_only(end + 1);
    return true;
}

/* ---- the line ---- */

static void deliver(const mpy_tree_message_t *m, int fd) {
    pthread_mutex_lock(&answers.lock);
    while (answers.full) pthread_cond_wait(&answers.came, &answers.lock);
    if (m) answers.message = *m, answers.fd = fd;
    answers.full = m != NULL;
    answers.closed = m == NULL;
    pthread_cond_broadcast(&answers.came);
    pthread_mutex_unlock(&answers.lock);
}

static void note_back(void) {
    pthread_mutex_lock(&answers.lock);
    answers.back = true;
    pthread_cond_broadcast(&answers.came);
    pthread_mutex_unlock(&answers.lock);
}

static bool open_line(void) {
    int ends[2];
    if (!mpy_tree_pair(ends)) return false;
    bool came = mpy_tree_send(mpy_tree_kept(), &(mpy_tree_message_t){.kind = MPY_TREE_JOIN, .pid = getpid()}, ends[1]);
    mpy_fd_close(ends[1]);
    line = ends[0];
    return came;
}

/* Until the line closes. */
static void take_orders(void) {
    mpy_tree_message_t m, answer;
    for (int got, fd; (got = mpy_tree_receive(line, &m, &fd, -1)) >= 0;) {
        if (got == 0) continue;
        if (m.kind == MPY_TREE_ANSWER || m.kind == MPY_TREE_PART) {
            deliver(&m, fd);
        } else if (m.kind == MPY_TREE_BACK) {
            note_back();
        } else {
            mpy_companion_do(&m, line, &answer);
            mpy_tree_send(line, &answer, -1);
        }
    }
    mpy_companion_release();
}

static bool join_again(void) {
    if (!is_member() || role != TAKES_ORDERS) return false;
    while (!__atomic_exchange_n(&invited, 0, __ATOMIC_SEQ_CST)) mpy_sys(SYS_futex, &invited, FUTEX_WAIT, 0, NULL);
    const int closed = line;
    line = -1;
    mpy_fd_close(closed);
    return open_line();
}

/* Another thread may be reading the line, or waiting. */
void mpy_member_invited(void) {
    if (!is_member() || role != TAKES_ORDERS) return;
    mpy_sys(SYS_shutdown, line, SHUT_RDWR); /* first: then the other thread opens a new one */
    __atomic_store_n(&invited, 1, __ATOMIC_SEQ_CST);
    mpy_futex_wake(&invited);
}

static void *member_main(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "manapy-tree", 0, 0, 0);
    do take_orders();
    while (join_again());
    deliver(NULL, -1);
    return NULL;
}

bool mpy_tree_join(char *error, size_t n) {
    bool came = open_line();
    if (line < 0) return mpy_refuse(error, n, "cannot open a socket pair: %s", strerror(errno));
    mpy_cond_init(&answers.came);
    /* Without a hub (the first process has ended) the program runs, and no checkpoint will be made. */
    return !came || mpy_thread_start(member_main, error, n);
}

void mpy_member_forked(void) {
    char error[256];
    if (line >= 0) mpy_fd_close(line);
    if (!is_member()) door = mpy_hub_forked();
    pthread_mutex_init(&answers.lock, NULL);
    answers.full = answers.closed = false;
    line = -1, was_forked = true, role = TAKES_ORDERS, invited = 0;
    mpy_tree_join(error, sizeof error); /* a failure: it runs on, and a checkpoint names it */
}

/* ---- the MPI process ---- */

bool mpy_member_leads(char *error, size_t n) {
    if (is_member()) return true;
    if (mpy_options.checkpoints.local || !mpy_mpi_is_up(MPY_UPPER) || !mpy_hub_has_kin()) return false;
    mpy_hub_orders_itself();
    return line >= 0 || mpy_tree_join(error, n);
}

bool mpy_member_answer(mpy_tree_message_t *answer, int *fd, int ms) {
    const int64_t deadline = ms < 0 ? MPY_NO_DEADLINE : mpy_now_ms() + ms;
    pthread_mutex_lock(&answers.lock);
    while (!answers.full && !answers.closed && mpy_cond_wait_until(&answers.came, &answers.lock, deadline)) {}
    bool full = answers.full;
    if (full) *answer = answers.message;
    if (full && fd) *fd = answers.fd;
    else if (full && answers.fd >= 0) mpy_fd_close(answers.fd);
    answers.full = false;
    pthread_cond_broadcast(&answers.came);
    pthread_mutex_unlock(&answers.lock);
    return full;
}

bool mpy_member_order(const mpy_tree_message_t *order) { return mpy_tree_send(line, order, -1); }

int mpy_tree_lead(char *error, size_t n) {
    mpy_tree_message_t answer;
    if (!is_member()) return mpy_hub_lead(error, n);
    if (role == LEADS) return 0;
    if (was_forked)
        return mpy_reason(error, n, "a process that was forked without exec calls MPI; only a program that an exec has "
                          "started can (subprocess, or multiprocessing's start method 'spawn')");
    role = ASKS;
    if (!mpy_member_order(&(mpy_tree_message_t){.kind = MPY_TREE_LEAD, .pid = getpid()}) ||
        !mpy_member_answer(&answer, NULL, -1))
        return mpy_reason(error, n, "the first process of this rank has ended, so no process of it can use MPI");
    if (answer.value) return mpy_taken(answer.pid, error, n);
    role = LEADS;
    return 1;
}

bool mpy_tree_end(int code) {
    mpy_tree_message_t answer, end = {.kind = MPY_TREE_EXIT, .value = code, .index = MPY_LAST_WORD_MS};
    if (!is_member()) return mpy_hub_end(code);
    return role == LEADS && mpy_member_order(&end) && mpy_member_answer(&answer, NULL, MPY_LAST_WORD_MS);
}

void mpy_tree_hand_back(void) {
    const mpy_tree_message_t back = {.kind = MPY_TREE_BACK, .value = (int)MPY_UPPER->mpi_finalized};
    const int64_t deadline = mpy_now_ms() + MPY_BACK_MS;
    if (!mpy_member_order(&back)) return;
    pthread_mutex_lock(&answers.lock);
    while (!answers.back && !answers.closed && mpy_cond_wait_until(&answers.came, &answers.lock, deadline)) {}
    pthread_mutex_unlock(&answers.lock);
}
