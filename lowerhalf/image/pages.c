/* pages.c - the pages of a region as runs of an image.
 *
 * Half: lower; runs on the control plane's worker thread, or in a process that was forked from it (background.c). So it
 * takes no lock (invariant 1 of image/write/output.c).
 *
 * Invariants
 *  1. It reads the upper half's memory and writes only the file, or a copy. Pages that were never touched are
 *     recognised in pagemap and not read. Pages of zeros are not written. Pages of mapped files that the program hasn't
 *     changed are represented by their checksum.
 *  2. Of watched memory, what has not been written since the base is not read at all: it is kept. It was not zero then.
 *  3. A copy has only the pages that are to be written, as private memory. So its own pagemap says which ones they are.
 *  4. This process closes no descriptor of a file that the program has open: that would drop the program's fcntl locks
 *     on it. The file is read through the program's descriptor. If that can't be read, another one is left open.
 */
#include "pages.h"
#include "base/io/whole.h"
#include "base/kernel.h"
#include "base/now.h"
#include "base/page.h"
#include "base/proc/scan.h"
#include "base/proc/shmem.h"
#include "image/file/crc32c.h"
#include "isolate/trap/trap.h"
#include <errno.h>
#include <fcntl.h>
#include <manapy/syscall.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define PAGE MPY_IMAGE_PAGE
#define PAGEMAP_CHUNK 4096ul /* entries read at once: 16 MiB of memory */
#define READ_CHUNK (8ul << 20)
#define PM_PRESENT (1ul << 63)
#define PM_SWAPPED (1ul << 62)
#define PM_FILE (1ul << 61) /* a page of a file, or of shared memory */
#define PM_GUARD (1ul << 58) /* MADV_GUARD_INSTALL: nobody may touch this page. Also "swapped" (Linux 6.15) */

static int pagemap = -1, mem = -1, has_plain_guards;
static mpy_shmem_t shmem;
static char buffer[1 << 20]; /* one thread or process uses this file at a time */

int mpy_pages_begin(mpy_image_output_t *o) {
    shmem = mpy_shmem_look();
    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    const int kernel = mpy_kernel();
    has_plain_guards = kernel >= MPY_KERNEL(6, 13) && kernel < MPY_KERNEL(6, 15);
    return pagemap < 0 || mem < 0 ? mpy_image_output_fail(o, "cannot read /proc/self/pagemap or mem") : 0;
}

void mpy_pages_end(void) {
    if (pagemap >= 0) close(pagemap);
    if (mem >= 0) close(mem);
    pagemap = mem = -1;
}

static int is_zero(const void *page) {
    const uint64_t *p = page;
    for (int i = 0; i < (int)(PAGE / 8); i += 8)
        if (p[i] | p[i + 1] | p[i + 2] | p[i + 3] | p[i + 4] | p[i + 5] | p[i + 6] | p[i + 7]) return 0;
    return 1;
}

/* ---- where the bytes are ---- */

static int is_lost_file(const mpy_pages_t *p) { /* deleted: its pages exist only here */
    return p->map->path[0] && !p->map->shared && !p->file;
}

/* Beyond the end of a truncated file a direct read would cause SIGBUS. */
static int is_readable(const mpy_pages_t *p) {
    return p->copy || ((p->map->prot & PROT_READ) && !is_lost_file(p));
}

static uint64_t source(const mpy_pages_t *p, uint64_t address) {
    return p->copy ? (uint64_t)p->copy + (address - p->map->lo) : address;
}

/* PROT_NONE or write-only memory, and that of lost files, is read through /proc/self/mem. */
static int read_protected(mpy_image_output_t *o, const mpy_pages_t *p, void *to, uint64_t from, uint64_t bytes) {
    if (mpy_read_whole(mem, to, bytes, (off_t)from) == (ssize_t)bytes) return 0;
    return mpy_image_output_fail(o, p->map->path[0] ? p->map->path : "cannot read protected memory");
}

/* Is the page, which nobody has touched, beyond the end of its file? ld.so leaves such gaps between the parts of a
 * library. */
static int is_beyond_end(uint64_t at) {
    char first; /* of a page */
    return pread(mem, &first, 1, (off_t)at) < 0 && (errno == EIO || errno == EFAULT);
}

/* ---- checksums of unchanged file ranges, kept from one image to the next ---- */

typedef struct known {
    uint64_t device, inode, mtime_ns, bytes, offset, length; /* file identity and range */
    uint32_t crc;
} known_t;

