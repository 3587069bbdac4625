/* maps.c - the memory of the upper half: reads /proc/self/maps and smaps, and keeps what belongs into an image.
 *
 * Half: lower; libc may be called, except in mpy_maps_advice.
 *
 * Invariants
 *  1. The upper half consists of the arena, except the lower block and the parts that every lower half creates anew
 *     (code page, proxy vDSO, service stack). For a program linked without -pie, memory below 4 GiB also belongs to it,
 *     and so does what it has mapped below the arena at addresses that it chose. Other memory there may be the lower
 *     half's: with `ulimit -s unlimited` the kernel places libraries there.
 *  2. Each call that changes advice or mappings is counted when it is done (mpy_memory_calls), except mprotect, which
 *     only splits mappings. So advice that was read at some count is still right if the count is the same when the
 *     program is halted.
 */
#include "maps.h"
#include "base/hex.h"
#include "base/proc/maps.h"
#include "base/reason.h"
#include "base/sys.h"
#include "isolate/trapstate.h"
#include "process/memory/advice.h"
#include "process/memory/files.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#define HUGE_PAGE (2ul << 20) /* the smallest */

/* A mapping can cross the border of a window, because the kernel merges neighbours. */
typedef struct windows {
    mpy_range_t items[3 + MPY_LOW_MAX]; /* ascending */
    size_t n;
} windows_t;

static windows_t windows_of_the_program(void) {
    const mpy_range_t blocks = {MPY_UPPER_ADDR, MPY_CODE_ADDR}, arena = {MPY_HEAP_LO, MPY_ARENA_HI};
    windows_t w = {.n = 0};
    if (MPY_TRAP->low_exec) w.items[w.n++] = (mpy_range_t){0, MPY_LOW_END};
    for (uint32_t i = 0; i < MPY_TRAP->nlow; i++) {
        mpy_range_t range = MPY_TRAP->low[i];
        if (MPY_TRAP->low_exec && range.lo < MPY_LOW_END) range.lo = MPY_LOW_END; /* ASan's shadow crosses 4 GiB */
        if (range.lo < range.hi) w.items[w.n++] = range;
    }
    w.items[w.n++] = blocks;
    w.items[w.n++] = arena;
    return w;
}

/* Cut `m` down to a window; false if nothing is left. */
static int clip(mpy_map_t *m, const mpy_range_t *window) {
    uint64_t lo = m->lo > window->lo ? m->lo : window->lo;
    m->hi = m->hi < window->hi ? m->hi : window->hi;
    if (lo >= m->hi) return 0;
    m->offset += lo - m->lo;
    m->lo = lo;
    return 1;
}

static void unescape(char *s) { /* the kernel writes newlines as \012 */
    char *out = s;
    for (; *s; s++)
        if (!strncmp(s, "\\012", 4)) { *out++ = '\n'; s += 3; } else *out++ = *s;
    *out = 0;
}

static int keep(const mpy_proc_map_t *read, mpy_map_t *m) {
    *m = (mpy_map_t){.lo = read->lo,
                     .hi = read->hi,
                     .offset = read->offset,
                     .device = read->device,
                     .inode = read->inode,
                     .shared = read->perms[3] == 's',
                     .deleted = read->deleted};
    m->prot = (uint32_t)((read->perms[0] == 'r' ? PROT_READ : 0) | (read->perms[1] == 'w' ? PROT_WRITE : 0) |
                         (read->perms[2] == 'x' ? PROT_EXEC : 0));
    m->path = strdup(read->path[0] == '[' ? "" : read->path); /* [heap], [stack], [anon:...] */
    if (!m->path) return -1;
    unescape(m->path);
    return 0;
}

static int has_context; /* of asynchronous I/O, at the last mpy_maps_read */

