/* snapshot.c - takes the upper half and writes it to an image file (format: manapy/image.h), in two steps: what must be
 * read while the program is halted, and the pages.
 *
 * Half: lower. The first step may call libc: no thread of the program is inside the lower half, so its locks are free.
 * The second step may run in a forked process, and takes no lock (invariant 1 of image/write/output.c).
 *
 * Invariants
 *  1. The second step reads only the snapshot and the pages. So it may run beside the program, in a process that has
 *     the memory as it was at the first step. If all pages that it writes were copied, it may also run in this process.
 *  2. In a forked process some pages are not as they were: memory that is shared and has no file, private memory of
 *     a memfd or of POSIX shared memory, and memory with MADV_DONTFORK or MADV_WIPEONFORK. The first step copies them.
 *     So it reads the program's advice if there was such advice; otherwise the second step reads it. Pages that a
 *     device writes (pinned ones) it has: the kernel copies them during the fork (background.c asks for such a kernel).
 *  3. On any failure the file is removed and nothing else has changed.
 */
#include "snapshot.h"
#include "base/hex.h"
#include "base/io/host.h"
#include "base/now.h"
#include "base/proc/deleted.h"
#include "base/proc/fds.h"
#include "base/rank.h"
#include "base/reason.h"
#include "control/control.h"
#include "isolate/fdguard.h"
#include "isolate/trap/clock.h"
#include "isolate/trap/trap.h"
#include "process/memory/advice.h"
#include "process/cpu.h"
#include "process/fds/fds.h"
#include "process/memory/files.h"
#include "process/process.h"
#include "stop.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <manapy/image_path.h>
#include <manapy/syscall.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "functions.h" /* MPY_TABLE_HASH */

enum { LITTLE = 32 << 20 }; /* bytes that are copied faster than a process with much memory forks */

/* Adds room for `count` items, or fails. */
static void *add(mpy_snapshot_t *s, mpy_vector_t *v, size_t count) {
    void *items = mpy_vector_push(v, count);
    if (items) return items;
    errno = ENOMEM;
    mpy_image_output_fail(&s->out, "saving the state of the process");
    return NULL;
}

/* ---- regions ---- */

static int add_file(mpy_snapshot_t *s, const char *name, mpy_image_file_t file, long *index) {
    size_t length = strlen(name) + 1;
    file.path = s->strings.count;
    char *path = add(s, &s->strings, length);
    mpy_image_file_t *place = path ? add(s, &s->files, 1) : NULL;
    if (!place) return -1;
    memcpy(path, name, length);
    *place = file;
    *index = (long)s->files.count - 1;
    return 0;
}

/* *index: that of the mapped file in FILES; -1 if the image can't rely on the file: it was deleted or replaced, or is
 * not a regular file, or ends with the host (POSIX shared memory) and only shared mappings will remake it. */
static int find_file(mpy_snapshot_t *s, const mpy_map_t *m, long *index) {
    struct stat st;
    char now[PATH_MAX];
    const char *name = m->path;
    *index = -1;
    if (!m->shared && mpy_memory_file_is_posix(m->path)) return 0;
    if (m->deleted)
        name = m->shared && mpy_memory_file_find(m->device, m->inode, now, sizeof now) ? now : "";
    if (!name[0] || stat(name, &st) || !S_ISREG(st.st_mode) || st.st_ino != m->inode) return 0;
    mpy_image_file_t *files = s->files.items;
    for (size_t i = 0; i < s->files.count; i++)
        if (files[i].inode == m->inode && !strcmp((char *)s->strings.items + files[i].path, name)) {
            *index = (long)i;
            return 0;
        }
    mpy_image_file_t file = {.device = st.st_dev, .inode = st.st_ino, .bytes = (uint64_t)st.st_size};
    file.mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000ul + (uint64_t)st.st_mtim.tv_nsec;
    return add_file(s, name, file, index);
}