enum { KNOWN_MAX = 1 << 14 };
static struct known_table { /* shared with forked processes; one of them at a time adds to it */
    uint64_t count;
    known_t items[KNOWN_MAX];
} *known_table;

static pid_t rank; /* what mpy_pages_remember was called in; other processes were forked from it */

void mpy_pages_remember(void) {
    rank = getpid();
    if (known_table) return;
    long at = mpy_sys(SYS_mmap, 0, sizeof *known_table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!mpy_sys_failed(at)) known_table = (struct known_table *)at;
}

static const known_t *known(const known_t *wanted) {
    for (uint64_t i = 0; known_table && i < known_table->count; i++)
        if (!memcmp(&known_table->items[i], wanted, offsetof(known_t, crc))) return &known_table->items[i];
    return NULL;
}

static void remember(const known_t *k) {
    if (!known_table || known_table->count == KNOWN_MAX) return;
    known_table->items[known_table->count] = *k;
    known_table->count++;
}

static int is_file(const mpy_pages_t *p, int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_dev == p->file->device && st.st_ino == p->file->inode;
}

static int read_crc(mpy_image_output_t *o, const mpy_pages_t *p, int fd, uint64_t offset, uint64_t length,
                    uint32_t *crc) {
    *crc = 0;
    for (uint64_t done = 0; done < length;) {
        uint64_t n = length - done < sizeof buffer ? length - done : sizeof buffer;
        memset(buffer, 0, n); /* the last page of a file is filled up with zeros in memory */
        ssize_t got = mpy_read_whole(fd, buffer, n, (off_t)(offset + done));
        if (got < 0 || ((uint64_t)got < n && offset + done + (uint64_t)got < p->file->bytes)) return -1;
        if (mpy_image_output_cancelled(o)) return -1;
        *crc = mpy_crc32c(*crc, buffer, n);
        done += n;
    }
    return 0;
}

/* Invariant 4. The program may run, and close its descriptor meanwhile. */
static int file_crc(mpy_image_output_t *o, const mpy_pages_t *p, uint64_t offset, uint64_t length, uint32_t *crc) {
    const mpy_image_file_t *file = p->file;
    known_t k = {file->device, file->inode, file->mtime_ns, file->bytes, offset, length, 0};
    const known_t *before = known(&k);
    if (before) {
        *crc = before->crc;
        return 0;
    }
    const int has_locks = p->fd != MPY_PAGES_NOT_OPEN && getpid() == rank; /* perhaps */
    int bad = 0, lent = has_locks && p->fd >= 0 && is_file(p, p->fd);
    if (lent) bad = read_crc(o, p, p->fd, offset, length, &k.crc);
    if (lent && !is_file(p, p->fd)) lent = 0;
    if (!lent) {
        int fd = open(p->map->path, O_RDONLY | O_CLOEXEC);
        const int is_other = fd >= 0 && !is_file(p, fd); /* it has taken the name since the program was halted */
        bad = fd < 0 || is_other || read_crc(o, p, fd, offset, length, &k.crc);
        if (fd >= 0 && !has_locks) close(fd);
        if (is_other) errno = ESTALE;
    }
    if (bad) return mpy_image_output_cancelled(o) ? -1 : mpy_image_output_fail(o, p->map->path);
    remember(&k);
    *crc = k.crc;
    return 0;
}

/* ---- what is done with pages of one kind ---- */

enum kind { ZERO, DATA, FROM_FILE };

typedef int visit_t(mpy_image_output_t *o, const mpy_pages_t *p, enum kind kind, uint64_t lo, uint64_t hi);

static int write_data(mpy_image_output_t *o, const mpy_pages_t *p, mpy_image_run_t *run) {
    mpy_polyval_t hash = o->keys.hash;
    int direct = is_readable(p);
    int64_t begun = mpy_now_ns(CLOCK_MONOTONIC);
    if (mpy_image_output_align(o, PAGE)) return -1;
    run->kind = MPY_RUN_DATA, run->stored = run->bytes, run->offset = o->offset;
    for (uint64_t done = 0; done < run->bytes;) {
        uint64_t k = run->bytes - done < READ_CHUNK ? run->bytes - done : READ_CHUNK;
        const void *from = (const void *)source(p, run->address + done);
        if (!direct) {
            if (k > sizeof buffer) k = sizeof buffer;
            if (read_protected(o, p, buffer, run->address + done, k)) return -1;
            from = buffer;
        }
        run->crc = mpy_crc32c(run->crc, from, k);
        mpy_polyval_update(&hash, from, k);
        if (mpy_image_output_put(o, from, k)) return -1;
        done += k;
    }
    mpy_image_seal_run(&o->keys, run, &hash, run->seal);
    if (mpy_zip_measures(&o->zip))
        mpy_zip_measure(&o->zip, o->fd, run->offset, run->bytes, mpy_now_ns(CLOCK_MONOTONIC) - begun);
    return 0;
}

