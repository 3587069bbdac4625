/* stubs.c - stubs of ranks: one process speaks the control protocol (control.h) for many ranks, each on its own
 * connection, with the code that real ranks have for it (lowerhalf/wire). More than PER_PROCESS ranks share several
 * processes, because each connection takes a descriptor.
 *
 *     manapy-stubs DIR RANKS PER_NODE SOCKETS HOST PORT
 *
 * The first PER_NODE ranks connect to the coordinator, all others to the agents of their nodes (manapy/bench/scale):
 * node N's has the socket SOCKETS-N. DIR/rows has the communicators: one line for each rank, with a %u where the number
 * of its collectives on all ranks stands.
 *
 * The program that the stubs play: every odd rank is inside a collective of all ranks when a checkpoint is requested,
 * and every even rank computes. So half of the ranks are below their target and must enter it. Images are small files.
 * When all have connected, "connected N" on standard output says how many connections were refused. After each
 * checkpoint one line of JSON says how long it took, in seconds.
 *
 * Invariants
 *  1. A stub sends what a rank sends, in the same order: nothing is left out or folded.
 *  2. A stub whose connection is refused tries again, as long as a rank does (control.c).
 *  3. When a connection ends, its process ends, as long afterwards as a rank does (control.c).
 *  4. The processes share only `job`. The one whose rank enters the collective last tells all others by their
 *     `completed`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/now.h"
#include "wire/wire.h"

enum { AUTHENTICATE_MS = 60000, TRIES_MS = 300000, PAUSE_MS = 50, PAUSE_MAX_MS = 10000, AGENT_LOST_MS = 500 };
enum { EVENTS = 512, SPARE_DESCRIPTORS = 64, PER_PROCESS = 16000, PROCESSES_MAX = 64 };

typedef struct stub {
    mpy_wire_t wire;
    mpy_text_t out;       /* lines to send */
    char *rows, *written; /* its communicators: before and after the number */
    unsigned version, applied, sequence;
    char epoch[24];
    bool inside; /* the collective */
} stub_t;

typedef struct times { /* ns */
    int64_t asked, safe, write, written, resume;
} times_t;

static unsigned size, processes, first, end; /* of this process: ranks [first, end) */
static stub_t *stubs;                        /* by rank */
static int completed[PROCESSES_MAX];         /* eventfd of each process: the collective is complete */
static struct {
    unsigned connected, refused, inside, resumed;
    times_t times;
} *job;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("stubs: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    exit(1);
}

static int64_t now(void) { return mpy_now_ns(CLOCK_MONOTONIC); }

