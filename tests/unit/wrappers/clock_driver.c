/* clock_driver.c - runs wrappers/runtime/clock.c without MPI or a lower half: commands on stdin, one answer line each.
 *
 * The main thread plays the control thread, a worker thread the program (it sleeps in the clock when it parks).
 *   row CID HANDLE RANK...      unrow INDEX          ggid RANK...     child A B C      group A B C
 *   phase P                     target INDEX SEQ     needed 0|1       wake
 *   enter INDEX                 leave                block MODE INDEX RANK...          unblock
 * Answers: "value"s in hex, or "verdict state cid mode all peers version-increase notifications seq:target..."
 */
#include "runtime.h"
#include "lock.h"

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
void mpy_free(void *p, size_t size) { (void)size; free(p); }

static unsigned notified;
static void notify(void) { notified++; }
static void die(const char *line, int code) { fprintf(stderr, "%s\n", line); exit(code); }
static const mpy_services_t services = {.notify = notify, .die = die};

static sem_t start;
static volatile int done = 1, entering, tid;
static mpy_clock_row_t *row;

static void *worker(void *unused) {
    (void)unused;
    tid = (int)syscall(SYS_gettid);
    for (;;) {
        sem_wait(&start);
        mpy_clock_enter(&MPY_UPPER->threads[0], row);
        __atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* Until the worker has entered, or sleeps in the clock. */
static void settle(void) {
    for (;;) {
        char path[64], line[512] = "";
        if (__atomic_load_n(&done, __ATOMIC_SEQ_CST)) return;
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
        FILE *f = fopen(path, "r");
        if (f && !fgets(line, sizeof line, f)) line[0] = 0;
        if (f) fclose(f);
        const char *after = strrchr(line, ')');
        if (after && after[2] == 'S' && MPY_UPPER->threads[0].in_lower == 0 && !done) return;
        usleep(50);
    }
}

static void show(uint32_t version, unsigned before) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    printf("%s %u %lx %u %u ", entering ? (done ? "go" : "park") : "-", t->state, t->state_cid, t->block_mode, t->block_peers_all);
    for (uint32_t i = 0; i < t->nblock; i++) printf("%s%d", i ? "," : "", t->block_peers[i]);
    if (t->nblock == 0) printf("-");
    printf(" %u %u", MPY_UPPER->clock.version - version, notified - before);
    for (uint32_t i = 0; i < MPY_UPPER->clock.nrows; i++) {
        mpy_clock_row_t *r = &MPY_UPPER->clock.rows[i];
        if (r->cid && r->handle != MPY_ROW_FREED) printf(" %lx:%lu:%lu", r->cid, r->seq, r->target);
    }
    printf("\n");
    if (done) entering = 0;
}

int main(void) {
    if (mmap((void *)MPY_LOWER_ADDR, MPY_TRAP_ADDR - MPY_LOWER_ADDR, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) return 1;
    MPY_LOWER->svc = &services;
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    t->lower_fs = 1; /* bound; nothing here crosses */
    pthread_t thread;
    sem_init(&start, 0, 0);
    pthread_create(&thread, NULL, worker, NULL);

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
        } else if (!strcmp(word, "target")) {
            MPY_UPPER->clock.rows[b].target = c;
        } else if (!strcmp(word, "needed")) {
            MPY_UPPER->clock.needed = (uint32_t)ranks[0];
        } else if (!strcmp(word, "wake")) {
            __atomic_add_fetch(&MPY_UPPER->clock.wake, 1, __ATOMIC_SEQ_CST);
            mpy_futex_wake(&MPY_UPPER->clock.wake, 1 << 30);
            settle();
        } else if (!strcmp(word, "enter")) {
            row = &MPY_UPPER->clock.rows[ranks[0]];
            done = 0;
            entering = 1;
            sem_post(&start);
            settle();
        } else if (!strcmp(word, "leave")) {
            mpy_clock_leave(t);
        } else if (!strcmp(word, "block")) {
            mpy_comm_t comm = {.row = (uint32_t)c};
            mpy_clock_blocked(t, &comm, ranks, (uint32_t)n, n == 0, (int)b);
        } else if (!strcmp(word, "unblock")) {
            mpy_clock_unblocked(t);
        }
        show(version, before);
    next:
        fflush(stdout);
    }
    return 0;
}