static int write_zipped(mpy_image_output_t *o, mpy_image_run_t *run) {
    run->kind = MPY_RUN_ZIPPED;
    return mpy_image_output_stored(o, run, o->zip.frame);
}

/* Shortens the run if not all of it is to be treated alike. Protected memory is not compressed: there is little of
 * it. */
static int write_memory(mpy_image_output_t *o, const mpy_pages_t *p, mpy_image_run_t *run) {
    const uint64_t all = run->bytes, most = all < MPY_RUN_MAX ? all : MPY_RUN_MAX;
    uint64_t plain = is_readable(p) ? mpy_zip_plain(&o->zip, most) : most;
    if (plain) {
        run->bytes = plain;
        return write_data(o, p, run);
    }
    if (run->bytes > MPY_FRAME_MAX) run->bytes = MPY_FRAME_MAX;
    run->stored = mpy_zip_try(&o->zip, (const void *)source(p, run->address), run->bytes, all - run->bytes);
    return run->stored ? write_zipped(o, run) : write_data(o, p, run);
}

static int write_file(mpy_image_output_t *o, const mpy_pages_t *p, mpy_image_run_t *run) {
    if (run->bytes > MPY_RUN_MAX) run->bytes = MPY_RUN_MAX;
    run->kind = MPY_RUN_FILE, run->offset = p->map->offset + (run->address - p->map->lo);
    return file_crc(o, p, run->offset, run->bytes, &run->crc);
}

static int write_pages(mpy_image_output_t *o, const mpy_pages_t *p, enum kind kind, uint64_t lo, uint64_t hi) {
    for (uint64_t at = lo, done; at < hi; at += done) {
        mpy_image_run_t run = {.address = at, .bytes = hi - at};
        if ((kind == FROM_FILE ? write_file : write_memory)(o, p, &run) || mpy_image_output_run(o, &run)) return -1;
        done = run.bytes;
    }
    return 0;
}

static mpy_dirty_image_t *tracker; /* of the image that is being written; NULL: it gets neither parent nor child */

/* Memory that somebody may write to meanwhile counts as changed: shared memory, and the blocks between the halves (the
 * control thread uses them). */
static int may_be_kept(const mpy_map_t *m) {
    return !m->shared && !(m->lo >= MPY_UPPER_ADDR && m->lo < MPY_CODE_ADDR);
}

int mpy_pages_may_be_watched(const mpy_map_t *m) { return may_be_kept(m) && !m->path[0]; }

/* So does memory that is not watched and cannot be read directly. */
static int is_hashed(const mpy_pages_t *p) {
    return tracker && !p->watched && may_be_kept(p->map) && is_readable(p);
}

static int is_kept(mpy_image_output_t *o, const mpy_pages_t *p, uint64_t address) {
    return mpy_dirty_is_same(tracker, &o->keys.hash, address, (const void *)source(p, address));
}

static int write_run(mpy_image_output_t *o, const mpy_pages_t *p, enum kind kind, uint64_t lo, uint64_t hi) {
    if (kind == DATA && p->watched) mpy_dirty_hold(tracker, lo, hi);
    if (kind != DATA || !is_hashed(p)) return write_pages(o, p, kind, lo, hi);
    int kept = is_kept(o, p, lo), next = kept;
    for (uint64_t at = lo, from = lo; at < hi; kept = next, from = at) {
        while ((at += PAGE) < hi && (next = is_kept(o, p, at)) == kept) {}
        if (mpy_image_output_cancelled(o)) return -1;
        if (kept ? mpy_image_output_kept(o, from, at - from) : write_pages(o, p, DATA, from, at)) return -1;
    }
    return 0;
}

static char *copy_place;   /* of the region that is being copied */
static uint64_t copy_most; /* bytes that may still be copied; 0: there were more */

static int copy_run(mpy_image_output_t *o, const mpy_pages_t *p, enum kind kind, uint64_t lo, uint64_t hi) {
    if (kind == FROM_FILE) return 0;
    copy_most = hi - lo < copy_most ? copy_most - (hi - lo) : 0;
    if (!copy_most) return -1;
    for (uint64_t at = lo; at < hi;) {
        uint64_t k = hi - at < READ_CHUNK ? hi - at : READ_CHUNK;
        char *to = copy_place + (at - p->map->lo);
        if (mpy_image_output_cancelled(o) || (!is_readable(p) && read_protected(o, p, to, at, k))) return -1;
        if (is_readable(p)) memcpy(to, (const void *)at, k);
        at += k;
    }
    return 0;
}

