/* hub.c - the first process of a rank: it knows the other processes of the tree, and passes orders on to them.
 *
 * Half: lower; mpy_tree_found runs before the program, the rest on a thread of its own, which starts with the first
 * member; libc may be called.
 *
 * Invariants
 *  1. At most one process of the tree ever becomes the MPI process: a process manager answers the MPI_Init of a rank
 *     only once. As long as it runs, it speaks for the rank, and the hub's control thread is away (control/control.h).
 *     The hub speaks before and after.
 *  2. The MPI process gives the orders. The hub passes each on to all other members, carries it out itself meanwhile,
 *     and then takes their answers: all work at the same time. The answer is that of the first that fails. If the hub
 *     is the MPI process itself, its engine (engine.c) sends them to this thread, which only passes them on.
 *  3. If the MPI process ends without a message, it has failed (a child that it has forked may hold its line open). The
 *     hub does not speak for the rank then: the coordinator ends the job. All halted processes go on.
 *  4. The MPI process may end during a CHECK, which takes long if something cannot be saved. It gives no order
 *     meanwhile. So when it sends a message, the hub stops the check and reads the message.
 *  5. If a process has joined during a stop, all go on and are stopped again, because a halted process cannot make new
 *     ones. Forked processes join when they are invited. When all members are halted, no process is left that has not
 *     joined.
 *  6. The door stays open when this process execs. So its children can join the tree of the new program, when that
 *     invites them.
 */
#include "base/now.h"
#include "base/proc/text.h"
#include "base/reason.h"
#include "base/sys.h"
#include "base/thread.h"
#include "companion.h"
#include "control/control.h"
#include "image/checkpoint.h"
#include "image/stop.h"
#include "isolate/fdguard.h"
#include "message.h"
#include "internal.h"
#include "tree.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <manapy/boundary.h>
#include <manapy/proc_stat.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* JOIN_MS: for forked processes to join; LOOK_MS: between two looks for them; AGAIN_MS: between two checks */
enum { JOIN_MS = 5000, LOOK_MS = 5, AGAIN_MS = 50 };
enum { STOPS = 20 }; /* in which more processes may have come */
enum { ORDER_MS = 120000 }; /* a process needs at most 30 s to stop; for its image there is no limit */

typedef struct guest {
    int pid, line;
    bool asked; /* the order has been sent to it */
} guest_t;

static int door[2] = {-1, -1}; /* the hub's end, the members' end */
static guest_t guests[MPY_TREE_MAX];
static int nguests;
static int leader;             /* pid of the MPI process; 0: none yet */
static int leader_fd = -1;     /* pidfd of it; -1: it has ended, or the kernel has none */
static bool leader_ended;
static volatile int asker = -1; /* the line of the MPI process while a CHECK is carried out (invariant 4), or -1 */
static volatile bool leads_itself;
static volatile bool serves, told; /* the thread runs; it has told the others to end */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of leader and leads_itself */

int mpy_tree_door(void) { return door[0]; }
int mpy_hub_door(void) { return door[1]; }

bool mpy_tree_found(char *error, size_t n) {
    return door[0] >= 0 || mpy_tree_pair(door) || mpy_refuse(error, n, "cannot open a socket pair (check `ulimit -n`)");
}

bool mpy_tree_found_again(const char *text, char *error, size_t n) {
    if (sscanf(text, "%d %d", &door[0], &door[1]) != 2 || fcntl(door[0], F_SETFD, FD_CLOEXEC) ||
        fcntl(door[1], F_SETFD, FD_CLOEXEC))
        return mpy_refuse(error, n, "--door is for manapy's own use");
    mpy_fd_lower_add(door[0]);
    mpy_fd_lower_add(door[1]);
    return true;
}

const char *mpy_tree_door_text(void) {
    static char text[32];
    snprintf(text, sizeof text, "%d %d", door[0], door[1]);
    return text;
}

/* ---- guests ---- */

static void drop(guest_t *g) {
    mpy_fd_close(g->line);
    *g = guests[--nguests];
}

static guest_t *guest_of(int pid) {
    for (int i = 0; i < nguests; i++)
        if (guests[i].pid == pid) return &guests[i];
    return NULL;
}

