/* trap_path.c - /proc/PID, when the program knows a process or thread by another id than the kernel (psutil reads it).
 *
 * Half: lower, in the SIGSYS handler on the upper TLS: no libc.
 *
 * A call that opens another path may sleep (a FIFO), which it must not do in the handler. So the program makes it
 * itself (mpy_trap_with_mask says how).
 *
 * Invariants
 *  1. Only absolute paths are translated, and only in /proc/PID and /proc/.../task/TID. What the files contain is not.
 */
#include "base/sys.h"
#include "trap.h"

static const char proc[] = "/proc/", task[] = "/task/";

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

const char *mpy_path_real(const char *path, char *room, size_t n) {
    const char *p = path ? after(path, proc) : 0, *end = room + n - 1;
    bool changed = false;
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
