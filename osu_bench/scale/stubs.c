/* stubs.c - stubs of ranks: one process speaks the control protocol (control.h) for many ranks, each on its own
 * connection, with the code that real ranks have for it (lowerhalf/wire).
 *
 *     manapy-stubs DIR RANKS PER_NODE SOCKETS HOST PORT
 *
 * The first PER_NODE ranks connect to the coordinator, all others to the agents of their nodes (manapy/bench/scale):
 * node N's has the socket SOCKETS-N. DIR/rows has the communicators: one line for each rank, with a %u where the number
 * of its collectives on all ranks stands.
 *
 * The program that the stubs play: every odd rank is inside a collective of all ranks when a checkpoint is requested,
 * and every even rank computes. So half of the ranks are below their target and must enter it. Images are small files.
 * After each checkpoint one line of JSON on standard output says how long it took, in seconds.
 *
 * Invariants
 *  1. A stub sends what a rank sends, in the same order: nothing is left out or folded.
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
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/now.h"
#include "wire/wire.h"

enum { AUTHENTICATE_MS = 60000, EVENTS = 512, SPARE_DESCRIPTORS = 64 };

typedef struct stub {
    mpy_wire_t wire;
    mpy_text_t out;       /* lines to send */
    char *rows, *written; /* its communicators: before and after the number */
    unsigned version, applied, sequence;
    bool inside; /* the collective */
} stub_t;

static unsigned size, inside, resumed;
static stub_t *stubs;
static struct {
    bool running;
    int64_t asked, safe, write, written, resume;
} times; /* ns */

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("stubs: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    exit(1);
}

static int64_t now(void) { return mpy_now_ns(CLOCK_MONOTONIC); }

static void mark(int64_t *first) {
    if (*first == 0) *first = now();
}

/* ---- connecting ---- */

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
    if (fd < 0 || connect(fd, address, length) < 0) fail("node %u: %s", node, strerror(errno));
    return fd;
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
    for (unsigned i = 0; i < size; i++) {
        stub_t *s = &stubs[i];
        if (rows == NULL || getline(&line, &capacity, rows) < 0) fail("%s: no row for rank %u", path, i);
        line[strcspn(line, "\n")] = '\0';
        s->rows = strdup(line);
        s->written = strstr(s->rows, "%u");
        if (s->written == NULL) fail("%s: no %%u for rank %u", path, i);
        *s->written = '\0', s->written += 2;
        s->sequence = 10;
        mpy_wire_open(&s->wire, open_socket(argv[4], i / per_node, argv[5], atoi(argv[6])));
        if (!mpy_wire_authenticate(&s->wire, "rank", secret, AUTHENTICATE_MS, error, sizeof error)) fail("%s", error);
        mpy_text_add(&s->out, "HELLO %u %u node%u %d 0 %%\nPROGRAM up stub -\n", i, size, i / per_node, getpid());
        send_out(s);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, s->wire.fd, &event) < 0) fail("epoll: %s", strerror(errno));
    }
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
    inside++;
}

static void on_intent(stub_t *s, const char *epoch) {
    s->applied = 1, s->version++;
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
    if (inside < size) return;
    for (unsigned i = 0; i < size; i++) { /* the collective is complete */
        stubs[i].inside = false;
        stubs[i].version++;
        report(&stubs[i], epoch);
        send_out(&stubs[i]);
    }
    inside = 0;
}

static void on_write(stub_t *s, const char *epoch, char *directory) {
    char path[4200];
    mark(&times.write);
    if (!mpy_wire_decode(directory)) fail("WRITE: %s", directory);
    snprintf(path, sizeof path, "%s/rank-%05u.img", directory, (unsigned)(s - stubs));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, "image", 5) != 5) fail("%s: %s", path, strerror(errno));
    close(fd);
    times.written = now();
    mpy_text_add(&s->out, "WRITTEN %s 4096 5 7 0.1 node %032d\n", epoch, 0);
}

static void on_resume(stub_t *s, const char *epoch) {
    times.resume = now();
    mpy_text_add(&s->out, "RESUMED %s\n", epoch);
    if (++resumed < size) return;
    send_out(s);
    printf("{\"to_safe\": %.6f, \"to_write\": %.6f, \"to_resume\": %.6f}\n", (double)(times.safe - times.asked) / 1e9,
           (double)(times.write - times.safe) / 1e9, (double)(times.resume - times.written) / 1e9);
    fflush(stdout);
    resumed = 0;
    memset(&times, 0, sizeof times);
}

static void answer(stub_t *s, char *line) {
    const char *kind = mpy_field(&line), *epoch = mpy_field(&line);
    if (strcmp(kind, "CHECK") == 0) {
        mark(&times.asked);
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
        mark(&times.safe);
        mpy_text_add(&s->out, "STOPPED %s\n", epoch);
    } else if (strcmp(kind, "DRAIN") == 0) {
        mpy_text_add(&s->out, "DRAINED %s\n", epoch);
    } else if (strcmp(kind, "WRITE") == 0) {
        on_write(s, epoch, mpy_field(&line));
    } else if (strcmp(kind, "RESUME") == 0) {
        on_resume(s, epoch);
    }
}

static void serve(int poll) {
    struct epoll_event events[EVENTS];
    for (;;) {
        int n = epoll_wait(poll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            stub_t *s = events[i].data.ptr;
            mpy_wire_fill(&s->wire, 0);
            for (char *line; (line = mpy_wire_line(&s->wire)) != NULL;) answer(s, line);
            if (s->wire.closed) return;
            send_out(s);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 7) fail("usage: manapy-stubs DIR RANKS PER_NODE SOCKETS HOST PORT");
    size = (unsigned)atoi(argv[2]);
    stubs = calloc(size, sizeof *stubs);
    struct rlimit limit = {.rlim_cur = size + SPARE_DESCRIPTORS, .rlim_max = size + SPARE_DESCRIPTORS}, have;
    if (getrlimit(RLIMIT_NOFILE, &have) == 0 && have.rlim_max > limit.rlim_max) limit.rlim_max = have.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0) fail("%u descriptors are needed: %s", size, strerror(errno));
    int poll = epoll_create1(EPOLL_CLOEXEC);
    connect_all(argv, poll);
    puts("connected");
    fflush(stdout);
    serve(poll);
    return 0;
}