static void admit(int pid, int line) {
    guest_t *before = guest_of(pid);
    if (before && line >= 0) drop(before); /* it joins again */
    if (line >= 0 && nguests < MPY_TREE_MAX - 2) guests[nguests++] = (guest_t){.pid = pid, .line = line};
    else if (line >= 0) mpy_fd_close(line); /* it runs on, and a checkpoint names it */
}

/* EXIT, from the MPI process on its line, or from this process (-1), which then ends by itself. */
static void leave(const mpy_tree_message_t *order, int line) {
    mpy_tree_message_t answer = {.kind = MPY_TREE_ANSWER}, halt = *order;
    struct pollfd p = {.fd = leader_fd, .events = POLLIN};
    halt.kind = MPY_TREE_STOP; /* or the script would go on when one of the others has ended */
    if (order->index && leader != getpid()) mpy_companion_do(&halt, -1, &answer);
    for (int i = 0; i < nguests; i++)
        if (guests[i].pid != leader) mpy_tree_send(guests[i].line, order, -1);
    told = true;
    if (line >= 0) mpy_tree_send(line, &(mpy_tree_message_t){.kind = MPY_TREE_ANSWER, .number = order->number}, -1);
    if (line < 0 || leader == getpid()) return;
    poll(&p, leader_fd >= 0, (int)order->index);
    mpy_companion_do(order, -1, &answer); /* does not return */
}

/* Those who have come meanwhile. Returns their number. */
static int open_door(void) {
    mpy_tree_message_t m;
    int line, came = 0;
    while (mpy_tree_receive(door[0], &m, &line, 0) > 0) {
        if (m.kind == MPY_TREE_EXIT) leave(&m, -1);
        if (m.kind != MPY_TREE_JOIN) continue;
        admit(m.pid, line);
        came++;
    }
    return came;
}

/* ---- orders ---- */

/* With all of its threads. */
static bool has_ended(int pid) {
    struct pollfd p = {.fd = MPY_FD_OPEN(syscall(SYS_pidfd_open, pid, 0)), .events = POLLIN};
    if (p.fd < 0) return errno == ESRCH;
    bool ended = poll(&p, 1, 0) > 0;
    mpy_fd_close(p.fd);
    return ended;
}

/* A process that has ended, but whose line is open, has forked one that has not joined: that one has the line, too. */
static void explain_end(const guest_t *g, mpy_tree_message_t *answer) {
    struct pollfd p = {.fd = g->line, .events = POLLIN};
    *answer = (mpy_tree_message_t){.pid = -1};
    if (poll(&p, 1, 0) > 0 && p.revents & POLLHUP) return;
    answer->pid = g->pid;
    answer->value = mpy_reason(answer->text, sizeof answer->text, "a process that process %d has forked has lost its "
                               "parent, so a restart could not recreate it; end it before the checkpoint", g->pid);
}

/* Says which process cannot be saved. */
static void name_process(int pid, mpy_tree_message_t *answer) {
    char reason[sizeof answer->text];
    mpy_proc_stat_t s;
    memcpy(reason, answer->text, sizeof reason);
    if (mpy_proc_stat(pid, &s) == 0)
        snprintf(answer->text, sizeof answer->text, "process %d (%s): %.1900s", pid, s.name, reason);
}

/* ---- invariant 4 ---- */

/* Waits for a message on this line (-1: none), or until the MPI process speaks or has ended: then it is true. */
static bool leader_speaks(int line, int ms) {
    struct pollfd p[3] = {{.fd = line, .events = POLLIN},
                          {.fd = asker, .events = POLLIN},
                          {.fd = asker >= 0 ? leader_fd : -1, .events = POLLIN}};
    return poll(p, 3, ms) > 0 && (p[1].revents || p[2].revents);
}

static bool given_up(void) { return mpy_control_cancelled() || leader_speaks(-1, 0); }

static int refuse_given_up(mpy_tree_message_t *answer) {
    return mpy_reason(answer->text, sizeof answer->text, "the checkpoint was cancelled");
}

/* ---- what is done everywhere ---- */

/* An order that is carried out everywhere. */
typedef struct round {
    uint32_t kind;
    uint64_t number, here; /* for the MPI process; for the guests: an order may take several rounds */
    int64_t until;
    int line; /* of the MPI process */
} round_t;

/* Passes a connection on to the MPI process. */
static void pass(const mpy_tree_message_t *part, int fd, const round_t *r) {
    mpy_tree_message_t m = *part;
    m.number = r->number;
    mpy_tree_send(r->line, &m, fd);
}

