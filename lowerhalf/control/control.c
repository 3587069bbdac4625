/* control.c - the control thread: this rank's side of the control protocol (manapy/control.h). Lower
 * half; libc; all signals blocked. epoch.c handles the messages of a checkpoint.
 *
 * Invariants
 *  1. This thread never runs a step of the engine itself (worker.c does), so that it always receives ABORT and KILL.
 *  2. Without a coordinator the program goes on: a pending checkpoint is cancelled, tickets fail, and one line says so.
 *     Without its node's agent (join/node.c) the rank ends, because the coordinator treats the whole node as lost.
 *     At the start, this thread tries to connect for minutes.
 *  3. In a tree of processes one process speaks for the rank at a time. The thread of another one is AWAY: it has no
 *     connection, and it only notices the end of its program. It leaves only between two checkpoints.
 */
#define _GNU_SOURCE
#include "control.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <manapy/boundary.h>

#include "base/io/host.h"
#include "base/now.h"
#include "base/reason.h"
#include "base/sys.h"
#include "base/thread.h"
#include "clockside.h"
#include "epoch.h"
#include "isolate/fdguard.h"
#include "join/chain.h"
#include "join/node.h"
#include "notify.h"
#include "wire/wire.h"
#include "worker.h"

#define CONNECT_MS 30000    /* time for the coordinator's interpreter to start on a busy machine */
/* The coordinator's socket is bound before any rank runs. If connections are refused for this long, something is
 * wrong. */
#define REFUSED_MS 1000
#define CONNECT_TRIES_MS 300000 /* after this time the rank gives up; coordinator.py relies on it (CONNECT_SECONDS) */
#define CONNECT_PAUSE_MS 50     /* first pause between tries; each pause is twice the one before */
#define CONNECT_PAUSE_MAX_MS 10000
#define FREEZE_POLL_NS 50000
#define GO_POLL_MS 10
#define INIT_POLL_NS 500000000 /* whether MPI_Init has returned */
#define FINISH_WAIT_S 2         /* time for the coordinator to take this rank's DONE */
#define FINISH_WAIT_TREE_S 20   /* ... or for another process to speak: more than PART_MS and MPY_BACK_MS */
/* After the loss of its node's agent a rank ends this much later: first the coordinator must hear of the lost node, and
 * then of the ranks that mpirun ends with this one. In ranks.py GRACE_SECONDS is longer. */
#define AGENT_LOST_MS 500
/* Time for NOTED. A chain must know how its steps have ended, and Slurm may end the coordinator with the last task of
 * its node. */
#define FINISH_WAIT_CHAIN_S 600
#define PART_MS 5000            /* longest wait for the coordinator to notice that a connection ends */
#define TREE_TEXT 16384         /* 128 processes */
#define WRITING_WAIT_S 600 /* time for the image that is written beside the program */

typedef enum { HERE, LEAVING, AWAY, RETURNING } seat_t;
typedef enum { GO_NOT_ASKED, GO_ASKED, GO_SENT, GO_GIVEN, GO_FAILED } go_t;

static struct {
    mpy_control_config_t config;
    mpy_wire_t wire;
    mpy_text_t out;
    const char *mpi_state;   /* as last sent in PROGRAM */
    int64_t tickets_sent;
    uint32_t place_sent;     /* the version of the place that was sent */
    bool in_chain;
    bool done_sent;
    bool unled;              /* the agent of this node has lost the coordinator */
    pthread_mutex_t go_lock;
    pthread_cond_t go_changed; /* go or seat, or the coordinator is lost */
    go_t go;
    seat_t seat;             /* invariant 3 */
} plane = {.go_lock = PTHREAD_MUTEX_INITIALIZER};

#define WORDS (&mpy_control_words)

static void say(const char *line) {
    char text[2048];
    int n = snprintf(text, sizeof text, "manapy: rank %d: %s\n", plane.config.job->rank, line);
    if (write(2, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1) < 0) {}
}

