/* restore.c - a restart of a tree: the process of the restart makes the others, and all of them go on together.
 *
 * Half: lower, before the program runs; libc may be called. There is one thread until each process has been made.
 *
 * Invariants
 *  1. Parents make their children, by fork, so that wait(2) finds them. The process that mpirun has started becomes the
 *     first process of the tree.
 *  2. No process runs the program, and none changes a file, before the MPI process says so. It says so when all other
 *     processes are restored and all other ranks are ready; and once more when all files have been truncated.
 *  3. If a process of the tree ends before that, all of them end.
 */
#include "base/rank.h"
#include "base/reason.h"
#include "base/sys.h"
#include "control/control.h"
#include "image/restore.h"
#include "isolate/fdguard.h"
#include "member.h"
#include "internal.h"
#include "process/fds/fds.h"
#include "process/memory/files.h"
#include "tree.h"
#include <errno.h>
#include <manapy/proc_stat.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_NS = 50000000, ROOM_MS = 10, WANTS_MAX = 1 << 16 /* pages that are not needed use no memory */ };

static struct shared {
    volatile uint32_t changes; /* futex */
    volatile uint32_t made, grouped, failed, listening;
    volatile uint32_t arrived[MPY_TREE_STAGES], opened;
    volatile int32_t real[MPY_TREE_MAX];
    volatile uint32_t asked, nwants;
    struct want { int owner, number, other_end, wanter, slot; } wants[WANTS_MAX]; /* descriptors */
} *shared;

static const mpy_image_member_t *members;
static uint32_t nmembers, self;

static void announce(void) {
    __atomic_add_fetch(&shared->changes, 1, __ATOMIC_SEQ_CST);
    mpy_sys(SYS_futex, &shared->changes, FUTEX_WAKE, 0x7fffffff);
}

static void on_exit_early(void) {
    if (shared->opened == MPY_TREE_STAGES) return;
    shared->failed = 1;
    announce();
}

static bool all_live(void) {
    mpy_proc_stat_t s;
    for (uint32_t i = 0; i < nmembers; i++)
        if (shared->real[i] > 0 && (mpy_proc_stat(shared->real[i], &s) || s.state == 'Z' || s.state == 'X'))
            return false;
    return true;
}

/* Invariant 3. One process says why. One that fails sets `failed` before it ends, so that is read after the look. */
static void require_all(void) {
    bool live = all_live();
    if (shared->failed) _exit(1);
    if (live) return;
    if (__atomic_exchange_n(&shared->failed, 1, __ATOMIC_SEQ_CST)) _exit(1);
    mpy_fail(1, "a process of the rank's tree was killed during the restart");
}

/* Waits until *word is at least `least`. */
static void wait_for(const volatile uint32_t *word, uint32_t least) {
    const struct timespec look = {.tv_nsec = LOOK_NS};
    for (;;) {
        uint32_t seen = __atomic_load_n(&shared->changes, __ATOMIC_SEQ_CST);
        if (*word >= least) return;
        require_all();
        mpy_sys(SYS_futex, &shared->changes, FUTEX_WAIT, seen, &look);
    }
}

static void count(volatile uint32_t *word) {
    __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
    announce();
}

/* ---- making the processes ---- */

static long index_of(int32_t pid) {
    for (uint32_t i = 0; i < nmembers; i++)
        if (members[i].pid == pid) return i;
    return -1;
}

/* Ends with `self` set in each process. */
static void make_children(void) {
    for (uint32_t i = 0; i < nmembers; i++) {
        if (members[i].parent != members[self].pid) continue;
        pid_t pid = fork();
        if (pid < 0) mpy_fail(1, "cannot make a process of the rank's tree: %s (check `ulimit -u`)", strerror(errno));
        if (pid > 0) continue;
        self = i;
        if (members[i].session == members[i].pid) { /* its children inherit both */
            setsid();
            mpy_fds_control(members[i].pid);
        }
        return make_children();
    }
}

static int real_of(int32_t pid) {
    long i = index_of(pid);
    return i < 0 ? 0 : shared->real[i];
}

/* A group is made by the process whose id it has. */
static void join_group(void) {
    long leader = index_of(members[self].group);
    if (leader == (long)self && getpgrp() != getpid()) setpgid(0, 0);
    count(&shared->grouped);
    wait_for(&shared->grouped, nmembers);
    if (leader >= 0 && leader != (long)self) setpgid(0, shared->real[leader]);
    mpy_fds_foreground(members[self].pid, real_of);
}

static uint32_t find_first(const char *path) {
    uint32_t first = nmembers;
    for (uint32_t i = 0; i < nmembers; i++) {
        if (index_of(members[i].parent) >= 0) continue;
        if (first < nmembers) mpy_fail(1, "%s: damaged: its tree has two first processes", path);
        first = i;
    }
    if (first == nmembers) mpy_fail(1, "%s: damaged: its tree has no first process", path);
    return first;
}

/* ---- descriptors: each process asks the owners, when all have theirs in place ---- */