static void mark(int64_t *when) {
    int64_t unset = 0;
    if (*when == 0) __atomic_compare_exchange_n(when, &unset, now(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* One more of the ranks; true for the last one. */
static bool is_last(unsigned *count) { return __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) == size; }

/* ---- connecting ---- */

/* -1 with errno */
static int open_socket(const char *sockets, unsigned node, const char *host, int port) {
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr_in network = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(node == 0 ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    const struct sockaddr *address = (const struct sockaddr *)&network;
    socklen_t length = sizeof network;
    if (node == 0) {
        inet_pton(AF_INET, host, &network.sin_addr);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    } else {
        int n = snprintf(local.sun_path + 1, sizeof local.sun_path - 1, "%s-%u", sockets, node);
        address = (const struct sockaddr *)&local;
        length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    }
    if (fd < 0 || connect(fd, address, length) == 0) return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

static bool join_once(stub_t *s, unsigned node, char **argv, const uint8_t *secret, char *error, size_t n) {
    int fd = open_socket(argv[4], node, argv[5], atoi(argv[6]));
    if (fd < 0) {
        snprintf(error, n, "node %u: %s", node, strerror(errno));
        return false;
    }
    mpy_wire_open(&s->wire, fd);
    if (mpy_wire_authenticate(&s->wire, "rank", secret, AUTHENTICATE_MS, error, n)) return true;
    mpy_wire_close(&s->wire);
    return false;
}

static void join(stub_t *s, unsigned node, char **argv, const uint8_t *secret) {
    char error[512];
    int64_t start = now();
    for (int pause = PAUSE_MS; !join_once(s, node, argv, secret, error, sizeof error); pause *= 2) {
        if (now() - start > TRIES_MS * INT64_C(1000000)) fail("%s", error);
        __atomic_add_fetch(&job->refused, 1, __ATOMIC_SEQ_CST);
        if (pause > PAUSE_MAX_MS) pause = PAUSE_MAX_MS;
        nanosleep(&(struct timespec){.tv_sec = pause / 1000, .tv_nsec = pause % 1000 * 1000000L}, NULL);
    }
}

static void send_out(stub_t *s) {
    if (s->out.length == 0) return;
    mpy_wire_send(&s->wire, s->out.data, s->out.length - 1); /* it adds the last newline */
    mpy_text_clear(&s->out);
}

static void connect_all(char **argv, int poll) {
    uint8_t secret[MPY_SECRET_BYTES];
    char error[512], path[4096], *line = NULL;
    size_t capacity = 0;
    unsigned per_node = (unsigned)atoi(argv[3]);
    if (!mpy_secret_read(argv[1], secret, error, sizeof error)) fail("%s", error);
    snprintf(path, sizeof path, "%s/rows", argv[1]);
    FILE *rows = fopen(path, "r");
    for (unsigned i = 0; i < end; i++) {
        stub_t *s = &stubs[i];
        if (rows == NULL || getline(&line, &capacity, rows) < 0) fail("%s: no row for rank %u", path, i);
        if (i < first) continue;
        line[strcspn(line, "\n")] = '\0';
        s->rows = strdup(line);
        s->written = strstr(s->rows, "%u");
        if (s->written == NULL) fail("%s: no %%u for rank %u", path, i);
        *s->written = '\0', s->written += 2;
        s->sequence = 10;
        join(s, i / per_node, argv, secret);
        mpy_text_add(&s->out, "HELLO %u %u node%u %d 0 %%\nPROGRAM up stub -\n", i, size, i / per_node, getpid());
        send_out(s);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, s->wire.fd, &event) < 0) fail("epoll: %s", strerror(errno));
        if (is_last(&job->connected)) printf("connected %u\n", job->refused);
    }
    fflush(stdout);
    fclose(rows);
    free(line);
}

/* ---- answers ---- */

static void report(stub_t *s, const char *epoch) {
    mpy_text_add(&s->out, "STATE %s %u %u ", epoch, s->version, s->applied);
    if (s->inside) mpy_text_add(&s->out, "1 collective:%.16s:all:-\n", s->rows); /* of all ranks */
    else mpy_text_add(&s->out, "0\n");
}

static void acknowledge(stub_t *s, const char *epoch) {
    s->applied++, s->version++;
    report(s, epoch);
}

static void enter(stub_t *s) {
    s->inside = true;
    if (!is_last(&job->inside)) return;
    job->inside = 0;
    for (unsigned i = 0; i < processes; i++) eventfd_write(completed[i], 1);
}

static void leave_all(int fd) {
    eventfd_t count;
    eventfd_read(fd, &count);
    for (unsigned i = first; i < end; i++) {
        stubs[i].inside = false;
        stubs[i].version++;
        report(&stubs[i], stubs[i].epoch);
        send_out(&stubs[i]);
    }
}

static void on_intent(stub_t *s, const char *epoch) {
    s->applied = 1, s->version++;
    snprintf(s->epoch, sizeof s->epoch, "%s", epoch);
    if ((s - stubs) % 2) {
        s->sequence++;
        enter(s);
    }
    mpy_text_add(&s->out, "ROWS %s %u 0 3 %s%u%s\n", epoch, s->version, s->rows, s->sequence, s->written);
    if (s->inside) report(s, epoch);
}

/* fields: more n cid:seq... */
static void on_targets(stub_t *s, const char *epoch, char *fields) {
    acknowledge(s, epoch);
    mpy_field(&fields), mpy_field(&fields);
    for (char *row; (row = mpy_field(&fields)) != NULL;) {
        char *target = strchr(row, ':');
        *target++ = '\0';
        s->sequence = (unsigned)atoi(target);
        s->version++;
        enter(s);
        report(s, epoch); /* first, as the rank is inside (clockside.c, invariant 3) */
        mpy_text_add(&s->out, "RAISE %s %u %s %s\n", epoch, s->version, row, target);
    }
}

static void on_write(stub_t *s, const char *epoch, char *directory) {
    char path[4200];
    mark(&job->times.write);
    if (!mpy_wire_decode(directory)) fail("WRITE: %s", directory);
    snprintf(path, sizeof path, "%s/rank-%05u.img", directory, (unsigned)(s - stubs));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, "image", 5) != 5) fail("%s: %s", path, strerror(errno));
    close(fd);
    job->times.written = now();
    mpy_text_add(&s->out, "WRITTEN %s 4096 5 7 0.1 node %032d 0 hash\n", epoch, 0);
}