static int note_region(mpy_snapshot_t *s, const mpy_map_t *m) {
    long file;
    if (find_file(s, m, &file)) return -1;
    const mpy_image_file_t *known = file < 0 ? NULL : (mpy_image_file_t *)s->files.items + file;
    const mpy_image_file_t nameless = {.device = m->device, .inode = mpy_memory_file_inode(m->path, m->inode)};
    mpy_sharing_t sharing = known ? MPY_UNSHARED : mpy_memory_file_sharing(nameless.device, nameless.inode);
    int in_memory = m->shared && (known ? mpy_memory_file_is_posix((char *)s->strings.items + known->path)
                                        : sharing != MPY_UNSHARED);
    if (in_memory && file < 0 && add_file(s, "", nameless, &file)) return -1;
    mpy_image_region_t *r = add(s, &s->regions, 1);
    if (!r) return -1;
    *r = (mpy_image_region_t){.lo = m->lo, .hi = m->hi, .prot = m->prot, .file_offset = m->offset};
    mpy_advice_policy(r);
    if (m->shared) r->flags |= MPY_REGION_SHARED;
    if (file >= 0) { r->flags |= MPY_REGION_FILE; r->file = (uint32_t)file; }
    if (in_memory) r->flags |= MPY_REGION_MEMORY_FILE;
    if (in_memory && (known ? mpy_memory_file_is_theirs(m->device, m->inode) : sharing == MPY_SHARED_BY_RANKS))
        r->flags |= MPY_REGION_OF_RANKS;
    if (m->shared && file >= 0 && !in_memory) return 0; /* its content is in the file */
    mpy_pages_t *pages = add(s, &s->pages, 1);
    if (!pages) return -1;
    *pages = (mpy_pages_t){.map = m, .fd = MPY_PAGES_NOT_OPEN};
    return 0;
}

/* FILES may move while regions are noted. */
static void link_files(mpy_snapshot_t *s) {
    const mpy_image_region_t *region = s->regions.items;
    mpy_pages_t *pages = s->pages.items;
    for (size_t i = 0; i < s->pages.count; i++) {
        while (region->lo != pages[i].map->lo) region++;
        if ((region->flags & MPY_REGION_FILE) && !(region->flags & MPY_REGION_MEMORY_FILE))
            pages[i].file = (mpy_image_file_t *)s->files.items + region->file;
    }
}

/* Invariant 4 of pages.c */
static void note_descriptor(mpy_snapshot_t *s, int fd) {
    mpy_pages_t *pages = s->pages.items;
    struct stat st;
    const int flags = fcntl(fd, F_GETFL);
    if (mpy_fd_is_lower(fd) || flags < 0 || flags & O_PATH || fstat(fd, &st) || !S_ISREG(st.st_mode)) return;
    const int reads = (flags & O_ACCMODE) != O_WRONLY && !(flags & O_DIRECT);
    for (size_t i = 0; i < s->pages.count; i++) {
        const mpy_image_file_t *file = pages[i].file;
        if (file && pages[i].fd < 0 && file->inode == st.st_ino && file->device == st.st_dev)
            pages[i].fd = reads ? fd : MPY_PAGES_UNREADABLE;
    }
}

static void note_descriptors(mpy_snapshot_t *s) {
    mpy_fd_list_t list = mpy_fd_list_open(0);
    for (int fd; (fd = mpy_fd_list_next(&list)) >= 0;) note_descriptor(s, fd);
    mpy_fd_list_close(&list);
}

/* Each mapping has become a region. */
static int note_advice(mpy_snapshot_t *s) {
    mpy_image_region_t *regions = s->regions.items;
    if (mpy_maps_advice(s->maps, s->nmaps)) return mpy_image_output_fail(&s->out, "cannot read /proc/self/smaps");
    for (long i = 0; i < s->nmaps; i++) regions[i].flags |= s->maps[i].advice;
    s->advised = 1;
    return 0;
}