/* The answer of a guest. One that has ended has nothing to save: the answer's pid is -1. */
static void hear(const guest_t *g, const round_t *r, mpy_tree_message_t *answer) {
    if (!g->asked) return explain_end(g, answer);
    int got, fd;
    bool is_late;
    do {
        *answer = (mpy_tree_message_t){0};
        const int64_t left = r->until - mpy_now_ms();
        if (leader_speaks(g->line, left > INT_MAX ? -1 : left > 0 ? (int)left : 0)) {
            answer->value = refuse_given_up(answer);
            return;
        }
        got = mpy_tree_receive(g->line, answer, &fd, 0);
        is_late = answer->number != r->here;
        if (got > 0 && !is_late && r->kind == MPY_TREE_LEND && answer->kind == MPY_TREE_PART) pass(answer, fd, r);
        if (fd >= 0) mpy_fd_close(fd);
    } while (got > 0 ? is_late || (r->kind == MPY_TREE_LEND && answer->kind == MPY_TREE_PART)
                     : got == 0 && mpy_now_ms() < r->until);
    if (got < 0) *answer = (mpy_tree_message_t){.pid = -1};
    if (got == 0) answer->value = mpy_reason(answer->text, sizeof answer->text, "process %d does not answer", g->pid);
    else if (answer->value) name_process(g->pid, answer);
}

/* In the order of the images. */
static void note_pids(mpy_tree_message_t *order) {
    order->npids = 0;
    order->pids[order->npids++] = leader;
    if (leader != getpid()) order->pids[order->npids++] = getpid();
    for (int i = 0; i < nguests; i++)
        if (guests[i].pid != leader) order->pids[order->npids++] = guests[i].pid;
}

static void ask_guests(mpy_tree_message_t *order) {
    for (int i = 0; i < nguests; i++) {
        if (guests[i].pid == leader) continue;
        guests[i].asked = !has_ended(guests[i].pid) && mpy_tree_send(guests[i].line, order, -1);
        order->index++;
    }
}

/* Keeps the first failure, and sends each part of an answer to WRITE to the MPI process. */
static void note_answer(const mpy_tree_message_t *said, uint64_t number, mpy_tree_message_t *answer, int line) {
    if (answer->value == 0) *answer = *said;
    answer->number = number;
    if (said->kind == MPY_TREE_PART && answer->value == 0) mpy_tree_send(line, answer, -1);
}

static int64_t answers_until(const mpy_tree_message_t *order) {
    if (order->kind == MPY_TREE_WRITE) return MPY_NO_DEADLINE;
    return mpy_now_ms() + ORDER_MS + (order->kind == MPY_TREE_CHECK ? order->value : 0);
}

/* Sends each part of an answer to WRITE, and puts the last word into *answer. */
static void everywhere(mpy_tree_message_t *order, mpy_tree_message_t *answer, int line) {
    static uint64_t rounds;
    const round_t r = {order->kind, order->number, ++rounds, answers_until(order), line};
    mpy_tree_message_t said;
    note_pids(order);
    const mpy_tree_message_t mine = *order;
    *answer = (mpy_tree_message_t){0};
    order->number = r.here;
    order->index += leader != getpid();
    ask_guests(order);
    if (leader != getpid()) {
        mpy_companion_do(&mine, line, &said);
        note_answer(&said, r.number, answer, line);
    }
    for (int i = 0; i < nguests; i++) {
        if (guests[i].pid == leader) continue;
        hear(&guests[i], &r, &said);
        if (said.pid == -1 && order->kind == MPY_TREE_WRITE)
            said.value = mpy_reason(said.text, sizeof said.text, "process %d has ended", guests[i].pid);
        note_answer(&said, r.number, answer, line);
        if (said.pid == -1) drop(&guests[i--]);
    }
    order->number = r.number;
    answer->kind = MPY_TREE_ANSWER;
}

/* ---- processes that members have forked ---- */

static bool contains(const int *pids, int n, int pid) {
    for (int i = 0; i < n; i++)
        if (pids[i] == pid) return true;
    return false;
}

static int find_kin(int found[MPY_TREE_MAX]) {
    int members[MPY_TREE_MAX] = {getpid()}, n = 1;
    for (int i = 0; i < nguests; i++) members[n++] = guests[i].pid;
    return mpy_kin_find(members, n, found, MPY_TREE_MAX);
}

