/* fds_tty.c - the state of a pseudo-terminal, and the data that waits in it.
 *
 * Lower half; libc allowed. Runs in the process that owns the master (fds_pty.c). All processes of the tree are halted,
 * except in mpy_tty_check.
 *
 * Data cannot be read from a terminal without removing it. So waiting data is read and written back immediately, also
 * into the new terminal of a restart. It is written back as the kernel has processed it, with settings under which the
 * kernel changes nothing.
 *
 * Invariants
 *  1. Input is taken out with the program's own settings until none is left, because that also moves what the kernel
 *     has not processed yet. Only then other settings show the line that has not been ended.
 *  2. Lines stay lines. A line that VEOF has ended is ended by a VEOF again, which is a character that occurs nowhere.
 *  3. The kernel processes input later than the write. It echoes what it has processed. So input is put back with echo,
 *     and the echo is read from the master, before the settings change again.
 *  4. Nothing is taken out before there is memory for it. What was taken out is put back even if the rest fails.
 *  5. The master is out of packet mode meanwhile, so no change is reported to its reader.
 */
#define _GNU_SOURCE
#include "fds_table.h"
#include "base/reason.h"
#include "isolate/fdguard.h"

#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INPUT_MAX = 4000, CHUNK = 200, ECHO_MS = 5000, DISCIPLINE = 0 /* N_TTY */ };
enum { GOES_ON, STOPPED_BY_CALL, STOPPED_BY_KEY }; /* output; stored in images */
enum { ENDED, ENDED_BY_EOF, OPEN };                /* a piece of input; stored in images */

static const char start_key = 0x11, stop_key = 0x13;

typedef struct tty {
    int master, slave;
    int flags, packet; /* of the master, to be put back */
    struct termios2 settings;
} tty_t;

static int get(int fd, unsigned long what) {
    int value = 0;
    return ioctl(fd, what, &value) ? 0 : value;
}

static void set(int fd, unsigned long what, int value) {
    ioctl(fd, what, &value);
}

static int is(int fd, short event, int ms) {
    struct pollfd p = {.fd = fd, .events = event};
    return poll(&p, 1, ms) > 0 && (p.revents & event);
}

int mpy_tty_peer(int master, int flags) {
    int locked = get(master, TIOCGPTLCK);
    if (locked)
        set(master, TIOCSPTLCK, 0);
    int fd = mpy_fd_high(ioctl(master, TIOCGPTPEER, (flags & (O_ACCMODE | O_NONBLOCK)) | O_NOCTTY | O_CLOEXEC));
    if (locked)
        set(master, TIOCSPTLCK, 1);
    return fd;
}

int mpy_tty_check(int number, int closed, char *err, size_t n) {
    if (closed && !is(number, POLLHUP, 0))
        return mpy_reason(err, n,
                          "descriptor %d is a pseudo-terminal whose other end has not been opened yet; open it before "
                          "the checkpoint, or close descriptor %d",
                          number, number);
    if (get(number, TIOCGPKT) && is(number, POLLPRI, 0))
        return mpy_reason(err, n,
                          "descriptor %d is a pseudo-terminal in packet mode with a report that has not been read; "
                          "read it before the checkpoint",
                          number);
    return 0;
}

/* ---- settings ---- */

static struct termios2 raw_of(const struct termios2 *settings) {
    struct termios2 raw = *settings;
    raw.c_iflag &= IXON; /* to clear it would let stopped output go on */
    raw.c_oflag = raw.c_lflag = 0;
    memset(raw.c_cc, 0, sizeof raw.c_cc);
    raw.c_cc[VMIN] = 1;
    return raw;
}

/* For a terminal with input: a change of ICANON would end the last line. */
static struct termios2 as_is(const struct termios2 *settings) {
    struct termios2 raw = raw_of(settings);
    raw.c_lflag = settings->c_lflag & ICANON;
    return raw;
}

static int begin(tty_t *t, int number) {
    *t = (tty_t){.master = number, .slave = mpy_tty_peer(number, O_RDWR | O_NONBLOCK)};
    if (t->slave < 0)
        return -1;
    t->flags = fcntl(number, F_GETFL);
    fcntl(number, F_SETFL, t->flags | O_NONBLOCK);
    if ((t->packet = get(number, TIOCGPKT)))
        set(number, TIOCPKT, 0);
    return ioctl(t->slave, TCGETS2, &t->settings);
}

