/* wire.c - text lines over a socket, and opening a control connection with the handshake (handshake.c). Lower half;
 * libc.
 *
 * Invariants
 *  1. A peer that hasn't proved that it knows the secret gets nothing from us except a keyed hash of its own nonce.
 *  2. After the handshake a line is accepted only if its seal belongs to this connection, direction and position in the
 *     stream. Lines over a Unix socket have no seals: only its two ends can write to it.
 */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <manapy/own.h>

#include "base/hex.h"
#include "base/now.h"
#include "base/reason.h"
#include "handshake.h"
#include "isolate/fdguard.h"

static void *must_alloc(void *old, size_t n) {
    void *p = realloc(old, n);
    if (p == NULL) {
        static const char line[] = "manapy: no memory for the control connection\n";
        if (write(2, line, sizeof line - 1) < 0) {}
        abort();
    }
    return p;
}

/* ---- text ---- */

static void text_reserve(mpy_text_t *t, size_t more) {
    if (t->length + more + 1 <= t->capacity) return;
    t->capacity = (t->length + more + 1) * 2;
    t->data = must_alloc(t->data, t->capacity);
}

void mpy_text_clear(mpy_text_t *t) {
    text_reserve(t, 0);
    t->length = 0;
    t->data[0] = '\0';
}

void mpy_text_free(mpy_text_t *t) {
    free(t->data);
    memset(t, 0, sizeof *t);
}

void mpy_text_add(mpy_text_t *t, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) abort(); /* only our own format strings are used */
    text_reserve(t, (size_t)n);
    vsnprintf(t->data + t->length, (size_t)n + 1, format, again);
    va_end(again);
    t->length += (size_t)n;
}

void mpy_text_add_bytes(mpy_text_t *t, const char *s, size_t n) {
    text_reserve(t, n);
    memcpy(t->data + t->length, s, n);
    t->length += n;
    t->data[t->length] = '\0';
}

void mpy_text_add_encoded(mpy_text_t *t, const char *s) {
    if (*s == '\0') mpy_text_add(t, "%%");
    text_reserve(t, 3 * strlen(s));
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c <= 0x20 || c == '%' || c == ':' || c == ',' || c >= 0x7f) { /* ':' and ',' are separators inside a row */
            mpy_text_add(t, "%%%02x", c);
        } else {
            t->data[t->length++] = (char)c;
            t->data[t->length] = '\0';
        }
    }
}

void mpy_text_add_json(mpy_text_t *t, const char *s) {
    mpy_text_add(t, "\"");
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') mpy_text_add(t, "\\%c", c);
        else if (c < 0x20) mpy_text_add(t, "\\u%04x", c);
        else mpy_text_add(t, "%c", c);
    }
    mpy_text_add(t, "\"");
}

void mpy_text_add_hex(mpy_text_t *t, const void *data, size_t n) {
    text_reserve(t, 2 * n);
    mpy_hex(data, n, t->data + t->length);
    t->length += 2 * n;
}

bool mpy_wire_decode(char *field) {
    if (strcmp(field, "%") == 0) {
        field[0] = '\0';
        return true;
    }
    char *out = field;
    for (const char *in = field; *in != '\0'; in++) {
        if (*in != '%') {
            *out++ = *in;
            continue;
        }
        int byte = mpy_hex_byte(in + 1);
        if (byte <= 0) return false; /* strings contain no NUL */
        *out++ = (char)byte;
        in += 2;
    }
    *out = '\0';
    return true;
}

bool mpy_hex_decode(const char *hex, void *out, size_t n) {
    uint8_t *p = out;
    for (size_t i = 0; i < n; i++) {
        int byte = mpy_hex_byte(hex + 2 * i);
        if (byte < 0) return false;
        p[i] = (uint8_t)byte;
    }
    return hex[2 * n] == '\0';
}

char *mpy_field(char **line) {
    char *field = *line;
    if (field == NULL || *field == '\0') return NULL;
    char *blank = strchr(field, ' ');
    if (blank != NULL) *blank++ = '\0';
    *line = blank;
    return field;
}

uint64_t mpy_field_number(char **line) {
    char *field = mpy_field(line);
    return field != NULL ? strtoull(field, NULL, 10) : 0;
}

/* ---- lines over a socket ---- */