/* True for one rank of each node (with the usual placement): only this rank prints the line. */
static bool speaks(void) {
    return plane.config.job->local_size <= 1 || plane.config.job->rank % plane.config.job->local_size == 0;
}

static void flush(void) {
    if (plane.out.length == 0) return;
    mpy_wire_send(&plane.wire, plane.out.data, plane.out.length - 1); /* send adds the last newline */
    mpy_text_clear(&plane.out);
}

static void set_go(go_t go) {
    pthread_mutex_lock(&plane.go_lock);
    plane.go = go;
    pthread_cond_broadcast(&plane.go_changed);
    pthread_mutex_unlock(&plane.go_lock);
}

/* Closes the connection when the coordinator has noticed: it accepts one connection of a rank at a time. */
static void part(void) {
    char unread[512];
    struct pollfd p = {.fd = plane.wire.fd, .events = POLLIN};
    if (plane.wire.fd >= 0) shutdown(plane.wire.fd, SHUT_WR);
    while (plane.wire.fd >= 0 && poll(&p, 1, PART_MS) > 0 && read(plane.wire.fd, unread, sizeof unread) > 0) {}
    mpy_wire_close(&plane.wire);
}

static seat_t seat(void) {
    pthread_mutex_lock(&plane.go_lock);
    seat_t now = plane.seat;
    pthread_mutex_unlock(&plane.go_lock);
    return now;
}

static void set_seat(seat_t to) {
    pthread_mutex_lock(&plane.go_lock);
    plane.seat = to;
    pthread_cond_broadcast(&plane.go_changed);
    pthread_mutex_unlock(&plane.go_lock);
}

static void set_finish_taken(void) {
    __atomic_store_n(&WORDS->finish_taken, 1, __ATOMIC_SEQ_CST);
    mpy_futex_wake(&WORDS->finish_taken);
}

/* The step that runs next does not return. */
static void say_last_words(void) {
    mpy_text_add(&plane.out, "DONE 0\n");
    plane.done_sent = true;
    flush();
    set_finish_taken();
}

/* The end of the program may wait for the image; the last report of it must have been sent. */
static void set_writing_ended(void) {
    if (!WORDS->writing || mpy_epoch_persisting()) return;
    __atomic_store_n(&WORDS->writing, 0, __ATOMIC_SEQ_CST);
    mpy_futex_wake(&WORDS->writing);
}

/* ---- reports that no message asks for ---- */

/* When MPI_Init was called, if it is still in progress; else 0. */
static int64_t init_since(void) {
    const mpy_engine_ops_t *engine = plane.config.engine;
    return MPY_UPPER->mpi_initialized || engine->init_since == NULL ? 0 : engine->init_since();
}

static void report_program(void) {
    const mpy_upper_t *u = MPY_UPPER;
    const char *state = u->mpi_finalized ? "finalized" : u->mpi_initialized ? "up" : "none";
    int64_t since = init_since();
    if (since != 0 && mpy_now_ms() - since >= MPY_INIT_MS) state = "init";
    if (plane.mpi_state != NULL && strcmp(state, plane.mpi_state) == 0) return;
    plane.mpi_state = state;
    mpy_text_add(&plane.out, "PROGRAM %s ", state);
    mpy_text_add_encoded(&plane.out, plane.config.program != NULL ? plane.config.program : "");
    char segments[4096] = "-";
    if (u->mpi_initialized && plane.config.engine->segments != NULL)
        plane.config.engine->segments(segments, sizeof segments);
    mpy_text_add(&plane.out, " %s\n", segments);
}

/* Sent before CHECKED and REQUEST: if the program names a directory before a checkpoint is requested, that checkpoint
 * goes there. */