static void end(tty_t *t) {
    int saved = errno;
    if (t->slave >= 0) {
        ioctl(t->slave, TCSETS2, &t->settings);
        if (t->packet)
            set(t->master, TIOCPKT, 1);
        fcntl(t->master, F_SETFL, t->flags);
        mpy_fd_close(t->slave);
    }
    errno = saved;
}

/* ---- output that is stopped takes nothing back ---- */

static int let_go(const tty_t *t) {
    struct termios2 keys = raw_of(&t->settings);
    if (is(t->slave, POLLOUT, 0))
        return GOES_ON;
    ioctl(t->slave, TCXONC, TCOON);
    if (is(t->slave, POLLOUT, 0))
        return STOPPED_BY_CALL;
    keys.c_iflag = IXON;
    keys.c_cc[VSTART] = (cc_t)start_key;
    if (ioctl(t->slave, TCSETS2, &keys) || write(t->master, &start_key, 1) != 1 || !is(t->slave, POLLOUT, ECHO_MS))
        return -1;
    return STOPPED_BY_KEY;
}

static int stop_again(const tty_t *t, int how) {
    struct termios2 keys = as_is(&t->settings);
    if (how == STOPPED_BY_CALL)
        return ioctl(t->slave, TCXONC, TCOOFF);
    keys.c_iflag = IXON;
    keys.c_cc[VSTOP] = (cc_t)stop_key;
    if (how == GOES_ON)
        return 0;
    if (ioctl(t->slave, TCSETS2, &keys) || write(t->master, &stop_key, 1) != 1)
        return -1;
    for (int left = ECHO_MS; is(t->slave, POLLOUT, 0); left--)
        if (left == 0 || poll(NULL, 0, 1))
            return -1;
    return 0;
}

/* ---- taking out ---- */

static int ended_by(const struct termios2 *s, const uint8_t *line, ssize_t bytes) {
    uint8_t last = bytes > 0 ? line[bytes - 1] : 0;
    if (bytes > 0 && (last == '\n' || (last && (last == s->c_cc[VEOL] || last == s->c_cc[VEOL2]))))
        return ENDED;
    return ENDED_BY_EOF;
}

enum { PIECE = 4096, AROUND = 32 }; /* bytes that are read at once; of the lengths and numbers that go with them */

static int room_for_piece(mpy_blob_t *b) {
    if (!mpy_blob_reserve(b, PIECE + AROUND))
        return 1;
    errno = ENOMEM;
    return 0;
}

/* Pieces: how each ends, and its bytes. Returns the number of bytes, or -1. */
static ssize_t take_pieces(const tty_t *t, int lines, mpy_blob_t *b, uint32_t *count) {
    uint8_t piece[PIECE];
    ssize_t got = -1, all = 0;
    while (room_for_piece(b) && (got = read(t->slave, piece, sizeof piece)) >= 0) {
        if (got == 0 && !lines)
            break;
        mpy_blob_put_u32(b, lines ? (uint32_t)ended_by(&t->settings, piece, got) : OPEN);
        mpy_blob_put_bytes(b, piece, (size_t)got);
        (*count)++;
        all += got;
        got = -1;
    }
    return got < 0 && errno != EAGAIN ? -1 : all;
}

static int take_input(const tty_t *t, mpy_blob_t *b) {
    const struct termios2 raw = raw_of(&t->settings);
    size_t at = b->bytes;
    uint32_t count = 0;
    mpy_blob_put_u32(b, 0);
    ssize_t got = take_pieces(t, (t->settings.c_lflag & ICANON) != 0, b, &count); /* invariant 1 */
    if (got >= 0)
        got = ioctl(t->slave, TCSETS2, &raw) ? -1 : take_pieces(t, 0, b, &count);
    mpy_blob_set_u32(b, at, count);
    return got < 0 ? -1 : 0;
}