void mpy_wire_open(mpy_wire_t *w, int fd) { *w = (mpy_wire_t){.fd = fd, .closed = fd < 0}; }

void mpy_wire_close(mpy_wire_t *w) {
    if (w->fd >= 0) mpy_fd_close(w->fd);
    free(w->buffer);
    mpy_text_free(&w->out);
    *w = (mpy_wire_t){.fd = -1, .closed = true, .tampered = w->tampered};
}

static int wait_ready(int fd, short events, int timeout_ms) {
    struct pollfd p = {.fd = fd, .events = events};
    int n;
    do n = poll(&p, 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    return n;
}

void mpy_wire_fill(mpy_wire_t *w, int timeout_ms) {
    if (w->closed || wait_ready(w->fd, POLLIN, timeout_ms) <= 0) return;
    if (w->start > 0) {
        memmove(w->buffer, w->buffer + w->start, w->end - w->start);
        w->end -= w->start, w->start = 0;
    }
    if (w->end == w->capacity) {
        if (w->capacity > MPY_LINE_MAX) {
            w->closed = true;
            return;
        }
        w->capacity = w->capacity == 0 ? 8192 : 2 * w->capacity;
        w->buffer = must_alloc(w->buffer, w->capacity);
    }
    ssize_t n = recv(w->fd, w->buffer + w->end, w->capacity - w->end, MSG_DONTWAIT);
    if (n > 0) w->end += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR)) w->closed = true;
}

/* Is it the next line of this connection? Invariant 2. A stream that was altered ends here. */
static char *unseal(mpy_wire_t *w, char *line, size_t length) {
    char seal[MPY_SEAL_HEX + 1];
    if (length > MPY_SEAL_HEX && line[MPY_SEAL_HEX] == ' ') {
        mpy_seal(w->key, "server", w->received++, line + MPY_SEAL_HEX + 1, length - MPY_SEAL_HEX - 1, seal);
        if (mpy_equal_secretly(line, seal, MPY_SEAL_HEX)) return line + MPY_SEAL_HEX + 1;
    }
    w->closed = w->tampered = true;
    w->start = w->end;
    return NULL;
}

char *mpy_wire_line(mpy_wire_t *w) {
    if (w->end == w->start) return NULL;
    char *line = w->buffer + w->start, *newline = memchr(line, '\n', w->end - w->start);
    if (newline == NULL) return NULL;
    *newline = '\0';
    w->start += (size_t)(newline - line) + 1;
    return w->sealed ? unseal(w, line, (size_t)(newline - line)) : line;
}

char *mpy_wire_wait_line(mpy_wire_t *w, int timeout_ms) {
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : mpy_now_ms() + timeout_ms;
    for (;;) {
        char *line = mpy_wire_line(w);
        if (line != NULL) return line;
        int64_t left = timeout_ms < 0 ? -1 : deadline - mpy_now_ms();
        if (w->closed || (timeout_ms >= 0 && left <= 0)) return NULL;
        mpy_wire_fill(w, (int)left);
    }
}

/* A peer that has closed the connection may have said why (UNLED): that is read before the connection counts as
 * closed. */
static void send_no_more(mpy_wire_t *w) {
    w->mute = true;
    shutdown(w->fd, SHUT_RDWR);
}

static bool send_all(mpy_wire_t *w, const char *data, size_t n) {
    while (n > 0 && !w->closed && !w->mute) {
        ssize_t sent = send(w->fd, data, n, MSG_NOSIGNAL);
        if (sent > 0) data += sent, n -= (size_t)sent;
        else if (errno == EAGAIN) wait_ready(w->fd, POLLOUT, -1);
        else if (errno != EINTR) send_no_more(w);
    }
    return !w->closed && !w->mute;
}

bool mpy_wire_send(mpy_wire_t *w, const char *lines, size_t length) {
    mpy_text_clear(&w->out);
    for (const char *line = lines, *end = lines + length; line <= end;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((newline != NULL ? newline : end) - line);
        if (w->sealed) {
            char seal[MPY_SEAL_HEX + 1];
            mpy_seal(w->key, "client", w->sent++, line, n, seal);
            mpy_text_add(&w->out, "%s ", seal);
        }
        mpy_text_add_bytes(&w->out, line, n);
        mpy_text_add_bytes(&w->out, "\n", 1);
        line += n + 1;
    }
    return send_all(w, w->out.data, w->out.length);
}