static int note_regions(mpy_snapshot_t *s, char *error, size_t n) {
    s->nmaps = mpy_maps_read(&s->maps, error, n);
    if (s->nmaps < 0) return -1;
    mpy_memory_files_look();
    /* the program may have mapped more since CHECK */
    if (mpy_maps_judge(s->maps, s->nmaps, error, n) || mpy_memory_files_check(error, n)) return -1;
    for (long i = 0; i < s->nmaps; i++)
        if (note_region(s, &s->maps[i])) return -1;
    link_files(s);
    note_descriptors(s);
    return 0;
}

/* Invariant 2 */
static int copy_what_forks_lose(mpy_snapshot_t *s) {
    mpy_pages_t *pages = s->pages.items;
    if (mpy_pages_begin(&s->out)) return -1;
    int bad = 0;
    for (size_t i = 0; i < s->pages.count && !bad; i++) {
        const mpy_map_t *m = pages[i].map;
        uint64_t most = UINT64_MAX;
        if (m->shared || mpy_is_memfd(m->path) || mpy_memory_file_is_posix(m->path) ||
            m->advice & (MPY_REGION_DONT_FORK | MPY_REGION_WIPE_ON_FORK))
            bad = mpy_pages_copy(&s->out, &pages[i], &most);
    }
    mpy_pages_end();
    return bad;
}

/* ---- threads, process and descriptors ---- */

static int note_threads(mpy_snapshot_t *s) {
    mpy_stop_interrupt();
    int count = mpy_stop_count();
    mpy_image_thread_t *threads = add(s, &s->threads, (size_t)count);
    if (!threads) return -1;
    memset(threads, 0, (size_t)count * sizeof *threads);
    for (int i = 0; i < count; i++) mpy_stop_describe(i, &threads[i]);
    return 0;
}

static int note_process(mpy_snapshot_t *s, char *error, size_t n) {
    int32_t tids[MPY_THREADS_MAX];
    const mpy_image_thread_t *threads = s->threads.items;
    for (size_t i = 0; i < s->threads.count; i++) tids[i] = mpy_id_real(threads[i].tid);
    const mpy_halted_t halted = {mpy_stop_call, tids, s->threads.count};
    if (mpy_process_save(&s->process, mpy_id_shown, &halted, error, n)) return -1;
    if (mpy_fds_save(&s->fds, mpy_id_shown, error, n)) return -1;
    if (!s->process.failed && !s->fds.failed) return 0;
    return mpy_reason(error, n, "saving the state of the process: %s", strerror(ENOMEM));
}

static void note_header(mpy_snapshot_t *s) {
    mpy_image_header_t *h = &s->out.header;
    memcpy(h->magic, MPY_IMAGE_MAGIC, sizeof h->magic);
    h->version = MPY_IMAGE_VERSION;
    h->boundary_version = MPY_BOUNDARY_VERSION;
    h->table_hash = MPY_TABLE_HASH;
    h->rank = MPY_LOWER->rank;
    h->size = MPY_LOWER->size;
    h->generation = MPY_LOWER->generation;
    h->created_ns = (uint64_t)mpy_now_ns(CLOCK_REALTIME);
    mpy_cpu_features(h->cpu_features);
    h->xsave_bytes = mpy_cpu_xsave_bytes();
    mpy_hostname(h->host, sizeof h->host);
    h->local_size = (uint32_t)mpy_control_local_size();
    h->gpu = MPY_UPPER->callbacks.gpu;
    snprintf(h->program, sizeof h->program, "%.*s", (int)sizeof h->program - 1, MPY_TRAP->exe);
}

/* ---- the steps ---- */

static int cancelled(void) { return mpy_control_cancelled(); }

static const char hash[] = "hash"; /* what needs nothing from the kernel */

static void choose_way(mpy_snapshot_t *s, const char *wanted) {
    /* the program may have closed a GPU only for this moment */
    const char *way = mpy_dirty_has_device() || MPY_UPPER->callbacks.gpu ? NULL : mpy_dirty_way(wanted);
    if (way && strcmp(way, hash)) s->way = way;
}