static int take_output(const tty_t *t, mpy_blob_t *b) {
    uint8_t part[PIECE];
    const size_t at = b->bytes;
    uint64_t all = 0;
    ssize_t got = -1;
    mpy_blob_put_u64(b, 0);
    while (room_for_piece(b) && (got = read(t->master, part, sizeof part)) > 0) {
        memcpy(mpy_blob_extend(b, (size_t)got), part, (size_t)got);
        all += (uint64_t)got;
        got = -1;
    }
    const int bad = got < 0 && errno != EAGAIN;
    memcpy(b->data + at, &all, sizeof all);
    return bad ? -1 : 0;
}

/* ---- putting back ---- */

/* Invariant 3 */
static int type(const tty_t *t, const uint8_t *text, size_t bytes, int silent) {
    uint8_t echo[CHUNK];
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < CHUNK ? bytes - done : CHUNK;
        if (write(t->master, text + done, part) != (ssize_t)part)
            return -1;
        for (size_t back = 0; !silent && back < part;) {
            ssize_t got = is(t->master, POLLIN, ECHO_MS) ? read(t->master, echo, part - back) : -1;
            if (got <= 0)
                return -1;
            back += (size_t)got;
        }
        done += part;
    }
    return 0;
}

/* Two characters that occur nowhere in the pieces; they stay 0, which is none, if there are no two. */
static void choose_keys(mpy_reader_t pieces, uint32_t count, const struct termios2 *s, uint8_t keys[2]) {
    uint8_t used[256] = {[0] = 1, ['\n'] = 1, ['a'] = 1};
    int found = 0;
    used[s->c_cc[VEOL]] = used[s->c_cc[VEOL2]] = 1;
    for (; count; count--) {
        size_t bytes;
        mpy_reader_u32(&pieces);
        const uint8_t *piece = mpy_reader_bytes(&pieces, &bytes);
        for (size_t i = 0; piece && i < bytes; i++)
            used[piece[i]] = 1;
    }
    for (int c = 255; c > 0 && found < 2; c--)
        if (!used[c])
            keys[found++] = (uint8_t)c;
}

static int put_input(const tty_t *t, mpy_reader_t *r) {
    const int lines = (t->settings.c_lflag & ICANON) != 0;
    struct termios2 typing = raw_of(&t->settings);
    uint32_t count = mpy_reader_count(r, 12);
    uint8_t keys[2] = {0};
    int kind = ENDED;
    choose_keys(*r, count, &t->settings, keys);
    typing.c_lflag = ECHO;
    if (lines) {
        typing.c_lflag |= ICANON | (t->settings.c_lflag & IEXTEN);
        typing.c_cc[VEOL] = t->settings.c_cc[VEOL], typing.c_cc[VEOL2] = t->settings.c_cc[VEOL2];
        typing.c_cc[VEOF] = keys[0], typing.c_cc[VERASE] = keys[1];
    }
    if (ioctl(t->slave, TCSETS2, &typing))
        return -1;
    for (; count; count--) {
        size_t bytes;
        kind = (int)mpy_reader_u32(r);
        const uint8_t *piece = mpy_reader_bytes(r, &bytes);
        if (!piece || type(t, piece, bytes, 0) || (kind == ENDED_BY_EOF && (!keys[1] || type(t, keys, 1, 1))))
            return -1;
    }
    const uint8_t nothing[2] = {'a', keys[1]}; /* a VEOF has no echo */
    return kind == ENDED_BY_EOF ? type(t, nothing, 2, 0) : 0;
}