/* ---- opening a connection ---- */

int mpy_wire_connect(const char *host, int port, int timeout_ms) {
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    if (getaddrinfo(host, service, &hints, &list) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    int fd = -1, cause = EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = mpy_fd_high(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (fd < 0) {
            cause = errno;
            continue;
        }
        socklen_t size = sizeof cause;
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) cause = 0;
        else if (errno != EINPROGRESS) cause = errno;
        else if (wait_ready(fd, POLLOUT, timeout_ms) <= 0) cause = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &size) < 0) cause = errno;
        if (cause != 0) mpy_fd_close(fd), fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0) {
        errno = cause;
        return -1;
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* so that a vanished node of the coordinator is detected eventually */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    return fd;
}

/* A Unix socket with a name in the abstract name space, after `use` (bind or connect). */
static int open_local(const char *name, int (*use)(int, const struct sockaddr *, socklen_t)) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length + 1 >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path + 1, name, length);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    int fd = mpy_fd_high(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd < 0 || use(fd, (const struct sockaddr *)&address, size) == 0) return fd;
    int cause = errno;
    mpy_fd_close(fd);
    errno = cause;
    return -1;
}

int mpy_wire_connect_local(const char *name) { return open_local(name, connect); }

int mpy_wire_listen_local(const char *name) {
    int fd = open_local(name, bind);
    if (fd >= 0 && listen(fd, SOMAXCONN) < 0) {
        mpy_fd_close(fd);
        return -1;
    }
    return fd;
}

static bool is_local(int fd) {
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    return getsockname(fd, (struct sockaddr *)&address, &size) == 0 && address.ss_family == AF_UNIX;
}

bool mpy_wire_authenticate(mpy_wire_t *w, const char *role, const uint8_t secret[MPY_SECRET_BYTES], int timeout_ms,
                           char *error, size_t n) {
    char *line = mpy_wire_wait_line(w, timeout_ms);
    int version = MPY_PROTOCOL_VERSION;
    mpy_handshake_t h;
    switch (line == NULL ? MPY_HANDSHAKE_STRANGER : mpy_handshake_answer(&h, line, "MANAPY", &version, role, secret)) {
    case MPY_HANDSHAKE_GOOD: break;
    case MPY_HANDSHAKE_STRANGER:
        return mpy_refuse(
            error, n, line == NULL ? "the coordinator did not answer" : "the coordinator's greeting is not manapy's");
    case MPY_HANDSHAKE_VERSION:
        return mpy_refuse(error, n, "the coordinator uses protocol version %d, this program uses version %d",
                          version, MPY_PROTOCOL_VERSION);
    case MPY_HANDSHAKE_RANDOM: return mpy_refuse(error, n, "getrandom: %s", strerror(errno));
    }
    mpy_wire_send(w, h.line, strlen(h.line));
    line = mpy_wire_wait_line(w, timeout_ms);
    if (line != NULL && strncmp(line, "BUSY ", 5) == 0 && mpy_wire_decode(line + 5))
        return mpy_refuse(error, n, "%s", line + 5);
    bool good = line != NULL && mpy_handshake_check(&h, line);
    if (!good)
        mpy_reason(error, n, "%s",
                   line == NULL ? "the coordinator closed the connection"
                                : "the coordinator and this program do not share the job's secret");
    memcpy(w->key, h.key, sizeof w->key);
    w->sealed = good && !is_local(w->fd);
    return good;
}

bool mpy_secret_read(const char *dir, uint8_t secret[MPY_SECRET_BYTES], char *error, size_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/secret", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && mpy_own_check(path, &st, 022, error, n) != 0) {
        close(fd);
        errno = 0;
        return false;
    }
    ssize_t got = fd < 0 ? -1 : read(fd, secret, MPY_SECRET_BYTES);
    int failed = got < 0 ? errno : 0;
    if (failed) mpy_reason(error, n, "%s: %s", path, strerror(failed));
    else if (got != MPY_SECRET_BYTES) mpy_reason(error, n, "%s: truncated", path);
    if (fd >= 0) close(fd);
    errno = failed;
    return got == MPY_SECRET_BYTES;
}