static void report_place(void) {
    char place[sizeof WORDS->place];
    uint32_t version = __atomic_load_n(&WORDS->place_version, __ATOMIC_SEQ_CST);
    if (version == plane.place_sent || version % 2 != 0) return;
    memcpy(place, WORDS->place, sizeof place);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (WORDS->place_version != version) return; /* the writer will wake us again */
    plane.place_sent = version;
    mpy_text_add(&plane.out, "PLACE ");
    mpy_text_add_encoded(&plane.out, place);
    mpy_text_add(&plane.out, "\n");
}

/* The MPI process of a tree ends; the rank goes on. Its last image is reported first. */
static void end_as_member(void) {
    flush();
    set_writing_ended();
    if (mpy_epoch_persisting()) return;
    part();
    plane.config.hand_back();
    plane.done_sent = true;
    set_finish_taken();
}

static void on_event(void) {
    uint64_t count;
    if (read(WORDS->event, &count, sizeof count) < 0) {}
    report_place();
    mpy_epoch_take_step();
    report_program();
    mpy_clockside_report(&plane.out);
    int64_t tickets = __atomic_load_n(&WORDS->tickets, __ATOMIC_SEQ_CST);
    if (tickets > plane.tickets_sent) mpy_text_add(&plane.out, "REQUEST %" PRId64 "\n", plane.tickets_sent = tickets);
    pthread_mutex_lock(&plane.go_lock);
    if (plane.go == GO_ASKED)
        mpy_text_add(&plane.out, "READY %" PRIu32 "\n", plane.config.generation), plane.go = GO_SENT;
    pthread_mutex_unlock(&plane.go_lock);
    bool finish = WORDS->finish_asked && !plane.done_sent;
    if (finish && plane.config.hand_back != NULL) return end_as_member();
    if (finish) mpy_text_add(&plane.out, "DONE %d\n", WORDS->exit_code);
    flush();
    plane.done_sent |= finish;
    if (finish && mpy_epoch_persisting() && speaks())
        say("the program has ended; its checkpoint is still being written");
    if (finish && !plane.in_chain) set_finish_taken();
    set_writing_ended();
}

/* ---- messages ---- */

static void on_kill(char *line) {
    int code = (int)mpy_field_number(&line);
    char *reason = mpy_field(&line);
    if (reason == NULL || !mpy_wire_decode(reason)) reason = NULL;
    bool quiet = reason != NULL && reason[0] == '\0'; /* another rank prints the reason */
    if (reason == NULL) reason = "the coordinator ends the job";
    plane.config.engine->abort_job(code != 0 || quiet ? code : 1, reason);
}

static void on_say(char *line) {
    char *text = mpy_field(&line);
    if (text != NULL && mpy_wire_decode(text)) dprintf(2, "manapy: %s\n", text);
}

static void on_ticket(char *line) {
    int64_t ticket = (int64_t)mpy_field_number(&line);
    char *outcome = mpy_field(&line);
    bool ok = outcome != NULL && strcmp(outcome, "ok") == 0;
    char *reason = mpy_field(&line);
    if (!ok && reason != NULL && mpy_wire_decode(reason)) {
        char text[1200];
        snprintf(text, sizeof text, "the checkpoint that the program requested has failed: %s", reason);
        if (plane.config.job->rank == 0) say(text);
    }
    __atomic_store_n(&WORDS->tickets_done, ok ? ticket : -ticket, __ATOMIC_SEQ_CST);
}

static void on_tree(char *line) {
    static char text[TREE_TEXT];
    report_program();
    plane.config.look(text, sizeof text);
    mpy_text_add(&plane.out, "TREE %" PRIu64 " ", mpy_field_number(&line));
    mpy_text_add_encoded(&plane.out, text);
    mpy_text_add(&plane.out, "\n");
}

