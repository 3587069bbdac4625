/* clock_driver.c - runs wrappers/clock/clock.c without MPI or a lower half. It reads commands from stdin and
 * prints one answer line for each.
 *
 * The main thread plays the control thread, workers play the program's threads. They sleep in the clock when they park.
 *   row CID HANDLE RANK...
 *   unrow INDEX
 *   ggid RANK...
 *   child A B C
 *   group A B C
 *   phase P
 *   target INDEX SEQ
 *   needed 0|1
 *   wake
 *   enter THREAD INDEX
 *   start THREAD INDEX                       a nonblocking collective: enter and leave at once
 *   fail THREAD INDEX                        its call on the row has failed on its arguments
 *   leave THREAD
 *   block THREAD MODE INDEX RANK...          INDEX -1: waits for no rank
 *   unblock THREAD
 *   finish THREAD
 * Answers: values in hex, or "version-increase notifications", for each thread "verdict:state:cid:mode:all:peers",
 * "|", whether a call was retracted, and for each row "cid:seq:target". The verdict is "go" or "park" for the thread
 * that enters, and for a parked thread that has got one meanwhile; for other threads it is "-".
 */
#include "clock/clock.h"
#include "core/lock.h"
#include "messages/internal_messages.h"

#include <manapy/proc_stat.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

__thread mpy_thread_t *mpy_self_tls;
mpy_thread_t *mpy_self_slow(void) { return &MPY_UPPER->threads[0]; }
void mpy_cross_stop(mpy_thread_t *t) { (void)t; }
void *mpy_alloc(size_t size) { return calloc(1, size); }
int mpy_private_comm = MPI_COMM_NULL;
void mpy_free(void *p, size_t size) { (void)size; free(p); }

static unsigned notified;
static void notify(void) { notified++; }
static void die(const char *line, int code) { fprintf(stderr, "%s\n", line); exit(code); }
static int error_class(int code, int *class) { return *class = code, MPI_SUCCESS; }
static const mpy_services_t services = {.notify = notify, .die = die};

enum { THREADS = 3 };
static struct worker {
    sem_t start;
    volatile int done, entering, blocking, tid;
    mpy_clock_row_t *row;
} workers[THREADS];

