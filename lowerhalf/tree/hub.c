/* hub.c - the first process of a rank: it knows the other processes of the tree, and passes orders on to them.
 *
 * Half: lower; mpy_tree_found runs before the program, the rest on a thread of its own, which starts with the first
 * member; libc may be called.
 *
 * Invariants
 *  1. At most one process of the tree is the MPI process, once and for all: a process manager answers the MPI_Init of a
 *     rank only once. As long as it runs, it speaks for the rank, and the hub's control thread is away
 *     (control/control.h). The hub speaks before and after.
 *  2. The MPI process gives the orders. The hub carries each out itself and passes it on to all other members, one
 *     after the other. The answer is that of the first that fails.
 *  3. If the MPI process ends without a word, it has failed (a child that it has forked may hold its line open). The
 *     hub does not speak for the rank then: the coordinator ends the job. All halted processes go on.
 *  4. If a process has come during a stop, all go on and are stopped again: a process that is halted can make none.
 */
#include "base/reason.h"
#include "base/sys.h"
#include "companion.h"
#include "control/control.h"
#include "image/stop.h"
#include "isolate/fdguard.h"
#include "message.h"
#include "private.h"
#include "tree.h"
#include <manapy/boundary.h>
#include <manapy/proc_stat.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { ORDER_MS = 120000 }; /* a process needs at most 30 s to stop; its image may take longer on a slow disk */

typedef struct guest { int pid, line; } guest_t;

static int door[2] = {-1, -1}; /* the hub's end, the members' end */
static guest_t guests[MPY_TREE_MAX];
static int nguests;
static int leader;             /* pid of the MPI process; 0: none yet */
static int leader_fd = -1;     /* pidfd of it; -1: it has ended, or the kernel has none */
static bool leader_ended;
static volatile bool leads_itself;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of leader and leads_itself */

int mpy_tree_door(void) { return door[0]; }
int mpy_hub_door(void) { return door[1]; }

bool mpy_tree_found(char *error, size_t n) {
    return door[0] >= 0 || mpy_tree_pair(door) || mpy_refuse(error, n, "cannot open a socket pair (check `ulimit -n`)");
}

/* ---- guests ---- */

static void admit(int pid, int line) {
    if (line >= 0 && nguests < MPY_TREE_MAX - 2) guests[nguests++] = (guest_t){pid, line};
    else if (line >= 0) mpy_fd_close(line); /* it runs on, and a checkpoint names it */
}

static void drop(guest_t *g) {
    mpy_fd_close(g->line);
    *g = guests[--nguests];
}

static guest_t *guest_of(int pid) {
    for (int i = 0; i < nguests; i++)
        if (guests[i].pid == pid) return &guests[i];
    return NULL;
}

/* Those who have come meanwhile. Returns their number. */
static int open_door(void) {
    mpy_tree_message_t m;
    int line, came = 0;
    while (mpy_tree_receive(door[0], &m, &line, 0) > 0) {
        if (m.kind != MPY_TREE_JOIN) continue;
        admit(m.pid, line);
        came++;
    }
    return came;
}

/* ---- orders ---- */

/* A guest that has ended has nothing to save. */
static void pass_on(guest_t *g, const mpy_tree_message_t *order, mpy_tree_message_t *answer) {
    *answer = (mpy_tree_message_t){0};
    int got = mpy_tree_send(g->line, order, -1) ? mpy_tree_receive(g->line, answer, NULL, ORDER_MS) : -1;
    if (got < 0) *answer = (mpy_tree_message_t){.pid = -1};
    if (got == 0) answer->value = mpy_reason(answer->text, sizeof answer->text, "process %d does not answer", g->pid);
}

/* In the order of the images. */
static void note_pids(mpy_tree_message_t *order) {
    order->npids = 0;
    order->pids[order->npids++] = leader;
    order->pids[order->npids++] = getpid();
    for (int i = 0; i < nguests; i++)
        if (guests[i].pid != leader) order->pids[order->npids++] = guests[i].pid;
}

/* Sends each part of an answer to WRITE, and puts the last word into *answer. */
static void everywhere(mpy_tree_message_t *order, mpy_tree_message_t *answer, int line) {
    note_pids(order);
    mpy_companion_do(order, answer);
    if (answer->kind == MPY_TREE_PART && answer->value == 0) mpy_tree_send(line, answer, -1);
    for (int i = 0; i < nguests && (answer->value == 0 || order->kind == MPY_TREE_RESUME); i++) {
        if (guests[i].pid == leader) continue;
        order->index++;
        pass_on(&guests[i], order, answer);
        if (answer->pid == -1 && order->kind == MPY_TREE_WRITE)
            answer->value = mpy_reason(answer->text, sizeof answer->text, "process %d has ended", guests[i].pid);
        if (answer->pid == -1) drop(&guests[i--]);
        else if (answer->kind == MPY_TREE_PART && answer->value == 0) mpy_tree_send(line, answer, -1);
    }
    answer->kind = MPY_TREE_ANSWER;
}

/* Invariant 4 */
static void stop_all(mpy_tree_message_t *order, mpy_tree_message_t *answer) {
    for (everywhere(order, answer, -1); open_door() > 0; everywhere(order, answer, -1)) {
        mpy_tree_message_t go = {.kind = MPY_TREE_RESUME};
        everywhere(&go, answer, -1);
    }
}

static bool has(const mpy_tree_message_t *order, int pid) {
    for (uint32_t i = 0; i < order->npids; i++)
        if (order->pids[i] == pid) return true;
    return false;
}

static bool descends(const mpy_tree_message_t *order, int pid) {
    mpy_proc_stat_t s;
    while (pid > 1 && !has(order, pid)) pid = mpy_proc_stat(pid, &s) ? 0 : s.parent;
    return pid > 1;
}