static void on_line(char *line) {
    char *kind = mpy_field(&line);
    if (kind == NULL) return;
    if (strcmp(kind, "GO") == 0) set_go(GO_GIVEN);
    else if (strcmp(kind, "NOTED") == 0) set_finish_taken();
    else if (strcmp(kind, "SAY") == 0) on_say(line);
    else if (strcmp(kind, "KILL") == 0) on_kill(line);
    else if (strcmp(kind, "UNLED") == 0) plane.unled = plane.wire.closed = true;
    else if (strcmp(kind, "TICKET") == 0) on_ticket(line);
    else if (strcmp(kind, "TREE") == 0) on_tree(line);
    else {
        if (strcmp(kind, "CHECK") == 0) report_program();
        mpy_epoch_message(kind, line);
    }
    flush();
}

/* ---- the thread ---- */

static bool connect_once(char *error, size_t n) {
    const mpy_job_t *job = plane.config.job;
    mpy_fds_low_lock(); /* a restart may be moving the program's descriptors into place */
    char agent[MPY_NODE_NAME];
    if (job->through_agent) mpy_node_name(job, agent);
    int fd = job->through_agent ? mpy_wire_connect_local(agent) : mpy_wire_connect(job->host, job->port, CONNECT_MS);
    mpy_fds_low_unlock();
    if (fd < 0 && job->through_agent) return mpy_refuse(error, n, "the agent of this node: %s", strerror(errno));
    if (fd < 0) return mpy_refuse(error, n, "%s port %d: %s", job->host, job->port, strerror(errno));
    mpy_wire_open(&plane.wire, fd);
    if (mpy_wire_authenticate(&plane.wire, "rank", job->secret, CONNECT_MS, error, n)) return true;
    mpy_wire_close(&plane.wire);
    return false;
}

static void look_at_door(const struct pollfd *p) {
    if (!p->revents || plane.config.door < 0) return;
    plane.config.door = -1;
    plane.config.door_opened();
}

/* Wait until the next try is due or something happens: the program ends or asks for a checkpoint. */
static void wait_for_event(int ms) {
    struct pollfd p[2] = {{.fd = WORDS->event, .events = POLLIN}, {.fd = plane.config.door, .events = POLLIN}};
    uint64_t count;
    if (poll(p, 2, ms) > 0 && p[0].revents && read(WORDS->event, &count, sizeof count) < 0) {}
    look_at_door(&p[1]);
}

/* Try again after a refusal: a coordinator without free descriptors, or on a busy node, accepts us later. */
static bool connect_to_coordinator(void) {
    char error[512], line[2048];
    int64_t start = mpy_now_ms();
    int pause = CONNECT_PAUSE_MS;
    bool said = false;
    while (!connect_once(error, sizeof error)) {
        if (seat() == LEAVING) return false;
        int64_t tried = mpy_now_ms() - start;
        bool over = tried >= CONNECT_TRIES_MS || (tried >= REFUSED_MS && WORDS->finish_asked);
        if (tried >= REFUSED_MS && !WORDS->finish_asked && (over || (!said && speaks()))) {
            snprintf(
                line, sizeof line,
                "no connection to the coordinator (%s; see %s/coordinator.log); the job runs without checkpoints%s",
                error, plane.config.job->dir, over ? "" : " until it can be reached");
            say(line);
            said = true;
        }
        if (over) return false;
        /* ranks wait differently long, so they don't connect all at once */
        wait_for_event(pause + plane.config.job->rank % 64 * pause / 64);
        if (pause < CONNECT_PAUSE_MAX_MS) pause *= 2;
    }
    if (said) say("connected to the coordinator: checkpoints are possible now");
    char host[MPY_HOST_NAME];
    mpy_hostname(host, sizeof host);
    mpy_text_add(&plane.out, "HELLO %d %d ", plane.config.job->rank, plane.config.job->size);
    mpy_text_add_encoded(&plane.out, host);
    mpy_text_add(&plane.out, " %d %" PRIu32 " ", (int)getpid(), plane.config.generation);
    mpy_text_add_encoded(&plane.out, plane.config.checkpoint != NULL ? plane.config.checkpoint : "");
    mpy_text_add(&plane.out, "\n");
    plane.mpi_state = NULL;
    report_program();
    flush();
    if (seat() == RETURNING) set_seat(HERE);
    return true;
}