static void *worker(void *argument) {
    struct worker *w = argument;
    w->tid = (int)syscall(SYS_gettid);
    for (;;) {
        sem_wait(&w->start);
        mpy_clock_enter(&MPY_UPPER->threads[w - workers], w->row);
        if (!w->blocking) mpy_clock_leave(&MPY_UPPER->threads[w - workers]);
        __atomic_store_n(&w->done, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static bool is_settled(const struct worker *w) {
    mpy_proc_stat_t thread;
    if (__atomic_load_n(&w->done, __ATOMIC_SEQ_CST)) return true;
    return mpy_proc_stat(w->tid, &thread) == 0 && thread.state == 'S' &&
           MPY_UPPER->threads[w - workers].in_lower == 0 && !w->done;
}

/* Wait until every worker has entered or sleeps in the clock; twice, because one may wake another. */
static void settle(void) {
    for (int k = 0, quiet = 0; quiet < 2 * THREADS; k = (k + 1) % THREADS) {
        if (is_settled(&workers[k])) quiet++;
        else quiet = 0, usleep(50);
    }
}

static void show(uint32_t version, unsigned before) {
    printf("%u %u", MPY_UPPER->clock.version - version, notified - before);
    for (int k = 0; k < THREADS; k++) {
        const mpy_thread_t *t = &MPY_UPPER->threads[k];
        struct worker *w = &workers[k];
        printf(" %s:%u:%lx:%u:%u:", w->entering ? (w->done ? "go" : "park") : "-", t->state, t->state_cid,
               t->block_mode, t->block_peers_all);
        for (uint32_t i = 0; i < t->nblock; i++) printf("%s%d", i ? "," : "", t->block_peers[i]);
        if (t->nblock == 0) printf("-");
        if (w->done) w->entering = 0;
    }
    printf(" | %u", MPY_UPPER->clock.retracted);
    for (uint32_t i = 0; i < MPY_UPPER->clock.nrows; i++) {
        mpy_clock_row_t *r = &MPY_UPPER->clock.rows[i];
        if (r->cid && r->handle != MPY_ROW_FREED) printf(" %lx:%lu:%lu", r->cid, r->seq, r->target);
    }
    printf("\n");
}

int main(void) {
    if (mmap((void *)MPY_LOWER_ADDR, MPY_TRAP_ADDR - MPY_LOWER_ADDR, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        return 1;
    MPY_LOWER->svc = &services;
    MPY_LOWER->mpi[MPY_FN_Error_class] = (void *)error_class;
    for (int k = 0; k < THREADS; k++) {
        pthread_t thread;
        MPY_UPPER->threads[k].lower_fs = 1; /* bound; nothing crosses here */
        MPY_UPPER->threads[k].used = 1;
        workers[k].done = 1;
        sem_init(&workers[k].start, 0, 0);
        pthread_create(&thread, NULL, worker, &workers[k]);
    }

    char line[65536];
    while (fgets(line, sizeof line, stdin)) {
        char word[16] = "";
        int at = 0;
        static int32_t ranks[8192];
        unsigned long a = 0, b = 0, c = 0;
        sscanf(line, "%15s%n", word, &at);
        char *p = line + at;
        uint32_t version = MPY_UPPER->clock.version;
        unsigned before = notified;
        mpy_thread_t *t = NULL;
        static const char *const of_threads[] = {"enter", "start", "leave", "fail", "block", "unblock", "finish"};
        for (size_t i = 0; i < sizeof of_threads / sizeof *of_threads; i++)
            if (!strcmp(word, of_threads[i])) t = &MPY_UPPER->threads[strtoul(p, &p, 10)];
        if (!strcmp(word, "row")) a = strtoul(p, &p, 16);
        if (!strcmp(word, "row") || !strcmp(word, "target") || !strcmp(word, "block")) b = strtoul(p, &p, 10);
        if (!strcmp(word, "block") || !strcmp(word, "target")) c = strtoul(p, &p, 10);
        int n = 0;
        for (char *end; (void)(ranks[n] = (int32_t)strtol(p, &end, 10)), end != p; p = end) n++;
        if (!strcmp(word, "ggid")) { printf("%016lx\n", mpy_ggid(ranks, n)); goto next; }
        if (!strcmp(word, "child") || !strcmp(word, "group")) {
            sscanf(line, "%*s %lx %lu %ld", &a, &b, (long *)&c);
            uint64_t id = word[0] == 'c' ? mpy_child_cid(a, b, (int32_t)c) : mpy_group_cid(a, (int)(long)b, c);
            printf("%016lx\n", id);
            goto next;
        }
        if (!strcmp(word, "row")) {
            int32_t *members = malloc((size_t)n * sizeof *members);
            memcpy(members, ranks, (size_t)n * sizeof *members);
            mpy_row_add(a, members, n, (int)b);
        } else if (!strcmp(word, "unrow")) {
            mpy_row_remove((uint32_t)ranks[0]);
        } else if (!strcmp(word, "phase")) {
            MPY_LOWER->phase = (uint32_t)ranks[0];
            if (MPY_LOWER->phase == MPY_PHASE_INTENT) MPY_UPPER->clock.retracted = 0;
        } else if (!strcmp(word, "target")) {
            MPY_UPPER->clock.rows[b].target = c;
        } else if (!strcmp(word, "needed")) {
            MPY_UPPER->clock.needed = (uint32_t)ranks[0];
        } else if (!strcmp(word, "wake")) {
            __atomic_add_fetch(&MPY_UPPER->clock.wake, 1, __ATOMIC_SEQ_CST);
            mpy_lock_wake_all(&MPY_UPPER->clock.wake);
            settle();
        } else if (!strcmp(word, "enter") || !strcmp(word, "start")) {
            struct worker *w = &workers[t - MPY_UPPER->threads];
            w->blocking = word[0] == 'e';
            w->row = &MPY_UPPER->clock.rows[ranks[0]];
            w->done = 0;
            w->entering = 1;
            sem_post(&w->start);
            settle();
        } else if (!strcmp(word, "fail")) {
            mpy_clock_failed(&MPY_UPPER->clock.rows[ranks[0]], MPI_ERR_COUNT);
        } else if (!strcmp(word, "leave")) {
            mpy_clock_leave(t);
        } else if (!strcmp(word, "block")) {
            mpy_comm_t comm = {.row = (uint32_t)c};
            bool nobody = (long)c < 0;
            mpy_clock_blocked(t, nobody ? NULL : &comm, ranks, (uint32_t)n, n == 0 && !nobody, (int)b);
        } else if (!strcmp(word, "unblock")) {
            mpy_clock_unblocked(t);
        } else if (!strcmp(word, "finish")) {
            mpy_clock_finish(t);
        }
        show(version, before);
    next:
        fflush(stdout);
    }
    return 0;
}