/* ---- the pages of a region ---- */

/* Classifies a page by its pagemap entry. `file_end`: the address where the mapped file ends (m->lo if the image can't
 * rely on the file). */
static enum kind classify(const mpy_map_t *m, uint64_t address, uint64_t entry, uint64_t file_end) {
    int own = (entry & PM_SWAPPED) || ((entry & PM_PRESENT) && (m->shared || !(entry & PM_FILE)));
    if (!m->path[0] || m->shared) return entry & (PM_PRESENT | PM_SWAPPED) ? DATA : ZERO;
    if (own) return DATA;
    if (address < file_end) return FROM_FILE;
    return entry & PM_PRESENT ? DATA : ZERO;
}

/* Linux 6.13 and 6.14 have guards without PM_GUARD. There, what cannot be read is one. Elsewhere it is damaged memory,
 * which must not become zeros. */
static int is_guard(uint64_t at, uint64_t entry) {
    char first; /* of a page */
    if (entry & PM_GUARD) return 1;
    if (!(entry & PM_SWAPPED) || (entry & PM_PRESENT) || !has_plain_guards) return 0;
    return pread(mem, &first, 1, (off_t)at) < 0;
}

static enum kind kind_of(const mpy_pages_t *p, uint64_t address, uint64_t entry, uint64_t file_end) {
    if (is_guard(source(p, address), entry)) return ZERO;
    enum kind kind = classify(p->map, address, entry, file_end);
    /* to ask for an untouched huge page would take one from the pool */
    if (is_lost_file(p) && kind == ZERO && !mpy_map_is_anonymous_huge(p->map) && !is_beyond_end(source(p, address)))
        kind = DATA;
    if (kind == DATA && is_readable(p) && is_zero((const void *)source(p, address))) kind = ZERO;
    return kind == ZERO && address < file_end ? DATA : kind; /* zeros over a file's page must be written */
}

static int is_swapping(void) {
    struct sysinfo host;
    return sysinfo(&host) != 0 || host.freeswap < host.totalswap;
}

/* Pages of shared memory without a file may hold data although this process has not touched them: another process has,
 * or a write(2) before the file lost its name. Or the kernel has written them to the disk and dropped them. They count
 * as present. mincore(2) tells which ones there are only if the file is in memory: not on a disk, nor of huge pages, of
 * which it sees what this process has touched. (Nor does it see pages in swap.) */
static void find_untouched(const mpy_pages_t *p, uint64_t lo, uint64_t pages, uint64_t *entries) {
    static unsigned char in_core[PAGEMAP_CHUNK];
    static char page[PAGE] __attribute__((aligned(64)));
    if (!p->map->shared || p->file || p->copy) return;
    const int known_core = mpy_shmem_has(&shmem, p->map->device) && mincore((void *)lo, pages * PAGE, in_core) == 0;
    const int all_in_core = known_core && !is_swapping();
    for (uint64_t i = 0; i < pages; i++) {
        if (entries[i] & (PM_PRESENT | PM_SWAPPED)) continue;
        if (known_core && (in_core[i] & 1)) entries[i] |= PM_PRESENT;
        else if (!all_in_core && pread(mem, page, PAGE, (off_t)(lo + i * PAGE)) == (ssize_t)PAGE && !is_zero(page))
            entries[i] |= PM_PRESENT;
    }
}

/* The next page from `at` on that may have something; `hi`: none. Only private memory without a file is looked through.
 * The kernel skips address space that is only reserved much faster than its pagemap can be read: a TiB has 2 GiB of
 * entries. */
static uint64_t next_filled(const mpy_pages_t *p, uint64_t at, uint64_t hi) {
    mpy_scanned_t found;
    mpy_scan_t scan = {.size = sizeof scan, .start = source(p, at), .end = source(p, hi), .vec = (uint64_t)&found,
                       .vec_len = 1, .max_pages = 1, .category_anyof_mask = MPY_SCAN_PRESENT | MPY_SCAN_SWAPPED,
                       .return_mask = MPY_SCAN_PRESENT};
    if (p->map->path[0] || p->map->shared) return at;
    const int regions = ioctl(pagemap, MPY_SCAN, &scan);
    if (regions < 0) return at; /* an older kernel */
    return regions ? at + (found.start - scan.start) : hi;
}