static void on_resume(stub_t *s, const char *epoch) {
    job->times.resume = now();
    mpy_text_add(&s->out, "RESUMED %s\n", epoch);
    if (!is_last(&job->resumed)) return;
    times_t t = job->times;
    job->resumed = 0;
    job->times = (times_t){0};
    send_out(s); /* not earlier: the next checkpoint may begin now */
    printf("{\"to_safe\": %.6f, \"to_write\": %.6f, \"to_resume\": %.6f}\n", (double)(t.safe - t.asked) / 1e9,
           (double)(t.write - t.safe) / 1e9, (double)(t.resume - t.written) / 1e9);
    fflush(stdout);
}

static void answer(stub_t *s, char *line) {
    const char *kind = mpy_field(&line), *epoch = mpy_field(&line);
    if (strcmp(kind, "CHECK") == 0) {
        mark(&job->times.asked);
        mpy_text_add(&s->out, "CHECKED %s\n", epoch);
    } else if (strcmp(kind, "INTENT") == 0) {
        on_intent(s, epoch);
    } else if (strcmp(kind, "TARGETS") == 0) {
        on_targets(s, epoch, line);
    } else if (strcmp(kind, "TARGET") == 0 || strcmp(kind, "THAW") == 0) {
        acknowledge(s, epoch);
    } else if (strcmp(kind, "FREEZE") == 0) {
        s->applied++;
        bool same = (unsigned)atoi(line) == s->version;
        mpy_text_add(&s->out, "%s %s %u\n", same ? "FROZEN" : "NOTFROZEN", epoch, s->version);
    } else if (strcmp(kind, "STOP") == 0) {
        mark(&job->times.safe);
        mpy_text_add(&s->out, "STOPPED %s\n", epoch);
    } else if (strcmp(kind, "DRAIN") == 0) {
        mpy_text_add(&s->out, "DRAINED %s\n", epoch);
    } else if (strcmp(kind, "WRITE") == 0) {
        on_write(s, epoch, mpy_field(&line));
    } else if (strcmp(kind, "RESUME") == 0) {
        on_resume(s, epoch);
    } else if (strcmp(kind, "TREE") == 0) {
        mpy_text_add(&s->out, "TREE %s %%\n", epoch);
    }
}

static void serve(int poll, int own) {
    struct epoll_event events[EVENTS];
    for (;;) {
        int n = epoll_wait(poll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            stub_t *s = events[i].data.ptr;
            if (s == NULL) {
                leave_all(own);
                continue;
            }
            mpy_wire_fill(&s->wire, 0);
            for (char *line; (line = mpy_wire_line(&s->wire)) != NULL;) answer(s, line);
            if (s->wire.closed) {
                nanosleep(&(struct timespec){.tv_nsec = AGENT_LOST_MS * 1000000L}, NULL);
                return;
            }
            send_out(s);
        }
    }
}

static void raise_limit(void) {
    struct rlimit limit = {.rlim_cur = end - first + SPARE_DESCRIPTORS}, have;
    limit.rlim_max = limit.rlim_cur;
    if (getrlimit(RLIMIT_NOFILE, &have) == 0 && have.rlim_max > limit.rlim_max) limit.rlim_max = have.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0) fail("%u descriptors are needed: %s", end - first, strerror(errno));
}

/* Makes the other processes. Returns the number of this one. */
static unsigned split(void) {
    pid_t parent = getpid();
    for (unsigned i = 0; i < processes; i++)
        if ((completed[i] = eventfd(0, EFD_CLOEXEC)) < 0) fail("eventfd: %s", strerror(errno));
    for (unsigned i = 1; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) fail("fork: %s", strerror(errno));
        if (child > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) exit(1);
        return i;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 7) fail("usage: manapy-stubs DIR RANKS PER_NODE SOCKETS HOST PORT");
    size = (unsigned)atoi(argv[2]);
    processes = (size + PER_PROCESS - 1) / PER_PROCESS;
    if (processes > PROCESSES_MAX) fail("%u ranks are too many", size);
    stubs = calloc(size, sizeof *stubs);
    job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (stubs == NULL || job == MAP_FAILED) fail("no memory");
    unsigned number = split();
    first = number * PER_PROCESS;
    end = first + PER_PROCESS < size ? first + PER_PROCESS : size;
    raise_limit();
    int poll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, completed[number], &event) < 0) fail("epoll: %s", strerror(errno));
    connect_all(argv, poll);
    serve(poll, completed[number]);
    return 0;
}
