/* kv.c - see kv.h; the lines are described in kv_protocol.h. Runs inside other programs: no signals, prints nothing,
 * needs only libc.
 *
 * Invariants
 *  1. Every key that was put, and not deleted since, is in the table. The agent may lack some of them, because an
 *     answer didn't arrive or because it is another agent than before. These are in the list `pending`. They are sent
 *     again, as far as time allows, before the next call that needs keys continues. A key whose deletion is pending has
 *     size 0. Putting or deleting twice does no harm.
 *  2. An answer belongs to the request whose number it repeats; an answer to an older request is dropped. So a late
 *     answer needs no new connection.
 *  3. After a call has waited in vain, the agent is `stuck` until something arrives from it. Meanwhile calls fail at
 *     once, except for one every STUCK_MS. So a caller with many keys does not wait for each.
 *  4. The handle belongs to the process that has opened it. In a forked child all calls fail (-ECHILD), and closing it
 *     sends nothing to the agent.
 *  5. If commands are not fetched, the newest COMMANDS are kept.
 */
#define _GNU_SOURCE
#include "base/hex.h"
#include "base/now.h"
#include "kv/kv.h"
#include "kv/kv_protocol.h"
#include "manapy/fnv.h"
#include "wire/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TIMEOUT_MS = 2000, STUCK_MS = 1000, COMMANDS = 16, COMMAND_ROOM = 128, LOWEST_FD = 900 };

typedef struct entry {
    struct entry *next;
    struct entry *next_pending;
    uint16_t size; /* 0: to be deleted */
    bool pending, carried; /* carried by the request in progress */
    uint8_t value[SHIFT_KV_VALUE];
    char key[];
} entry_t;

struct shift_kv {
    pid_t owner;
    int fd, timeout_ms;
    uint64_t number; /* of the last request */
    int64_t stuck_until;
    bool stuck;
    char path[sizeof((struct sockaddr_un){0}.sun_path)];
    char job[65], client[33], reason[256];
    entry_t **buckets;
    size_t n_buckets, n_entries, n_pending;
    entry_t *pending, **pending_end;
    char commands[COMMANDS][COMMAND_ROOM];
    unsigned first_command, n_commands;
    size_t start, end; /* the part that was received and not read */
    char input[2 * SHIFT_KV_LINE_MAX];
    size_t length; /* of the request that is being written; SHIFT_KV_LINE_MAX: too long */
    char line[SHIFT_KV_LINE_MAX];
};

static int failed(shift_kv_t *kv, int code, const char *reason) {
    snprintf(kv->reason, sizeof kv->reason, "%s", reason);
    return code;
}

static void disconnect(shift_kv_t *kv) {
    if (kv->fd >= 0) close(kv->fd);
    kv->fd = -1;
    kv->start = kv->end = 0;
    kv->stuck = false;
}

/* ---- the table ---- */

static entry_t **bucket(entry_t **buckets, size_t n, const char *key) {
    return &buckets[mpy_fnv1a(key, strlen(key)) & (n - 1)];
}