long mpy_maps_read(mpy_map_t **out, char *error, size_t n) {
    mpy_proc_maps_t maps = mpy_proc_maps_open(0);
    mpy_proc_map_t read;
    const windows_t windows = windows_of_the_program();
    size_t capacity = 0;
    long count = 0;
    int more_lines;
    *out = NULL;
    if (!maps.file) return mpy_reason(error, n, "cannot read /proc/self/maps: %s", strerror(errno));
    has_context = 0;
    while ((more_lines = mpy_proc_maps_next(&maps, &read)) > 0) {
        if ((size_t)count + windows.n > capacity) {
            capacity = 2 * capacity + 256;
            mpy_map_t *more = realloc(*out, capacity * sizeof **out);
            if (!more) { mpy_reason(error, n, "out of memory"); goto failed; }
            *out = more;
        }
        mpy_map_t whole, part;
        /* The kernel itself places the ring of a context of io_setup(2), and no image has what is in flight. */
        if (!strncmp(read.path, "/[aio]", 6)) has_context = 1;
        if (keep(&read, &whole)) { mpy_reason(error, n, "out of memory"); goto failed; }
        for (size_t i = 0; i < windows.n; i++) {
            part = whole;
            if (!clip(&part, &windows.items[i])) continue;
            part.path = strdup(whole.path);
            if (!part.path) { free(whole.path); mpy_reason(error, n, "out of memory"); goto failed; }
            (*out)[count++] = part;
        }
        free(whole.path);
    }
    if (more_lines < 0) { mpy_reason(error, n, "cannot understand /proc/self/maps: %s", maps.line); goto failed; }
    mpy_proc_maps_close(&maps);
    return count;
failed:
    mpy_proc_maps_close(&maps);
    mpy_maps_free(*out, count);
    return -1;
}

/* One line of smaps. The parts of its mapping in `maps`: [*first, *end). */
static void on_smaps_line(const char *line, mpy_map_t *maps, long count, long *first, long *end) {
    if (!strncmp(line, "VmFlags:", 8)) {
        uint32_t advice = mpy_advice_flags(line);
        for (long i = *first; i < *end; i++) maps[i].advice = advice;
    } else if (line[0] < 'A' || line[0] > 'Z') { /* details begin with a capital letter */
        const char *rest;
        uint64_t lo = mpy_hex_number(line, &rest), hi = mpy_hex_number(rest + 1, &rest);
        for (*first = *end; *first < count && maps[*first].lo < lo; ++*first) {}
        for (*end = *first; *end < count && maps[*end].lo < hi; ++*end) {}
    }
}

static int read_advice(mpy_map_t *maps, long count) {
    static char text[1 << 16];
    long fd = mpy_sys(SYS_openat, AT_FDCWD, "/proc/self/smaps", O_RDONLY | O_CLOEXEC, 0);
    long got = fd, first = 0, end = 0;
    size_t have = 0;
    while (fd >= 0 && (got = mpy_sys(SYS_read, fd, text + have, sizeof text - 1 - have)) > 0) {
        char *line = text, *newline;
        have += (size_t)got;
        text[have] = 0;
        for (; (newline = strchr(line, '\n')) != NULL; line = newline + 1) {
            *newline = 0;
            on_smaps_line(line, maps, count, &first, &end);
        }
        have -= (size_t)(line - text);
        memmove(text, line, have);
        if (have == sizeof text - 1) got = -ENAMETOOLONG, have = 0; /* no path is as long */
    }
    if (fd >= 0) mpy_sys(SYS_close, fd);
    errno = got < 0 ? (int)-got : 0;
    return got < 0 ? -1 : 0;
}

static struct {
    mpy_map_t *maps; /* with advice; NULL: nothing is known */
    long count;
    uint32_t calls;  /* invariant 2 */
} known;

int mpy_maps_advice_is_known(void) { return known.maps && known.calls == mpy_memory_calls; }

/* Mappings may have been split since then, and stacks may have grown downwards. */
int mpy_maps_advice(mpy_map_t *maps, long count) {
    if (!mpy_maps_advice_is_known()) return read_advice(maps, count);
    for (long i = 0, k = 0; i < count; i++) {
        while (k < known.count && known.maps[k].hi < maps[i].hi) k++;
        maps[i].advice = k < known.count && known.maps[k].lo < maps[i].hi ? known.maps[k].advice : 0;
    }
    return 0;
}

