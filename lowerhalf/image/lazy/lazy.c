/* lazy.c - the program runs while its memory is still being read. A page that it touches is read immediately; a thread
 * reads the other ones meanwhile (userfaultfd(2)).
 *
 * Half: lower. The thread is an ordinary lower-half pthread with all signals blocked; libc allowed.
 *
 * Invariants
 *  1. Runs are read as a whole, and none of their pages is used before checksum and seal of the run were right. A run
 *     that is wrong ends the job.
 *  2. Only memory of the program without a file is read late. The rest is read before the program runs, and so are the
 *     upper block and the trap block, which the lower half itself uses meanwhile.
 *  3. The kernel waits for us before the program can use an address that it has unmapped, emptied or moved memory from
 *     or to. So the list of missing pages (pending.c) is right at any time, and old bytes never appear at a new place.
 *  4. No huge page is made until all late memory is known to the kernel: it would fill late pages beside those that are
 *     read immediately. If a late page is already present, the job ends.
 *  5. A child process would find zeros where pages are missing. So fork(2) waits (mpy_memory_missing). So does a
 *     checkpoint. The image's file stays open until then: it can be removed meanwhile.
 */
#include "lazy.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/reason.h"
#include "base/sys.h"
#include "isolate/fdguard.h"
#include "isolate/trap/trap.h"
#include "pending.h"
#include <manapy/boundary.h>

enum { TOUCHED_MAX = 1024, ASK_NS = 20000000, EVENTS = 16, PAUSE_MS = 1 };
#define PAGE ((uint64_t)MPY_IMAGE_PAGE)

static int uffd = -1;
static int no_huge_pages; /* PR_GET_THP_DISABLE, as it was */
static mpy_pending_t pending;
static char *buffer; /* MPY_RUN_MAX bytes */
static uint64_t touched[TOUCHED_MAX]; /* addresses for which threads wait; more of them come by and by */
static size_t ntouched;

int mpy_lazy_begin(char *why_not, size_t n) {
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                                         UFFD_FEATURE_EVENT_UNMAP};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    uffd = fd < 0 ? -1 : mpy_fd_high(fd);
    if (uffd >= 0 && ioctl(uffd, UFFDIO_API, &api) == 0) {
        no_huge_pages = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* invariant 4 */
        return 0;
    }
    snprintf(why_not, n, errno == EPERM ? "the kernel does not allow userfaultfd(2) (see the sysctl "
                                          "vm.unprivileged_userfaultfd)"
                                        : "the kernel has no userfaultfd(2)");
    if (uffd >= 0) mpy_fd_close(uffd);
    uffd = -1;
    return -1;
}

/* ---- what can be late ---- */

static int can_be_late(const mpy_image_region_t *r) {
    const uint32_t at_once = MPY_REGION_SHARED | MPY_REGION_FILE | MPY_REGION_LOCKED | MPY_REGION_LOCKED_ON_FAULT;
    const int is_block = r->hi > MPY_ARENA_LO && r->lo < MPY_HEAP_LO;
    return !(r->flags & at_once) && !is_block;
}

static const mpy_image_region_t *region_of(const mpy_image_t *im, uint64_t address) {
    uint64_t lo = 0, hi = im->nregions;
    while (lo < hi) {
        uint64_t middle = lo + (hi - lo) / 2;
        if (im->regions[middle].hi <= address) lo = middle + 1;
        else hi = middle;
    }
    return &im->regions[lo]; /* each wanted page lies in a region (invariants of reader.c) */
}

int mpy_lazy_note(const mpy_image_t *newest, const mpy_image_part_t *part) {
    for (size_t i = 0; i < part->nwanted; i++)
        if (!can_be_late(region_of(newest, part->wanted[i].address))) return 0;
    return mpy_pending_add(&pending, part) ? -1 : 1;
}

/* ---- pages ---- */

static void fail(const char *line) __attribute__((noreturn));
static void fail(const char *line) {
    MPY_LOWER->svc->die(line, 1);
    __builtin_unreachable();
}

static void events(void);

/* Returns 0 or -errno. -EAGAIN: the program changes its mappings, and the kernel wants its events read first. */
static int place(unsigned long request, void *argument) { return ioctl(uffd, request, argument) ? -errno : 0; }

/* Puts the missing pages of an item in place, whose run is in the buffer: not all if the list has changed. */
static void fill(mpy_pending_item_t *item) {
    uint32_t first, pages;
    const uint64_t start = pending.loads[item->load].run->address;
    while ((pages = mpy_pending_missing(item, &first)) != 0) {
        struct uffdio_copy copy = {.dst = item->address + first * PAGE,
                                   .src = (uint64_t)buffer + (item->origin - start) + first * PAGE,
                                   .len = pages * PAGE};
        int r = place(UFFDIO_COPY, &copy);
        if (copy.copy > 0) mpy_pending_clear(item, first, (uint32_t)((uint64_t)copy.copy / PAGE));
        if (r == 0) continue;
        if (r == -EAGAIN) {
            events();
            return;
        }
        /* ENOENT: it is unmapped, and the event is on its way */
        if (copy.copy <= 0 && r != -ENOENT) {
            char line[128];
            snprintf(line, sizeof line, "memory at %#lx cannot be restored: %s", (unsigned long)copy.dst, strerror(-r));
            fail(line);
        }
        if (copy.copy <= 0) mpy_pending_clear(item, first, 1);
    }
}