/* A restart makes each process as the child of another one, in the session of that one or in one of its own. (A child
 * of a process that is no member: that one is a child itself, and gets the grace time.) */
static int check_family(const mpy_tree_message_t *order, char *error, size_t n) {
    mpy_proc_stat_t s;
    for (uint32_t i = 0; i < order->npids; i++) {
        int pid = order->pids[i];
        if (pid == getpid() || mpy_proc_stat(pid, &s)) continue;
        if (!descends(order, s.parent))
            return mpy_reason(error, n, "process %d (%s) has lost its parent, so a restart could not make it again; "
                              "end it before the checkpoint", pid, s.name);
        if (has(order, s.parent) && getsid(pid) != pid && getsid(pid) != getsid(s.parent))
            return mpy_reason(error, n, "process %d (%s) is in another session than its parent, and has not made it",
                              pid, s.name);
    }
    return 0;
}

static void carry_out(mpy_tree_message_t *order, int line) {
    mpy_tree_message_t answer = {.kind = MPY_TREE_ANSWER};
    note_pids(order);
    if (order->kind == MPY_TREE_CHECK && check_family(order, answer.text, sizeof answer.text)) answer.value = -1;
    else if (order->kind == MPY_TREE_STOP) stop_all(order, &answer);
    else everywhere(order, &answer, line);
    answer.npids = order->npids;
    memcpy(answer.pids, order->pids, sizeof answer.pids);
    mpy_tree_send(line, &answer, -1);
}

static void leave(const mpy_tree_message_t *order, int line) {
    mpy_tree_message_t answer;
    for (int i = 0; i < nguests; i++)
        if (guests[i].pid != leader) mpy_tree_send(guests[i].line, order, -1);
    mpy_tree_send(line, &(mpy_tree_message_t){.kind = MPY_TREE_ANSWER}, -1);
    mpy_companion_do(order, &answer); /* does not return */
}

/* ---- the MPI process ---- */

static void watch_leader(void) {
    if (leader && leader_fd < 0 && !leader_ended) leader_fd = mpy_fd_high((int)mpy_sys(SYS_pidfd_open, leader, 0));
}

static void answer_lead(guest_t *g) {
    mpy_tree_message_t answer = {.kind = MPY_TREE_ANSWER};
    pthread_mutex_lock(&lock);
    if (leads_itself) answer.pid = getpid();
    else if (leader) answer.pid = leader;
    else leader = g->pid;
    pthread_mutex_unlock(&lock);
    if (answer.pid) answer.value = -1, mpy_stop_misled = 1; /* no script hides it: the rank's exit code is not 0 */
    else mpy_control_hand_over();
    watch_leader();
    mpy_tree_send(g->line, &answer, -1);
}

static void take_back(guest_t *g, bool finalized) {
    leader_ended = true;
    mpy_tree_note(NULL, 0);
    if (finalized) MPY_UPPER->mpi_finalized = 1; /* no checkpoint is possible any more */
    mpy_control_take_back();
    mpy_tree_send(g->line, &(mpy_tree_message_t){.kind = MPY_TREE_ANSWER}, -1);
}

static void on_leader_lost(void) {
    if (leader_ended) return;
    leader_ended = true;
    mpy_tree_message_t go = {.kind = MPY_TREE_RESUME}, answer;
    everywhere(&go, &answer, -1);
}

static void on_guest(guest_t *g) {
    mpy_tree_message_t m;
    int got = mpy_tree_receive(g->line, &m, NULL, 0), pid = g->pid;
    if (got < 0) drop(g);
    if (got < 0 && pid == leader) on_leader_lost();
    if (got <= 0) return;
    if (m.kind == MPY_TREE_LEAD) answer_lead(g);
    else if (g->pid != leader) return; /* a late answer to an order */
    else if (m.kind == MPY_TREE_BACK) take_back(g, m.value);
    else if (m.kind == MPY_TREE_EXIT) leave(&m, g->line);
    else carry_out(&m, g->line);
}

int mpy_hub_lead(char *error, size_t n) {
    pthread_mutex_lock(&lock);
    int other = leader;
    leads_itself = other == 0;
    pthread_mutex_unlock(&lock);
    return other ? mpy_taken(other, error, n) : 0;
}

void mpy_hub_expect(int pid) { leader = pid; }
bool mpy_hub_is_away(void) { return leader != 0; }

void mpy_hub_make_way(void) {
    for (int i = 0; i < 2; i++) door[i] = mpy_fd_high(door[i]);
}

/* ---- the thread ---- */

static void *hub_main(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "manapy-tree", 0, 0, 0);
    watch_leader();
    for (;;) {
        struct pollfd p[MPY_TREE_MAX + 1] = {{.fd = door[0], .events = POLLIN}};
        int pids[MPY_TREE_MAX], n = nguests;
        for (int i = 0; i < n; i++) {
            p[i + 1] = (struct pollfd){.fd = guests[i].line, .events = POLLIN};
            pids[i] = guests[i].pid;
        }
        p[n + 1] = (struct pollfd){.fd = leader_fd, .events = POLLIN};
        if (poll(p, (nfds_t)n + 2, -1) < 0) continue;
        open_door();
        for (int i = 0; i < n; i++) {
            guest_t *g = p[i + 1].revents ? guest_of(pids[i]) : NULL;
            if (g) on_guest(g);
        }
        if (p[n + 1].revents == 0 || leader_fd < 0) continue;
        mpy_fd_close(leader_fd);
        leader_fd = -1;
        on_leader_lost(); /* its last words have been read above */
    }
    return NULL;
}

void mpy_tree_serve(void) {
    char error[256];
    if (!mpy_tree_thread(hub_main, error, sizeof error)) mpy_fail(1, "%s", error);
}