static void converse(void) {
    struct pollfd p[3] = {{.fd = plane.wire.fd, .events = POLLIN}, {.fd = WORDS->event, .events = POLLIN},
                          {.fd = plane.config.door, .events = POLLIN}};
    on_event(); /* handles what was requested before we were connected; reading an empty eventfd does not block */
    while (!plane.wire.closed && !(seat() == LEAVING && mpy_epoch_leave())) {
        const struct timespec soon = {.tv_nsec = FREEZE_POLL_NS}, later = {.tv_nsec = INIT_POLL_NS};
        bool in_init = init_since() != 0;
        const struct timespec *patience = mpy_clockside_freezing() ? &soon : in_init ? &later : NULL;
        if (ppoll(p, 3, patience, NULL) < 0 && errno != EINTR) break;
        look_at_door(&p[2]);
        p[2].fd = plane.config.door;
        if (in_init) {
            report_program();
            flush();
        }
        if (mpy_clockside_freezing()) {
            mpy_clockside_freeze_poll(&plane.out);
            flush();
        }
        if (p[1].revents) on_event();
        if (!p[0].revents) continue;
        mpy_wire_fill(&plane.wire, 0);
        for (char *line; (line = mpy_wire_line(&plane.wire)) != NULL;) on_line(line);
    }
}

static void fail_tickets(void) {
    int64_t tickets = __atomic_load_n(&WORDS->tickets, __ATOMIC_SEQ_CST);
    if (tickets > 0) __atomic_store_n(&WORDS->tickets_done, -tickets, __ATOMIC_SEQ_CST);
}

static void end_without_agent(void) {
    char host[MPY_HOST_NAME], text[1600];
    mpy_hostname(host, sizeof host);
    snprintf(text, sizeof text, "the agent of host %s is lost (see %s/node-%s.log): the job ends", host,
             plane.config.job->dir, host);
    plane.config.engine->abort_job(1, text);
}

/* Invariant 2. The thread continues: a step may still run, and tickets must fail. */
static void go_on_without_coordinator(bool was_connected) {
    __atomic_store_n(&WORDS->lost, 1, __ATOMIC_SEQ_CST);
    if (plane.config.job->through_agent && was_connected && !plane.unled && !WORDS->finish_asked) {
        poll(NULL, 0, AGENT_LOST_MS);
        if (!WORDS->finish_asked) end_without_agent();
    }
    /* Print this before the coordinator notices, because it may then end the job. */
    if (plane.wire.tampered)
        say("the connection to the coordinator was changed on the network and is closed; "
            "the job goes on, but can't be checkpointed any more");
    else if (was_connected && !WORDS->finish_asked && plane.config.job->rank == 0)
        say("the coordinator is lost; the job goes on, but can't be checkpointed any more");
    mpy_wire_close(&plane.wire);
    set_go(GO_FAILED);
    set_finish_taken();
    MPY_LOWER->abandoned = 1;
    fail_tickets(); /* before the program continues and asks for the outcome */
    mpy_epoch_lost();
    for (;;) {
        mpy_text_clear(&plane.out); /* there is nobody to send it to */
        fail_tickets();
        struct pollfd p = {.fd = WORDS->event, .events = POLLIN};
        if (poll(&p, 1, -1) < 0) continue;
        uint64_t count;
        if (read(WORDS->event, &count, sizeof count) < 0) {}
        mpy_epoch_take_step();
        set_writing_ended();
    }
}

static void stay_away(void) {
    while (seat() == AWAY) {
        wait_for_event(-1);
        if (WORDS->finish_asked) set_finish_taken(); /* nobody waits for this process */
    }
}

/* True if another process speaks for the rank from now on. */
static bool leave(void) {
    if (seat() != LEAVING) return false;
    part();
    set_seat(AWAY);
    return true;
}