static void watch(mpy_snapshot_t *s) {
    mpy_pages_t *pages = s->pages.items;
    for (size_t i = 0; i < s->pages.count; i++) {
        const mpy_map_t *m = pages[i].map;
        pages[i].watched = mpy_pages_may_be_watched(m) && mpy_dirty_watch(s->track, s->way, m->lo, m->hi);
    }
    mpy_dirty_watched(s->way);
}

/* Begins to look for pages that have not changed since the base of the order. Nothing may write to the program's memory
 * any more: what is written from now on counts as changed after this image. */
static void begin_tracking(mpy_snapshot_t *s, const mpy_image_order_t *order) {
    uint64_t pages = 0;
    for (size_t i = 0; i < s->pages.count; i++) {
        const mpy_map_t *m = ((const mpy_pages_t *)s->pages.items)[i].map;
        pages += (m->hi - m->lo) / MPY_IMAGE_PAGE;
    }
    const mpy_dirty_image_t *base = mpy_dirty_begin(order->epoch, order->base_epoch, pages, &s->track);
    if (s->track) choose_way(s, order->way);
    if (s->way != hash) watch(s);
    if (base == NULL) return;
    mpy_image_header_t *h = &s->out.header;
    snprintf(h->parent, sizeof h->parent, "%s/rank-%05d.img", order->base, MPY_LOWER->rank);
    memcpy(h->parent_seal, base->seal, sizeof h->parent_seal);
    h->parent_crc = base->crc;
}

int mpy_snapshot_take(mpy_snapshot_t *s, const mpy_image_order_t *order, int forked, mpy_snapshot_outcome_t *outcome,
                      char *error, size_t n) {
    *outcome = (mpy_snapshot_outcome_t){0};
    *s = (mpy_snapshot_t){.begun = mpy_now_ns(CLOCK_MONOTONIC),
                          .way = hash,
                          .out = {.runs.size = sizeof(mpy_image_run_t),
                                  .kept.size = sizeof(mpy_image_kept_t),
                                  .cancelled = cancelled,
                                  .failure = &outcome->failure},
                          .regions.size = sizeof(mpy_image_region_t),
                          .files.size = sizeof(mpy_image_file_t),
                          .strings.size = 1,
                          .pages.size = sizeof(mpy_pages_t),
                          .threads.size = sizeof(mpy_image_thread_t)};
    s->members = order->members, s->nmembers = order->nmembers;
    mpy_image_member_path(s->path, sizeof s->path, order->directory, MPY_LOWER->rank, order->index);
    s->out.fd = open(s->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (s->out.fd < 0) return mpy_reason(error, n, "%s: %s", s->path, strerror(errno));
    mpy_image_keys(&s->out.keys, mpy_lower_secret());
    mpy_image_seal_begin(&s->out.seal, &s->out.keys);
    mpy_pages_remember();
    mpy_signals_collect();
    mpy_clocks_note();
    note_header(s);
    error[0] = '\0';
    if (!note_regions(s, error, n) && !(MPY_TRAP->fork_advice && note_advice(s)) &&
        !(forked && copy_what_forks_lose(s)) && !note_threads(s) && !note_process(s, error, n)) {
        if (order->way[0]) begin_tracking(s, order);
        return 0;
    }
    if (!error[0]) mpy_snapshot_explain(outcome, error, n);
    mpy_snapshot_end(s, 1);
    return -1;
}

int mpy_snapshot_copy(mpy_snapshot_t *s) {
    mpy_pages_t *pages = s->pages.items;
    uint64_t most = LITTLE;
    int r = 0;
    if (s->way == hash || !s->out.header.parent[0] || (!s->advised && !mpy_maps_advice_is_known())) return 1;
    if ((!s->advised && note_advice(s)) || mpy_pages_begin(&s->out)) return -1;
    for (size_t i = 0; i < s->pages.count && !r; i++)
        if (!pages[i].copy) r = mpy_pages_copy(&s->out, &pages[i], &most);
    mpy_pages_end();
    return r;
}

/* An image that keeps nothing needs no parent. */
static int write_kept(mpy_snapshot_t *s) {
    mpy_image_output_t *o = &s->out;
    mpy_image_header_t *h = &o->header;
    if (o->kept.count > 0) return mpy_image_output_vector(o, MPY_SECTION_KEPT, &o->kept);
    memset(h->parent, 0, sizeof h->parent);
    memset(h->parent_seal, 0, sizeof h->parent_seal);
    h->parent_crc = 0;
    return 0;
}

static int write_all(mpy_snapshot_t *s) {
    static const char blank[MPY_IMAGE_PAGE];
    mpy_image_output_t *o = &s->out;
    const mpy_pages_t *pages = s->pages.items;
    if (!s->advised && note_advice(s)) return -1;
    if (mpy_image_output_put(o, blank, sizeof blank)) return -1; /* the place of the header */
    for (size_t i = 0; i < s->pages.count; i++)
        if (mpy_pages_write(o, &pages[i], s->track)) return -1;
    if (mpy_image_output_vector(o, MPY_SECTION_REGIONS, &s->regions) ||
        mpy_image_output_vector(o, MPY_SECTION_RUNS, &o->runs) ||
        mpy_image_output_vector(o, MPY_SECTION_FILES, &s->files) ||
        mpy_image_output_vector(o, MPY_SECTION_STRINGS, &s->strings) ||
        mpy_image_output_vector(o, MPY_SECTION_THREADS, &s->threads) ||
        mpy_image_output_section(o, MPY_SECTION_PROCESS, s->process.data, s->process.bytes, 1) ||
        mpy_image_output_section(o, MPY_SECTION_FDS, s->fds.data, s->fds.bytes, 1) || write_kept(s) ||
        (s->members && mpy_image_output_section(o, MPY_SECTION_TREE, s->members, s->nmembers * sizeof *s->members,
                                                s->nmembers)))
        return -1;
    return mpy_image_output_finish(o);
}

int mpy_snapshot_processors(void) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    mpy_sys(SYS_sched_getaffinity, 0, sizeof allowed, &allowed);
    const int each = CPU_COUNT(&allowed) / mpy_control_local_size();
    return each > 1 ? each : 1;
}