/* The runs in [lo, hi). */
static int for_each_run(mpy_image_output_t *o, const mpy_pages_t *p, uint64_t lo, uint64_t hi, visit_t *visit) {
    static uint64_t entries[PAGEMAP_CHUNK];
    const mpy_map_t *m = p->map;
    uint64_t file_end = m->lo, run_lo = lo;
    enum kind run_kind = ZERO;
    if (p->file && p->file->bytes > m->offset) {
        file_end = m->lo + MPY_PAGE_UP(p->file->bytes - m->offset);
        if (file_end > m->hi) file_end = m->hi;
    }
    for (uint64_t at = lo, pages; at < hi; at += pages * PAGE) {
        if (mpy_image_output_cancelled(o)) return -1;
        if (run_kind == ZERO) at = next_filled(p, at, hi);
        pages = (hi - at) / PAGE;
        if (pages > PAGEMAP_CHUNK) pages = PAGEMAP_CHUNK;
        if (pread(pagemap, entries, pages * 8, (off_t)(source(p, at) / PAGE * 8)) != (ssize_t)(pages * 8))
            return mpy_image_output_fail(o, "cannot read /proc/self/pagemap");
        find_untouched(p, at, pages, entries);
        for (uint64_t i = 0; i < pages; i++) {
            uint64_t address = at + i * PAGE;
            enum kind kind = kind_of(p, address, entries[i], file_end);
            if (kind == run_kind) continue;
            if (run_kind != ZERO && visit(o, p, run_kind, run_lo, address)) return -1;
            run_lo = address;
            run_kind = kind;
        }
    }
    return run_kind != ZERO ? visit(o, p, run_kind, run_lo, hi) : 0;
}

/* The same in the whole region, without pages that are kept because nobody has written to them: `keep` gets these. */
static int for_each_written(mpy_image_output_t *o, const mpy_pages_t *p, visit_t *visit,
                            int (*keep)(mpy_image_output_t *o, uint64_t lo, uint64_t hi)) {
    const mpy_map_t *m = p->map;
    if (!p->watched) return for_each_run(o, p, m->lo, m->hi, visit);
    for (uint64_t at = m->lo, end; at < m->hi; at = end)
        if (mpy_dirty_is_unwritten(at, m->hi, &end) ? keep(o, at, end) : for_each_run(o, p, at, end, visit)) return -1;
    return 0;
}

static int write_kept(mpy_image_output_t *o, uint64_t lo, uint64_t hi) {
    mpy_dirty_hold(tracker, lo, hi);
    return mpy_image_output_kept(o, lo, hi - lo);
}

int mpy_pages_write(mpy_image_output_t *o, const mpy_pages_t *p, mpy_dirty_image_t *track) {
    tracker = track;
    return for_each_written(o, p, write_run, write_kept);
}

static int copy_no_kept(mpy_image_output_t *o, uint64_t lo, uint64_t hi) {
    (void)o, (void)lo, (void)hi;
    return 0;
}

/* Room that gets memory page by page, even if the program has locked all that will be mapped (mlockall). A huge page
 * would also fill pages that are not copied: there is none. */
static long map_sparsely(uint64_t bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const uint32_t locked = MPY_TRAP->lock_future;
    if (locked) mpy_sys(SYS_mlockall, MCL_FUTURE | MCL_ONFAULT);
    long at = mpy_sys(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (locked) mpy_sys(SYS_mlockall, locked);
    if (mpy_sys_failed(at)) return at;
    if (locked) mpy_sys(SYS_munlock, at, bytes);
    mpy_sys(SYS_madvise, at, bytes, MADV_NOHUGEPAGE);
    return at;
}

int mpy_pages_copy(mpy_image_output_t *o, mpy_pages_t *p, uint64_t *most) {
    long at = map_sparsely(p->map->hi - p->map->lo);
    if (mpy_sys_failed(at) && *most < UINT64_MAX) return 1;
    if (mpy_sys_failed(at)) {
        errno = (int)-at;
        return mpy_image_output_fail(o, "a copy of memory");
    }
    copy_place = (char *)at;
    copy_most = *most;
    int bad = for_each_written(o, p, copy_run, copy_no_kept);
    *most = copy_most;
    p->copy = copy_place;
    if (!bad || copy_most) return bad;
    mpy_pages_free_copy(p);
    return 1;
}

void mpy_pages_free_copy(mpy_pages_t *p) {
    if (p->copy) mpy_sys(SYS_munmap, p->copy, p->map->hi - p->map->lo);
    p->copy = NULL;
}
