/* trap_path.c - /proc/PID, when the program knows a process or thread by another id than the kernel (psutil reads it),
 * and /dev/pts/N, when it knows a pseudo-terminal by another number.
 *
 * Half: lower, in the SIGSYS handler on the upper TLS: no libc.
 *
 * A call that opens another path may sleep (a FIFO), which it must not do in the handler. So the program makes it
 * itself (mpy_trap_with_mask says how).
 *
 * Invariants
 *  1. Only absolute paths are translated, and only in /proc/PID, /proc/.../task/TID and /dev/pts/N. The content of
 *     files in /proc is not translated.
 */
#include "base/sys.h"
#include "isolate/pts.h"
#include "trap.h"
#include <sys/ioctl.h>

static const char proc[] = "/proc/", task[] = "/task/", pts[] = "/dev/pts/";

static const char *after(const char *text, const char *prefix) {
    while (*prefix && *text == *prefix) text++, prefix++;
    return *prefix ? 0 : text;
}

static char *put_number(char *to, long value) {
    char digits[20];
    int n = 0;
    do digits[n++] = (char)('0' + value % 10); while (value /= 10);
    while (n) *to++ = digits[--n];
    return to;
}

/* Copies a component of a path; if it is the program's id of a process or thread, the kernel's. Returns NULL if there
 * is no room. */
static char *put_component(char *to, const char *end, const char **path, bool *changed) {
    const char *p = *path;
    long id = 0;
    while (*p >= '0' && *p <= '9' && id < 1l << 30) id = 10 * id + (*p++ - '0');
    if (p > *path && (*p == '/' || *p == 0) && mpy_id_real((int32_t)id) != id && end - to > 20) {
        *changed = true;
        *path = p;
        return put_number(to, mpy_id_real((int32_t)id));
    }
    for (p = *path; *p && *p != '/'; p++) {
        if (to == end) return 0;
        *to++ = *p;
    }
    *path = p;
    return to;
}

/* The number of a pseudo-terminal, the `length` bytes after its directory; -1: it is none. */
static int pts_number(const char *digits, long length) {
    int number = 0;
    if (length < 1 || length > 8) return -1;
    for (; length; length--, digits++) {
        if (*digits < '0' || *digits > '9') return -1;
        number = 10 * number + (*digits - '0');
    }
    return number;
}

static char *put_pts(char *to, int number) {
    for (const char *c = pts; *c; c++) *to++ = *c;
    return put_number(to, number);
}

static const char *pts_real(const char *path, const char *digits, char *room, size_t n) {
    long length = 0;
    while (length < 9 && digits[length]) length++;
    int number = pts_number(digits, length);
    if (number < 0 || mpy_pts_real(number) == number || n < sizeof pts + 20) return path;
    *put_pts(room, mpy_pts_real(number)) = 0;
    return room;
}

long mpy_path_shown(char *out, long length, long room) {
    const long head = (long)sizeof pts - 1;
    char text[sizeof pts + 20];
    for (long i = 0; i < head; i++)
        if (i >= length || out[i] != pts[i]) return length;
    int number = pts_number(out + head, length - head);
    if (number < 0 || mpy_pts_shown(number) == number) return length;
    long n = put_pts(text, mpy_pts_shown(number)) - text;
    if (n > room) n = room;
    for (long i = 0; i < n; i++) out[i] = text[i];
    return n;
}

/* The ioctls that return or set the number of a pseudo-terminal, the group in its foreground, or its session. */
long mpy_trap_terminal(mpy_trap_t *t) {
    int *value = (int *)t->a[2], real;
    if ((unsigned)t->a[1] == TIOCSPGRP) {
        real = mpy_id_real(*value);
        return mpy_sys(SYS_ioctl, t->a[0], t->a[1], &real);
    }
    long r = mpy_sys(SYS_ioctl, t->a[0], t->a[1], value);
    if (r == 0) *value = (unsigned)t->a[1] == TIOCGPTN ? mpy_pts_shown(*value) : mpy_id_shown(*value);
    return r;
}

const char *mpy_path_real(const char *path, char *room, size_t n) {
    const char *p = path ? after(path, proc) : 0, *end = room + n - 1, *terminal = path ? after(path, pts) : 0;
    bool changed = false;
    if (terminal) return pts_real(path, terminal, room, n);
    if (!p || n < sizeof proc) return path;
    char *to = room;
    for (const char *c = proc; *c; c++) *to++ = *c;
    to = put_component(to, end, &p, &changed);
    if (to && after(p, task) && end - to > (long)sizeof task) {
        for (const char *c = task; *c; c++) *to++ = *c;
        p = after(p, task);
        to = put_component(to, end, &p, &changed);
    }
    if (!to || !changed) return path;
    while (*p && to < end) *to++ = *p++;
    *to = 0;
    return *p ? path : room; /* too long for a file of /proc */
}

/* Calls whose first argument is a path, or whose second one is. */
static long with_path(mpy_trap_t *t, int which) {
    char room[256];
    greg_t *g = t->uc->uc_mcontext.gregs;
    const char *given = (const char *)t->a[which], *real = mpy_path_real(given, room, sizeof room);
    if (real != given) {
        t->a[which] = (long)real;
        return mpy_sys6(t->nr, t->a[0], t->a[1], t->a[2], t->a[3], t->a[4], t->a[5]);
    }
    g[REG_RCX] = g[REG_RIP];
    g[REG_RIP] = (greg_t)mpy_code_address(mpy_code_masked_none);
    return t->nr; /* goes into rax, for the system call there */
}

long mpy_trap_path(mpy_trap_t *t) { return with_path(t, 0); }
long mpy_trap_path_at(mpy_trap_t *t) { return with_path(t, 1); }