/* Not twice: a run that was read because of one of its pages has no missing ones any more. */
static void load(uint32_t number) {
    static uint32_t in_buffer = UINT32_MAX;
    char error[1200];
    mpy_pending_item_t *item = mpy_pending_of(&pending, number);
    if (!item) return;
    const mpy_pending_load_t *l = &pending.loads[number];
    if (in_buffer != number && mpy_image_read_run(l->image, l->run, buffer, error, sizeof error)) fail(error);
    in_buffer = number;
    for (; item; item = mpy_pending_of(&pending, number)) fill(item);
}

static void zero(uint64_t address) {
    struct uffdio_zeropage page = {.range = {address, PAGE}};
    struct uffdio_range range = {address, PAGE};
    int r;
    while ((r = place(UFFDIO_ZEROPAGE, &page)) == -EAGAIN) events();
    if (r) place(UFFDIO_WAKE, &range); /* it is there already, or unmapped */
}

static void on_event(const struct uffd_msg *m) {
    switch (m->event) {
    case UFFD_EVENT_PAGEFAULT:
        if (ntouched < TOUCHED_MAX) touched[ntouched++] = m->arg.pagefault.address & ~(PAGE - 1);
        break;
    case UFFD_EVENT_REMAP:
        if (mpy_pending_move(&pending, m->arg.remap.from, m->arg.remap.to, m->arg.remap.len))
            fail("no memory for the list of pages that are still to be read");
        break;
    case UFFD_EVENT_REMOVE:
    case UFFD_EVENT_UNMAP: mpy_pending_drop(&pending, m->arg.remove.start, m->arg.remove.end); break;
    default: break;
    }
}

/* Reads all that the kernel has to say. */
static void events(void) {
    struct uffd_msg messages[EVENTS];
    ssize_t got;
    while ((got = read(uffd, messages, sizeof messages)) > 0)
        for (size_t i = 0; i < (size_t)got / sizeof *messages; i++) on_event(&messages[i]);
}

/* Serves the threads that wait, and those that soon come: who touches one page often touches another one next, and
 * should not wait for a run that nobody needs yet. */
static void serve(void) {
    struct pollfd ready = {.fd = uffd, .events = POLLIN};
    int served;
    do {
        events();
        for (served = 0; ntouched; served = 1) {
            uint64_t address = touched[--ntouched];
            const mpy_pending_item_t *item = mpy_pending_find(&pending, address);
            if (item) load(item->load);
            else zero(address);
            events();
        }
    } while (served && poll(&ready, 1, PAUSE_MS) > 0);
}

/* ---- the thread ---- */

static void *loader(void *unused) {
    (void)unused;
    for (uint32_t i = 0; i < pending.nloads; i++) {
        serve();
        load(i);
    }
    serve();
    mpy_fd_close(uffd); /* wakes whoever still waits: what is missing now is zero */
    uffd = -1;
    mpy_pending_free(&pending);
    free(buffer);
    __atomic_store_n(&mpy_memory_missing, 0, __ATOMIC_RELEASE);
    mpy_futex_wake(&mpy_memory_missing);
    return NULL;
}

/* From the first to the last page that is late: no more, because each fault elsewhere costs two switches. */
static int watch(const mpy_image_region_t *r) {
    uint64_t lo, hi;
    if (!mpy_pending_span(&pending, r->lo, r->hi, &lo, &hi)) return 0;
    struct uffdio_register range = {.range = {lo, hi - lo}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(uffd, UFFDIO_REGISTER, &range);
}

int mpy_lazy_start(const mpy_image_t *newest, char *error, size_t n) {
    pthread_t thread;
    sigset_t all, old;
    mpy_pending_sort(&pending);
    buffer = aligned_alloc(PAGE, MPY_RUN_MAX);
    if (!buffer) return mpy_reason(error, n, "no memory for a restart with --lazy");
    for (uint64_t i = 0; i < newest->nregions; i++)
        if (can_be_late(&newest->regions[i]) && watch(&newest->regions[i]))
            return mpy_reason(error, n, "userfaultfd(2) does not serve the memory at %#lx: %s",
                              (unsigned long)newest->regions[i].lo, strerror(errno));
    prctl(PR_SET_THP_DISABLE, no_huge_pages & 1, no_huge_pages & 2, 0, 0);
    mpy_memory_missing = 1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&thread, NULL, loader, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) return mpy_reason(error, n, "cannot create a thread: %s", strerror(failed));
    pthread_detach(thread);
    return 0;
}

int mpy_lazy_wait(int (*cancelled)(void)) {
    const struct timespec patience = {.tv_nsec = ASK_NS};
    while (__atomic_load_n(&mpy_memory_missing, __ATOMIC_ACQUIRE)) {
        if (cancelled()) return -1;
        mpy_sys(SYS_futex, &mpy_memory_missing, FUTEX_WAIT, 1, &patience);
    }
    return 0;
}