int mpy_snapshot_write(mpy_snapshot_t *s, int processors, mpy_snapshot_outcome_t *outcome) {
    mpy_zip_begin(&s->out.zip, mpy_options.compress, processors);
    int bad = mpy_pages_begin(&s->out) || write_all(s);
    mpy_pages_end();
    mpy_zip_end(&s->out.zip);
    if (bad) return -1;
    const mpy_image_header_t *h = &s->out.header;
    double seconds = 1e-9 * (double)(mpy_now_ns(CLOCK_MONOTONIC) - s->begun);
    outcome->result =
        (mpy_image_result_t){h->memory_bytes, s->out.kept_bytes, h->file_bytes, h->header_crc, seconds, "", ""};
    if (s->track) memcpy(outcome->result.way, s->way, strlen(s->way));
    mpy_hex(h->seal, MPY_IMAGE_SEAL, outcome->result.seal);
    if (s->track) mpy_dirty_finish(s->track, h);
    return 0;
}

void mpy_snapshot_end(mpy_snapshot_t *s, int failed) {
    mpy_pages_t *pages = s->pages.items;
    for (size_t i = 0; i < s->pages.count; i++) mpy_pages_free_copy(&pages[i]);
    close(s->out.fd);
    if (failed) unlink(s->path);
    if (s->nmaps > 0) mpy_maps_free(s->maps, s->nmaps);
    mpy_vector_t *vectors[] = {&s->regions, &s->files, &s->strings, &s->pages, &s->threads, &s->out.runs, &s->out.kept};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) mpy_vector_free(vectors[i]);
    mpy_blob_free(&s->process);
    mpy_blob_free(&s->fds);
}

int mpy_snapshot_explain(const mpy_snapshot_outcome_t *outcome, char *error, size_t n) {
    const mpy_image_failure_t *f = &outcome->failure;
    if (!f->error_number) return mpy_reason(error, n, "%s", f->what);
    return mpy_reason(error, n, "%s: %s", f->what, strerror(f->error_number));
}