typedef struct kin {
    int came; /* number of those that have joined */
    int left; /* number of those that are still to come */
    int late; /* one that had time enough to join; 0: none */
} kin_t;

/* Invites all of them, and those that they have forked meanwhile; waits `ms` at most. A process that ends, or starts
 * another program, does not come. */
static kin_t gather(int ms) {
    const int64_t until = mpy_now_ms() + ms;
    int asked[MPY_TREE_MAX], nasked = 0, early = 0, found[MPY_TREE_MAX];
    kin_t kin = {0};
    while ((kin.left = find_kin(found)) > 0 && mpy_now_ms() < until) {
        kin.came += open_door();
        for (int i = 0; i < kin.left; i++) {
            if (nasked == MPY_TREE_MAX || contains(asked, nasked, found[i]) || guest_of(found[i])) continue;
            asked[nasked++] = found[i];
            sigqueue(found[i], MPY_SIGNAL_RESERVED, (union sigval){.sival_int = MPY_VALUE_JOIN});
        }
        if (mpy_now_ms() < until - ms / 2) early = nasked;
        const bool over = leader_speaks(door[0], LOOK_MS);
        kin.came += open_door();
        if (over) break;
    }
    for (int i = 0; i < kin.left; i++)
        if (contains(asked, early, found[i])) kin.late = found[i];
    kin.came += open_door();
    return kin;
}

static int refuse_late(kin_t kin, mpy_tree_message_t *answer) {
    mpy_proc_stat_t s;
    if (kin.late == 0 || mpy_proc_stat(kin.late, &s)) return 0;
    return mpy_reason(answer->text, sizeof answer->text, "child process %d (%s), which was forked without exec, does "
                      "not answer (is it stopped?)", kin.late, s.name);
}

/* Invariant 5 */
static void stop_all(mpy_tree_message_t *order, mpy_tree_message_t *answer) {
    kin_t kin = gather(JOIN_MS);
    for (int left = STOPS;; left--) {
        everywhere(order, answer, -1);
        kin = gather(JOIN_MS);
        if (answer->value == 0) answer->value = refuse_late(kin, answer);
        if (kin.came == 0 && (kin.left == 0 || answer->value)) return;
        if (left == 0 && answer->value == 0)
            answer->value = mpy_reason(answer->text, sizeof answer->text, "its processes make new processes all the "
                                       "time: %d stops in turn have found more of them", STOPS);
        if (left == 0) return;
        mpy_tree_message_t go = {.kind = MPY_TREE_RESUME};
        everywhere(&go, answer, -1);
    }
}

static bool has(const mpy_tree_message_t *order, int pid) { return contains(order->pids, (int)order->npids, pid); }

static bool descends(const mpy_tree_message_t *order, int pid) {
    mpy_proc_stat_t s;
    while (pid > 1 && !has(order, pid)) pid = mpy_proc_stat(pid, &s) ? 0 : s.parent;
    return pid > 1;
}

/* The process that traces this one (strace, a debugger), or 0. */
static int tracer_of(int pid) {
    char path[64];
    uint64_t tracer = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    mpy_proc_number(path, "TracerPid:", 10, &tracer);
    return (int)tracer;
}

/* A restart makes each process as the child of another one, in the session of that one or in one of its own. (A child
 * of a process that is no member: that one is a child itself, and gets the grace time.) A process whose tracer is
 * halted could not be halted itself. */
static int check_family(const mpy_tree_message_t *order, char *error, size_t n) {
    mpy_proc_stat_t s;
    for (uint32_t i = 0; i < order->npids; i++) {
        int pid = order->pids[i];
        const int tracer = tracer_of(pid);
        if (tracer && has(order, tracer))
            return mpy_reason(error, n, "process %d is traced by process %d of the same rank (strace, a debugger), and "
                              "cannot be saved; attach the tracer to it from outside (strace -p, gdb -p)", pid, tracer);
        if (pid == getpid() || mpy_proc_stat(pid, &s)) continue;
        if (!descends(order, s.parent))
            return mpy_reason(error, n, "process %d (%s) has lost its parent, so a restart could not recreate it; "
                              "end it before the checkpoint", pid, s.name);
        if (has(order, s.parent) && getsid(pid) != pid && getsid(pid) != getsid(s.parent))
            return mpy_reason(error, n, "process %d (%s) is in another session than its parent, and has not made it",
                              pid, s.name);
    }
    return 0;
}