static int put_output(const tty_t *t, mpy_reader_t *r) {
    const struct termios2 plain = as_is(&t->settings);
    size_t bytes;
    const uint8_t *text = mpy_reader_bytes(r, &bytes);
    if (!text || ioctl(t->slave, TCSETS2, &plain))
        return -1;
    for (size_t done = 0; done < bytes;) {
        ssize_t put = write(t->slave, text + done, bytes - done);
        if (put <= 0 && (errno != EAGAIN || !is(t->slave, POLLOUT, ECHO_MS)))
            return -1;
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

static int put_back(const tty_t *t, mpy_reader_t *r, int stopped) {
    return put_input(t, r) || put_output(t, r) || stop_again(t, stopped) ? -1 : 0;
}

static int lost(int number, char *err, size_t n) {
    return mpy_reason(err, n, "descriptor %d: what waits in this pseudo-terminal can't be put back: %s", number,
                      strerror(errno));
}

/* ---- the whole ---- */

static int take(tty_t *t, mpy_blob_t *queues, int *stopped, char *err, size_t n) {
    int waiting = 0;
    if (get(t->slave, TIOCGETD) != DISCIPLINE || t->settings.c_lflag & EXTPROC)
        return mpy_reason(err, n, "descriptor %d is a pseudo-terminal with another line discipline than N_TTY, or "
                          "with EXTPROC, which can't be saved; close it before the checkpoint", t->master);
    ioctl(t->slave, FIONREAD, &waiting);
    if (waiting > INPUT_MAX)
        return mpy_reason(err, n, "descriptor %d is a pseudo-terminal in which %d bytes of input wait; up to %d can be "
                          "saved: read them before the checkpoint", t->master, waiting, INPUT_MAX);
    if (!room_for_piece(queues))
        return mpy_reason(err, n, "descriptor %d: no memory for what waits in this pseudo-terminal", t->master);
    if (take_input(t, queues)) {
        mpy_reason(err, n, "descriptor %d: the input that waits in this pseudo-terminal can't be read: %s", t->master,
                   strerror(errno));
        mpy_blob_put_u64(queues, 0); /* no output was taken */
        return -1;
    }
    if (take_output(t, queues) || (*stopped = let_go(t)) < 0) {
        mpy_reason(err, n, "descriptor %d: the output that waits in this pseudo-terminal can't be read: %s", t->master,
                   strerror(errno));
        *stopped = GOES_ON;
        return -1;
    }
    return 0;
}

int mpy_tty_save(int number, mpy_blob_t *b, char *err, size_t n) {
    tty_t t;
    mpy_blob_t queues;
    mpy_reader_t again;
    struct stat st;
    int stopped = 0, bad;
    if (begin(&t, number) || fstat(t.slave, &st)) {
        end(&t);
        return mpy_reason(err, n, "descriptor %d: the other end of this pseudo-terminal can't be opened: %s", number,
                          strerror(errno));
    }
    mpy_blob_init(&queues);
    mpy_blob_put_bytes(b, &t.settings, sizeof t.settings);
    mpy_blob_put_u32(b, st.st_mode & 07777);
    mpy_blob_put_u32(b, (uint32_t)t.packet);
    mpy_blob_put_u32(b, (uint32_t)get(t.slave, TIOCGEXCL));
    mpy_blob_put_u32(b, (uint32_t)get(number, TIOCGPTLCK));
    bad = take(&t, &queues, &stopped, err, n);
    mpy_reader_init(&again, queues.data, queues.bytes);
    if (queues.bytes > 0 && put_back(&t, &again, stopped)) /* also if only a part was taken */
        bad = lost(number, err, n);
    end(&t);
    mpy_blob_put_u32(b, (uint32_t)stopped);
    mpy_blob_put_bytes(b, queues.data, queues.bytes);
    b->failed |= queues.failed;
    mpy_blob_free(&queues);
    return bad;
}

int mpy_tty_restore(int number, mpy_reader_t *r, char *err, size_t n) {
    tty_t t;
    size_t bytes;
    const void *settings = mpy_reader_bytes(r, &bytes);
    uint32_t mode = mpy_reader_u32(r), packet = mpy_reader_u32(r), exclusive = mpy_reader_u32(r);
    uint32_t locked = mpy_reader_u32(r), stopped = mpy_reader_u32(r);
    mpy_reader_t queues = mpy_reader_sub(r);
    if (r->failed || !settings || bytes != sizeof t.settings)
        return mpy_reason(err, n, "descriptor %d: damaged record", number);
    int bad = begin(&t, number);
    memcpy(&t.settings, settings, sizeof t.settings);
    t.packet = (int)packet;
    bad = bad || put_back(&t, &queues, (int)stopped);
    if (!bad) {
        fchmod(t.slave, mode);
        if (exclusive)
            ioctl(t.slave, TIOCEXCL);
        set(number, TIOCSPTLCK, (int)locked);
    }
    end(&t);
    return bad ? lost(number, err, n) : 0;
}