static void *control_main(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "manapy-control", 0, 0, 0);
    bool connected;
    do {
        stay_away();
        connected = connect_to_coordinator();
        if (connected) {
            __atomic_store_n(&WORDS->connected, 1, __ATOMIC_SEQ_CST);
            converse();
        }
    } while (leave());
    go_on_without_coordinator(connected);
    return NULL;
}

bool mpy_control_start(const mpy_control_config_t *config, char *error, size_t n) {
    plane.config = *config;
    mpy_wire_open(&plane.wire, -1);
    mpy_epoch_init(config->engine, &plane.out, say_last_words);
    if (!mpy_clockside_init(config->job->size, error, n)) return false;
    WORDS->event = mpy_fd_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (WORDS->event < 0) return mpy_refuse(error, n, "eventfd: %s", strerror(errno));
    plane.seat = config->away ? AWAY : HERE;
    if (config->door_opened == NULL) plane.config.door = -1;
    plane.in_chain = mpy_chain_active();
    WORDS->alone = config->job->size == 1 && !plane.in_chain && config->hand_back == NULL;
    WORDS->finish_wait_s = plane.in_chain ? FINISH_WAIT_CHAIN_S
                           : config->hand_back ? FINISH_WAIT_TREE_S
                                               : FINISH_WAIT_S;
    WORDS->writing_wait_s = WRITING_WAIT_S;
    mpy_cond_init(&plane.go_changed);
    bool ok = mpy_worker_start(config->engine, WORDS->event, error, n) && mpy_thread_start(control_main, error, n);
    if (ok) __atomic_store_n(&WORDS->pid, (int)getpid(), __ATOMIC_SEQ_CST);
    return ok;
}

void mpy_control_hand_over(void) {
    pthread_mutex_lock(&plane.go_lock);
    if (plane.seat == HERE) plane.seat = LEAVING;
    pthread_mutex_unlock(&plane.go_lock);
    mpy_control_notify();
    pthread_mutex_lock(&plane.go_lock);
    while (plane.seat != AWAY && !WORDS->lost) pthread_cond_wait(&plane.go_changed, &plane.go_lock);
    pthread_mutex_unlock(&plane.go_lock);
    mpy_control_note_process_manager(-1); /* it hears the process that uses MPI */
}

void mpy_control_take_back(void) {
    const int64_t deadline = mpy_now_ms() + MPY_BACK_MS;
    set_seat(RETURNING);
    mpy_control_notify();
    pthread_mutex_lock(&plane.go_lock);
    while (plane.seat != HERE && !WORDS->lost)
        if (!mpy_cond_wait_until(&plane.go_changed, &plane.go_lock, deadline)) break;
    pthread_mutex_unlock(&plane.go_lock);
}

int mpy_control_local_size(void) {
    const mpy_job_t *job = plane.config.job;
    return job && job->local_size > 0 ? job->local_size : 1;
}

bool mpy_control_ready_and_wait_go(char *error, size_t n) {
    mpy_clockside_after_restart();
    pthread_mutex_lock(&plane.go_lock);
    if (plane.go == GO_NOT_ASKED) plane.go = GO_ASKED;
    pthread_mutex_unlock(&plane.go_lock);
    mpy_control_notify();
    pthread_mutex_lock(&plane.go_lock);
    while (plane.go != GO_GIVEN && plane.go != GO_FAILED) {
        pthread_mutex_unlock(&plane.go_lock);
        if (plane.config.engine->progress != NULL) plane.config.engine->progress();
        pthread_mutex_lock(&plane.go_lock);
        if (plane.go != GO_GIVEN && plane.go != GO_FAILED)
            mpy_cond_wait_until(&plane.go_changed, &plane.go_lock, mpy_now_ms() + GO_POLL_MS);
    }
    bool go = plane.go == GO_GIVEN;
    pthread_mutex_unlock(&plane.go_lock);
    if (!go)
        mpy_reason(error, n, "the coordinator is lost; the restart cannot go on (see %s/coordinator.log)",
                   plane.config.job->dir);
    return go;
}