static int boxes[MPY_TREE_MAX][2]; /* of each process: its end, the senders' end */

static void open_boxes(void) {
    for (uint32_t i = 0; i < nmembers; i++)
        if (!mpy_tree_pair(boxes[i])) mpy_fail(1, "cannot open a socket pair: %s", strerror(errno));
}

void mpy_tree_make_way(void) {
    mpy_member_make_way();
    for (uint32_t i = 0; i < nmembers; i++)
        for (int k = 0; k < 2; k++) boxes[i][k] = mpy_fd_high(boxes[i][k]);
}

/* Receives what this process wants, if something comes within `ms`. Returns the number: 1 or 0. */
static int take_one(mpy_fd_want_t *wants, int ms) {
    mpy_tree_message_t m;
    int fd, got = mpy_tree_receive(boxes[self][0], &m, &fd, ms);
    if (got == 0) require_all();
    if (got > 0) wants[m.index].got = fd;
    return got > 0;
}

/* A process that waits to send would not receive, and others would wait for it. Waits a little. */
static bool has_room(int box) { return poll(&(struct pollfd){.fd = box, .events = POLLOUT}, 1, ROOM_MS) > 0; }

static int exchange(mpy_fd_want_t *wants, int n, char *error, size_t room) {
    uint32_t at = __atomic_fetch_add(&shared->nwants, (uint32_t)n, __ATOMIC_SEQ_CST);
    if (at + (uint32_t)n > WANTS_MAX)
        return mpy_reason(error, room, "the processes of the tree share more than %d descriptors", WANTS_MAX);
    for (int i = 0; i < n; i++)
        shared->wants[at + (uint32_t)i] =
            (struct want){wants[i].owner, wants[i].number, wants[i].other_end, (int)self, i};
    count(&shared->asked);
    wait_for(&shared->asked, nmembers);
    int left = n;
    for (uint32_t i = 0; i < shared->nwants; i++) {
        const struct want *w = &shared->wants[i];
        if (w->owner != (int)self) continue;
        mpy_tree_message_t m = {.kind = MPY_TREE_PART, .index = (uint32_t)w->slot};
        int fd = mpy_fds_wanted(w->number, w->other_end);
        while (fd >= 0 && !has_room(boxes[w->wanter][1])) left -= take_one(wants, 0);
        if (fd < 0 || !mpy_tree_send(boxes[w->wanter][1], &m, fd))
            return mpy_reason(error, room, "descriptor %d cannot be given to another process: %s", w->number,
                              strerror(errno));
    }
    while (left > 0) left -= take_one(wants, LOOK_NS / 1000000);
    for (uint32_t i = 0; i < nmembers; i++) mpy_fd_close(boxes[i][0]), mpy_fd_close(boxes[i][1]);
    return 0;
}

/* Each process has its listening sockets; then the MPI process makes the connections of all. */
static void await_listening(void) {
    count(&shared->listening);
    if (self == 0) wait_for(&shared->listening, nmembers);
}

mpy_image_t *mpy_tree_restore(mpy_image_t *image) {
    static mpy_image_t own;
    char error[1024];
    if (!image->members) return image;
    members = image->members, nmembers = (uint32_t)image->nmembers;
    if (nmembers > MPY_TREE_MAX) mpy_fail(1, "%s: damaged: its tree has too many processes", image->path);
    self = find_first(image->path);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) mpy_fail(1, "no memory for a restart");
    if (!mpy_tree_found(error, sizeof error)) mpy_fail(1, "%s", error);
    open_boxes();
    mpy_memory_files_share();
    mpy_fds_exchange = exchange;
    mpy_fds_made = await_listening;
    uint32_t first = self;
    atexit(on_exit_early);
    make_children();
    shared->real[self] = getpid();
    count(&shared->made);
    wait_for(&shared->made, nmembers);
    join_group();
    if (self != first) mpy_member_of_restart(self == 0);
    else if (self != 0) mpy_hub_expect(shared->real[0]);
    if (self == 0) return image;
    if (mpy_image_open_member(image, &members[self], &own, error, sizeof error) ||
        mpy_image_check_loadable(&own, error, sizeof error) || mpy_image_check_files(&own, error, sizeof error))
        mpy_fail(1, "%s", error);
    return &own;
}

void mpy_tree_translate(void) {
    for (uint32_t i = 0; i < nmembers; i++)
        if (i != self) mpy_restore_note_id(members[i].pid, shared->real[i]);
}

/* ---- going on together: invariant 2 ---- */

void mpy_tree_arrive(mpy_tree_stage_t stage) {
    if (!shared) return;
    count(&shared->arrived[stage]);
    if (self == 0) wait_for(&shared->arrived[stage], nmembers);
}

void mpy_tree_pass(mpy_tree_stage_t stage) {
    if (!shared) return;
    if (self == 0) count(&shared->opened);
    else wait_for(&shared->opened, stage + 1u);
    if (stage == MPY_TREE_STAGES - 1 && self != 0) mpy_control_note_process_manager(-1);
}