static entry_t **find(shift_kv_t *kv, const char *key) {
    entry_t **at = bucket(kv->buckets, kv->n_buckets, key);
    while (*at != NULL && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

static bool grow(shift_kv_t *kv, size_t n) {
    entry_t **old = kv->buckets, **made = calloc(n, sizeof *made);
    size_t n_old = kv->n_buckets;
    if (made == NULL) return n_old != 0; /* longer chains work, too */
    kv->buckets = made;
    kv->n_buckets = n;
    for (size_t i = 0; i < n_old; i++)
        for (entry_t *e = old[i], *next; e != NULL; e = next) {
            next = e->next;
            entry_t **at = bucket(made, n, e->key);
            e->next = *at;
            *at = e;
        }
    free(old);
    return true;
}

static void set_pending(shift_kv_t *kv, entry_t *e) {
    if (e->pending) return;
    e->pending = true;
    e->next_pending = NULL;
    *kv->pending_end = e;
    kv->pending_end = &e->next_pending;
    kv->n_pending++;
}

/* The agent has what the request in progress has carried. */
static void settled(shift_kv_t *kv) {
    entry_t **at = &kv->pending, *e;
    while ((e = *at) != NULL) {
        if (!e->carried) {
            at = &e->next_pending;
            continue;
        }
        *at = e->next_pending;
        kv->n_pending--;
        e->pending = e->carried = false;
        if (e->size > 0) continue;
        *find(kv, e->key) = e->next;
        free(e);
        kv->n_entries--;
    }
    kv->pending_end = at;
}

/* ---- lines ---- */

static int wait_for(shift_kv_t *kv, short events, int64_t deadline) {
    for (;;) {
        int64_t left = deadline - mpy_now_ms();
        struct pollfd p = {.fd = kv->fd, .events = events};
        int n = poll(&p, 1, left > 0 ? (int)left : 0);
        if (n > 0) return 0;
        if (n < 0 && errno != EINTR) return -errno;
        if (n == 0 && left <= 0) return -ETIMEDOUT;
    }
}

static int send_line(shift_kv_t *kv, const char *line, size_t n, int64_t deadline) {
    while (n > 0) {
        ssize_t sent = send(kv->fd, line, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            line += sent, n -= (size_t)sent;
        } else if (errno == EAGAIN) {
            int rc = wait_for(kv, POLLOUT, deadline);
            if (rc != 0) { /* half a line can't be taken back */
                disconnect(kv);
                return failed(kv, rc, "the agent accepts no requests");
            }
        } else if (errno != EINTR) {
            int rc = -errno;
            disconnect(kv);
            return failed(kv, rc == -EPIPE ? -ECONNRESET : rc, "the connection to the agent is lost");
        }
    }
    return 0;
}

static void keep_command(shift_kv_t *kv, const char *line) {
    if (strlen(line) >= COMMAND_ROOM) return; /* no known command is as long */
    if (kv->n_commands == COMMANDS) kv->first_command++, kv->n_commands--;
    strcpy(kv->commands[(kv->first_command + kv->n_commands++) % COMMANDS], line);
}

/* Reads what has arrived, without waiting. Returns 0, or -errno if the connection is lost. */
static int receive(shift_kv_t *kv) {
    if (kv->start > 0) memmove(kv->input, kv->input + kv->start, kv->end - kv->start);
    kv->end -= kv->start, kv->start = 0;
    if (kv->end == sizeof kv->input) {
        disconnect(kv);
        return failed(kv, -EPROTO, "the agent has sent a line that is too long");
    }
    ssize_t n = recv(kv->fd, kv->input + kv->end, sizeof kv->input - kv->end, MSG_DONTWAIT);
    if (n > 0) {
        kv->end += (size_t)n;
        kv->stuck = false;
        return 0;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    disconnect(kv);
    return failed(kv, -ECONNRESET, "the agent has closed the connection");
}

/* Returns the next whole line, or NULL if there is none. Commands go into their queue. */
static char *next_line(shift_kv_t *kv) {
    for (;;) {
        char *line = kv->input + kv->start, *newline = memchr(line, '\n', kv->end - kv->start);
        if (newline == NULL) return NULL;
        *newline = '\0';
        kv->start += (size_t)(newline - line) + 1;
        if (line[0] != '!') return line;
        keep_command(kv, line + 1);
    }
}

static int wait_line(shift_kv_t *kv, char **line, int64_t deadline) {
    for (;;) {
        if ((*line = next_line(kv)) != NULL) return 0;
        int rc = wait_for(kv, POLLIN, deadline);
        if (rc == 0) rc = receive(kv);
        if (rc != 0) return rc;
    }
}

static int error_code(const char *name) {
    static const struct {
        const char *name;
        int code;
    } codes[] = {{"EINVAL", EINVAL}, {"EACCES", EACCES}, {"ENOENT", ENOENT}, {"EHOSTUNREACH", EHOSTUNREACH}};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (strncmp(name, codes[i].name, strlen(codes[i].name)) == 0) return -codes[i].code;
    return -EPROTO;
}

static void begin(shift_kv_t *kv, const char *kind) {
    kv->length = (size_t)snprintf(kv->line, sizeof kv->line, "%llu %s", (unsigned long long)++kv->number, kind);
}

/* Adds a blank and this field; leaves room for a newline. */
static void add_field(shift_kv_t *kv, const char *text) {
    size_t n = strlen(text), left = sizeof kv->line - kv->length;
    if (n + 2 > left) {
        kv->length = sizeof kv->line;
        return;
    }
    kv->line[kv->length++] = ' ';
    memcpy(kv->line + kv->length, text, n);
    kv->length += n;
}

/* Sends the request that was written and reads its answer. Returns 0 with the text after OK in *fields, or -errno. */
static int ask(shift_kv_t *kv, char **fields, int64_t deadline) {
    char number[24];
    int n_number = snprintf(number, sizeof number, "%llu ", (unsigned long long)kv->number);
    if (kv->length == sizeof kv->line) return failed(kv, -EMSGSIZE, "the request is too long");
    kv->line[kv->length] = '\n';
    int rc = send_line(kv, kv->line, kv->length + 1, deadline);
    char *answer = NULL;
    while (rc == 0) {
        rc = wait_line(kv, &answer, deadline);
        if (rc == 0 && strncmp(answer, number, (size_t)n_number) == 0) break;
    }
    if (rc == -ETIMEDOUT) {
        kv->stuck = true;
        kv->stuck_until = mpy_now_ms() + STUCK_MS;
        return failed(kv, rc, "the agent does not answer");
    }
    if (rc != 0) return rc;
    answer += n_number;
    if (strncmp(answer, "OK", 2) == 0 && (answer[2] == ' ' || answer[2] == '\0')) {
        *fields = answer[2] == ' ' ? answer + 3 : answer + 2;
        return 0;
    }
    if (strncmp(answer, "ERROR ", 6) == 0) {
        char *reason = strchr(answer + 6, ' ');
        return failed(kv, error_code(answer + 6), reason != NULL ? reason + 1 : "the agent refuses");
    }
    return failed(kv, -EPROTO, "the agent's answer is invalid");
}

/* ---- requests that carry keys ---- */

/* Sends pending keys of one kind to the agent, as many as fit into a request. Keys to be deleted are then removed from
 * the table. */
static int settle(shift_kv_t *kv, int64_t deadline) {
    bool put = kv->pending->size > 0;
    int n = 0;
    begin(kv, put ? "PUT" : "DEL");
    for (entry_t *e = kv->pending; e != NULL; e = e->next_pending) {
        e->carried = (e->size > 0) == put && n < SHIFT_KV_BATCH;
        if (!e->carried) continue;
        n++;
        char hex[2 * SHIFT_KV_VALUE + 1];
        add_field(kv, e->key);
        mpy_hex(e->value, e->size, hex);
        if (put) add_field(kv, hex);
    }
    char *fields;
    int rc = ask(kv, &fields, deadline);
    if (rc == 0) settled(kv);
    return rc;
}

static int settle_all(shift_kv_t *kv, int64_t deadline) {
    int rc = 0;
    while (rc == 0 && kv->n_pending > 0) rc = settle(kv, deadline);
    return rc;
}

/* ---- connecting ---- */

static int read_secret(const char *path, uint8_t secret[MPY_SECRET_BYTES]) {
    char name[sizeof((struct sockaddr_un){0}.sun_path) + 8];
    snprintf(name, sizeof name, "%s.secret", path);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? -ECONNREFUSED : -errno; /* an agent that ends deletes its secret */
    ssize_t n = read(fd, secret, MPY_SECRET_BYTES);
    close(fd);
    return n == MPY_SECRET_BYTES ? 0 : -EACCES;
}

static const char *rank(void) {
    static const char *const names[] = {"MANAPY_SHIFT_RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0' && strlen(value) <= 9 && strspn(value, "0123456789") == strlen(value))
            return value;
    }
    return "-";
}

static int greet(shift_kv_t *kv, const uint8_t secret[MPY_SECRET_BYTES], int64_t deadline) {
    char *line;
    mpy_handshake_t h;
    int version = SHIFT_KV_VERSION, rc = wait_line(kv, &line, deadline);
    if (rc != 0) return rc;
    if (mpy_handshake_answer(&h, line, SHIFT_KV_SERVICE, &version, "program", secret) != MPY_HANDSHAKE_GOOD)
        return failed(kv, -EPROTO, "another program listens there, or an agent of another version");
    size_t n = strlen(h.line);
    h.line[n] = '\n';
    rc = send_line(kv, h.line, n + 1, deadline);
    if (rc == 0) rc = wait_line(kv, &line, deadline);
    if (rc != 0) return rc;
    if (!mpy_handshake_check(&h, line))
        return failed(kv, -EACCES, "the agent and this program do not share the secret");
    char *fields;
    begin(kv, "HELLO");
    add_field(kv, kv->job);
    add_field(kv, kv->client);
    add_field(kv, rank());
    rc = ask(kv, &fields, deadline);
    if (rc != 0 || strcmp(fields, "known") == 0) return rc;
    for (size_t i = 0; i < kv->n_buckets; i++) /* invariant 1: this agent has none of our keys */
        for (entry_t *e = kv->buckets[i]; e != NULL; e = e->next) set_pending(kv, e);
    return 0;
}

static int connect_agent(shift_kv_t *kv, int64_t deadline) {
    uint8_t secret[MPY_SECRET_BYTES];
    int rc = read_secret(kv->path, secret);
    if (rc != 0) return failed(kv, rc, rc == -ECONNREFUSED ? "there is no agent" : "the agent's secret can't be read");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, kv->path, sizeof address.sun_path);
    int low = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (low < 0) return failed(kv, -errno, "no socket");
    kv->fd = fcntl(low, F_DUPFD_CLOEXEC, LOWEST_FD); /* a high number, for programs that rely on low numbers */
    if (kv->fd < 0) kv->fd = low;
    else close(low);
    kv->start = kv->end = 0;
    /* EAGAIN: the agent's queue is full, so it is stuck */
    if (connect(kv->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        rc = errno == EAGAIN ? -ETIMEDOUT : errno == ENOENT ? -ECONNREFUSED : -errno;
        disconnect(kv);
        return failed(kv, rc, rc == -ETIMEDOUT ? "the agent does not answer" : "there is no agent");
    }
    rc = greet(kv, secret, deadline);
    if (rc != 0) {
        disconnect(kv);
        if (rc == -ETIMEDOUT) { /* invariant 3 */
            kv->stuck = true;
            kv->stuck_until = mpy_now_ms() + STUCK_MS;
            return failed(kv, rc, "the agent does not answer");
        }
    }
    return rc;
}

/* Before each request: makes sure that we are connected; with `keys`, also that the agent has all keys (invariant 1).
 * *deadline: of the whole call. */
static int prepare(shift_kv_t *kv, bool keys, int64_t *deadline) {
    if (getpid() != kv->owner) return failed(kv, -ECHILD, "the connection to the agent belongs to the parent process");
    int64_t begin = mpy_now_ms();
    *deadline = begin + kv->timeout_ms;
    if (kv->fd >= 0) {
        int rc = receive(kv); /* detects an agent that has ended, or is back */
        if (rc != 0 && rc != -ECONNRESET) return rc;
    }
    if (kv->stuck && begin < kv->stuck_until) return failed(kv, -ETIMEDOUT, "the agent does not answer");
    if (kv->fd < 0) {
        int rc = connect_agent(kv, *deadline);
        if (rc != 0) return rc;
    }
    return keys ? settle_all(kv, *deadline) : 0;
}

static bool is_key(const char *key) {
    size_t n = strlen(key);
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~') return false;
    return n > 0 && n <= SHIFT_KV_KEY_MAX;
}

/* ---- the interface ---- */

shift_kv_t *shift_kv_open(void) {
    const char *path = getenv("MANAPY_SHIFT_AGENT"), *job = getenv("MANAPY_SHIFT_JOB");
    if (path == NULL || path[0] == '\0' || job == NULL || job[0] == '\0') {
        errno = ENOENT;
        return NULL;
    }
    shift_kv_t *kv = calloc(1, sizeof *kv);
    if (kv == NULL || !grow(kv, 64)) {
        free(kv);
        errno = ENOMEM;
        return NULL;
    }
    uint8_t random[16];
    kv->owner = getpid();
    kv->pending_end = &kv->pending;
    kv->fd = -1;
    kv->timeout_ms = TIMEOUT_MS;
    int error = 0;
    if (strlen(path) >= sizeof kv->path || strlen(job) >= sizeof kv->job) error = ENAMETOOLONG;
    else if (getrandom(random, sizeof random, 0) != sizeof random) error = EIO;
    if (error != 0) {
        shift_kv_close(kv);
        errno = error;
        return NULL;
    }
    strcpy(kv->path, path);
    strcpy(kv->job, job);
    mpy_hex(random, sizeof random, kv->client);
    return kv;
}

void shift_kv_close(shift_kv_t *kv) {
    if (kv == NULL) return;
    char *fields;
    if (kv->fd >= 0 && getpid() == kv->owner) {
        begin(kv, "BYE");
        ask(kv, &fields, mpy_now_ms() + (kv->stuck ? 0 : kv->timeout_ms));
    }
    disconnect(kv);
    for (size_t i = 0; i < kv->n_buckets; i++)
        for (entry_t *e = kv->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            free(e);
        }
    free(kv->buckets);
    free(kv);
}

void shift_kv_set_timeout(shift_kv_t *kv, int ms) { kv->timeout_ms = ms; }

const char *shift_kv_reason(const shift_kv_t *kv) { return kv->reason; }

int shift_kv_connect(shift_kv_t *kv) {
    int64_t deadline;
    return prepare(kv, true, &deadline);
}

int shift_kv_note(shift_kv_t *kv, const char *key, const void *value, size_t n) {
    if (!is_key(key)) return failed(kv, -EINVAL, "not a key");
    if (n > SHIFT_KV_VALUE) return failed(kv, -EMSGSIZE, "the value is too long");
    if (kv->n_entries >= 2 * kv->n_buckets) grow(kv, 4 * kv->n_buckets);
    entry_t **at = find(kv, key);
    if (*at == NULL && n == 0) return 0;
    if (*at == NULL) {
        entry_t *made = calloc(1, sizeof *made + strlen(key) + 1);
        if (made == NULL) return failed(kv, -ENOMEM, "no memory");
        strcpy(made->key, key);
        *at = made;
        kv->n_entries++;
    }
    (*at)->size = (uint16_t)n;
    if (n > 0) memcpy((*at)->value, value, n);
    set_pending(kv, *at);
    return 0;
}

int shift_kv_flush(shift_kv_t *kv) {
    int64_t deadline;
    if (kv->n_pending == 0) return 0;
    int rc = prepare(kv, false, &deadline);
    if (rc == 0) rc = settle(kv, deadline);
    return rc != 0 ? rc : (int)kv->n_pending;
}

int shift_kv_put(shift_kv_t *kv, const char *key, const void *value, size_t n) {
    if (n == 0) return failed(kv, -EINVAL, "no value");
    int rc = shift_kv_note(kv, key, value, n);
    return rc != 0 ? rc : shift_kv_connect(kv);
}

/* Reads the next value in an answer and advances *fields past it. */
static int take_value(shift_kv_t *kv, char **fields, shift_kv_found_t *found) {
    size_t digits = strspn(*fields, "0123456789abcdef");
    char *end = *fields + digits;
    bool none = digits == 0 && *end == '-';
    end += none;
    bool ends = *end == ' ' || *end == '\0';
    if (!ends || digits % 2 != 0 || (digits == 0) != none || digits > 2 * SHIFT_KV_VALUE)
        return failed(kv, -EPROTO, "the agent's value is invalid");
    found->size = (uint32_t)digits / 2;
    for (size_t i = 0; i < found->size; i++) found->value[i] = (uint8_t)mpy_hex_byte(*fields + 2 * i);
    *fields = *end == ' ' ? end + 1 : end;
    return 0;
}

int shift_kv_find(shift_kv_t *kv, shift_kv_found_t *asked, int n) {
    int64_t deadline;
    if (n < 1 || n > SHIFT_KV_BATCH) return failed(kv, -EINVAL, "no keys, or too many");
    for (int i = 0; i < n; i++)
        if (!is_key(asked[i].key)) return failed(kv, -EINVAL, "not a key");
    int rc = prepare(kv, true, &deadline);
    if (rc != 0) return rc;
    char *fields;
    begin(kv, "GET");
    for (int i = 0; i < n; i++) add_field(kv, asked[i].key);
    rc = ask(kv, &fields, deadline);
    for (int i = 0; rc == 0 && i < n; i++) rc = take_value(kv, &fields, &asked[i]);
    return rc;
}

int shift_kv_get(shift_kv_t *kv, const char *key, void *value, size_t room) {
    shift_kv_found_t asked = {0};
    if (!is_key(key)) return failed(kv, -EINVAL, "not a key");
    strcpy(asked.key, key);
    int rc = shift_kv_find(kv, &asked, 1);
    if (rc != 0) return rc;
    if (asked.size > room) return failed(kv, -EMSGSIZE, "the value is longer than its buffer");
    memcpy(value, asked.value, asked.size);
    return (int)asked.size;
}

int shift_kv_event(shift_kv_t *kv, const char *json) {
    char *fields;
    if (strchr(json, '\n') != NULL) return failed(kv, -EINVAL, "a newline in an event");
    int64_t deadline;
    int rc = prepare(kv, false, &deadline);
    if (rc != 0) return rc;
    begin(kv, "EVENT");
    add_field(kv, json);
    return ask(kv, &fields, deadline);
}

int shift_kv_fd(shift_kv_t *kv) { return kv->fd; }

int shift_kv_command(shift_kv_t *kv, char *line, size_t room) {
    int rc = 0;
    if (getpid() != kv->owner) return -ECHILD;
    if (kv->fd >= 0) {
        rc = receive(kv);
        while (next_line(kv) != NULL) {} /* drop late answers */
    }
    if (kv->n_commands == 0) return rc;
    const char *command = kv->commands[kv->first_command % COMMANDS];
    size_t n = strlen(command);
    kv->first_command++, kv->n_commands--;
    if (n >= room) return failed(kv, -EMSGSIZE, "the command is longer than its buffer");
    memcpy(line, command, n + 1);
    return (int)n;
}