/* A process that cannot be saved (it has a connection) may use up the grace time, too: it may end. */
static void check_all(mpy_tree_message_t *order, mpy_tree_message_t *answer) {
    const int64_t until = mpy_now_ms() + order->value;
    for (;;) {
        const kin_t kin = gather(order->value > JOIN_MS ? order->value : JOIN_MS);
        answer->value = given_up() ? refuse_given_up(answer) : refuse_late(kin, answer);
        if (answer->value) return;
        note_pids(order);
        answer->value = check_family(order, answer->text, sizeof answer->text);
        if (mpy_now_ms() >= until) order->value = 0; /* the last look */
        if (answer->value == 0) everywhere(order, answer, -1);
        if (answer->value == 0 || nguests == 0 || order->value == 0 || given_up()) return;
        leader_speaks(-1, AGAIN_MS);
    }
}

static void carry_out(mpy_tree_message_t *order, int line) {
    mpy_tree_message_t answer = {.kind = MPY_TREE_ANSWER};
    note_pids(order);
    asker = order->kind == MPY_TREE_CHECK ? line : -1;
    if (order->kind == MPY_TREE_CHECK) check_all(order, &answer);
    else if (order->kind == MPY_TREE_STOP) stop_all(order, &answer);
    else everywhere(order, &answer, line);
    asker = -1;
    answer.kind = MPY_TREE_ANSWER;
    answer.number = order->number;
    answer.npids = order->npids;
    memcpy(answer.pids, order->pids, sizeof answer.pids);
    mpy_tree_send(line, &answer, -1);
}

/* ---- the MPI process ---- */

static void watch_leader(void) {
    if (leader && leader_fd < 0 && !leader_ended) leader_fd = MPY_FD_OPEN(mpy_sys(SYS_pidfd_open, leader, 0));
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
    mpy_tree_send(g->line, &(mpy_tree_message_t){.kind = MPY_TREE_BACK}, -1);
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

int mpy_taken(int other, char *error, size_t n) {
    char name[64];
    mpy_proc_stat_t us, them;
    snprintf(name, sizeof name, "%s", mpy_proc_stat(getpid(), &us) ? "this program" : us.name);
    bool lives = mpy_proc_stat(other, &them) == 0;
    return mpy_reason(error, n, "'%s' calls MPI, but process %d%s%s%s is the MPI process of this rank already: a rank "
                      "has one. Start each MPI program by an mpirun of its own", name, other, lives ? " ('" : "",
                      lives ? them.name : "", lives ? "')" : ", which has ended,");
}

int mpy_hub_lead(char *error, size_t n) {
    pthread_mutex_lock(&lock);
    int other = leader;
    leads_itself = other == 0;
    pthread_mutex_unlock(&lock);
    return other ? mpy_taken(other, error, n) : 0;
}

void mpy_hub_expect(int pid) { leader = pid; }
bool mpy_hub_is_away(void) { return leader != 0 && leader != getpid(); }

bool mpy_hub_has_kin(void) {
    int self = getpid(), found;
    return mpy_kin_find(&self, 1, &found, 1) > 0;
}

bool mpy_hub_end(int code) {
    const mpy_tree_message_t end = {.kind = MPY_TREE_EXIT, .value = code, .index = MPY_LAST_WORD_MS};
    const int64_t until = mpy_now_ms() + MPY_LAST_WORD_MS;
    bool sent = serves && mpy_tree_send(door[1], &end, -1);
    while (sent && !told && mpy_now_ms() < until) poll(NULL, 0, 1);
    return sent;
}

void mpy_hub_orders_itself(void) {
    pthread_mutex_lock(&lock);
    leader = getpid();
    pthread_mutex_unlock(&lock);
}

int mpy_hub_forked(void) {
    for (int i = 0; i < nguests; i++) mpy_fd_close(guests[i].line);
    if (leader_fd >= 0) mpy_fd_close(leader_fd);
    mpy_fd_close(door[0]);
    door[0] = leader_fd = asker = -1, nguests = leader = 0, serves = false;
    mpy_checkpoint_given_up = mpy_control_cancelled;
    return door[1];
}

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
    serves = true;
    mpy_checkpoint_given_up = given_up;
    if (!mpy_thread_start(hub_main, error, sizeof error)) mpy_fail(1, "%s", error);
}