void mpy_maps_learn_advice(void) {
    char error[256];
    mpy_map_t *maps;
    const uint32_t calls = mpy_memory_calls;
    if (mpy_maps_advice_is_known()) return;
    if (known.maps) mpy_maps_free(known.maps, known.count);
    known.maps = NULL;
    long count = mpy_maps_read(&maps, error, sizeof error);
    if (count < 0) return;
    if (read_advice(maps, count)) mpy_maps_free(maps, count);
    else known.maps = maps, known.count = count, known.calls = calls;
}

int mpy_map_is_private_huge(const mpy_map_t *m) {
    struct statfs fs;
    if (m->shared || !m->path[0] || (m->lo | m->hi) % HUGE_PAGE) return 0;
    /* of a deleted file nobody knows */
    return m->deleted || (statfs(m->path, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC);
}

void mpy_maps_free(mpy_map_t *maps, long count) {
    for (long i = 0; i < count; i++) free(maps[i].path);
    free(maps);
}

/* A device may be mapped after its descriptor was closed. So may a file that is only the kernel's. */
static int check_map(const mpy_map_t *m, char *error, size_t n) {
    if (!strncmp(m->path, "anon_inode:", 11) || !strncmp(m->path, "socket:", 7))
        return mpy_reason(error, n, "memory of the kernel (%s) is mapped; it cannot be saved", m->path);
    if (strncmp(m->path, "/dev/", 5) || mpy_memory_file_is_posix(m->path) || !strcmp(m->path, "/dev/zero")) return 0;
    return mpy_reason(error, n, "memory of the device %s is mapped; it cannot be saved", m->path);
}

int mpy_maps_judge(const mpy_map_t *maps, long count, char *error, size_t n) {
    if (has_context)
        return mpy_reason(error, n, "the program has a context of the kernel's asynchronous I/O (io_setup, libaio); "
                          "it cannot be saved");
    if (MPY_TRAP->foreign)
        return mpy_reason(error, n, "the program has mapped memory at the fixed address %#lx, outside the range that "
                          "can be saved", (unsigned long)MPY_TRAP->foreign);
    for (long i = 0; i < count; i++)
        if (check_map(&maps[i], error, n)) return -1;
    return 0;
}

int mpy_maps_check(char *error, size_t n) {
    mpy_map_t *maps;
    long count = mpy_maps_read(&maps, error, n);
    if (count < 0) return -1;
    int bad = mpy_maps_judge(maps, count, error, n);
    mpy_maps_free(maps, count);
    return bad;
}

static void note_calls(mpy_low_calls_t *out, uint64_t lo, uint64_t hi) {
    const uint8_t *end = (const uint8_t *)hi - 1;
    if (out->hi == 0) out->lo = (uint32_t)lo;
    out->hi = (uint32_t)(hi - 1);
    for (const uint8_t *p = (const uint8_t *)lo; p < end && (p = memchr(p, 0x0f, (size_t)(end - p))) != NULL; p++) {
        if (p[1] != 0x05) continue;
        if (out->n < MPY_LOW_CALLS_MAX) out->after[out->n] = (uint32_t)(uint64_t)p + 2;
        if (out->n <= MPY_LOW_CALLS_MAX) out->n++;
    }
}

int mpy_maps_low_calls(mpy_low_calls_t *out, char *error, size_t n) {
    mpy_map_t *maps;
    out->n = out->lo = out->hi = 0;
    if (!MPY_TRAP->low_exec) return 0;
    long count = mpy_maps_read(&maps, error, n);
    const uint32_t code = PROT_READ | PROT_EXEC;
    for (long i = 0; i < count; i++)
        if (maps[i].hi <= MPY_LOW_END && (maps[i].prot & code) == code) note_calls(out, maps[i].lo, maps[i].hi);
    if (count >= 0) mpy_maps_free(maps, count);
    return count < 0 ? -1 : 0;
}
