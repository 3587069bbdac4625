/* snapshot.c - writes the upper half to an image file (format: manapy/image.h).
 *
 * Half: lower; libc may be called: no thread of the program is inside the lower half, so its locks are free.
 *
 * Invariants
 *  1. It reads the upper half's memory and writes only the file. Pages that were never touched are recognised in
 *     pagemap and not read. Pages of zeros are not written. Pages of mapped files that the program hasn't changed are
 *     represented by their checksum.
 *  2. The header is written last, before the single fsync: an interrupted image has no header.
 *  3. On any failure the file is removed and nothing else has changed.
 */
#include "snapshot.h"
#include "base/hex.h"
#include "base/now.h"
#include "base/rank.h"
#include "control/control.h"
#include "image/file/crc32c.h"
#include "image/file/seal.h"
#include "isolate/trap/clock.h"
#include "isolate/trap/trap.h"
#include "maps.h"
#include "process/advice.h"
#include "process/blob.h"
#include "process/cpu.h"
#include "process/fds/fds.h"
#include "process/process.h"
#include "stop.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <manapy/image.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "functions.h" /* MPY_TABLE_HASH */

#define PAGE MPY_IMAGE_PAGE
#define PAGEMAP_CHUNK 4096ul /* entries read at once: 16 MiB of memory */
#define WRITE_CHUNK (8ul << 20)
#define PM_PRESENT (1ul << 63)
#define PM_SWAPPED (1ul << 62)
#define PM_FILE (1ul << 61) /* a page of a file, or of shared memory */

typedef struct vector { void *items; size_t count, room, size; } vector_t;

typedef struct writer {
    int fd, pagemap, mem;
    uint64_t offset, memory_bytes;
    uint64_t synced; /* write-back has been started up to this offset */
    mpy_image_keys_t keys;
    mpy_hmac_t seal; /* of the sections so far */
    vector_t regions, runs, files, strings;
    char *error;
    size_t n;
} writer_t;

static int fail(writer_t *w, const char *what) {
    snprintf(w->error, w->n, "%s: %s", what, strerror(errno));
    return -1;
}

/* Ends the process if memory runs out: a run needs 64 bytes, while the job has gigabytes. */
static void *vector_push(vector_t *v, size_t count) {
    if (v->count + count > v->room) {
        v->room = 2 * (v->count + count) + 64;
        v->items = realloc(v->items, v->room * v->size);
        if (!v->items) mpy_fail(1, "out of memory while saving");
    }
    void *at = (char *)v->items + v->count * v->size;
    v->count += count;
    return at;
}

/* The disk of another rank may be full. All ranks stay halted until the last one has noticed this. */
static int given_up(writer_t *w) {
    if (!mpy_control_cancelled()) return 0;
    snprintf(w->error, w->n, "the checkpoint was cancelled");
    return -1;
}

static int put(writer_t *w, const void *data, uint64_t bytes) {
    const char *p = data;
    while (bytes) {
        if (given_up(w)) return -1;
        ssize_t k = pwrite(w->fd, p, bytes < WRITE_CHUNK ? bytes : WRITE_CHUNK, (off_t)w->offset);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return fail(w, "cannot write the image");
        p += k; bytes -= (uint64_t)k; w->offset += (uint64_t)k;
    }
    /* start write-back early, so that the fsync at the end finds little to do */
    if (w->offset - w->synced >= 4 * WRITE_CHUNK) {
        sync_file_range(w->fd, (off_t)w->synced, (off_t)(w->offset - w->synced), SYNC_FILE_RANGE_WRITE);
        w->synced = w->offset;
    }
    return 0;
}

static int is_zero(const void *page) {
    const uint64_t *p = page;
    for (int i = 0; i < (int)(PAGE / 8); i += 8)
        if (p[i] | p[i + 1] | p[i + 2] | p[i + 3] | p[i + 4] | p[i + 5] | p[i + 6] | p[i + 7]) return 0;
    return 1;
}

/* ---- runs ---- */

static int data_run(writer_t *w, uint64_t lo, uint64_t hi, int readable) {
    for (uint64_t at = lo; at < hi;) {
        uint64_t bytes = hi - at < MPY_RUN_MAX ? hi - at : MPY_RUN_MAX;
        mpy_image_run_t run = {at, bytes, w->offset, MPY_RUN_DATA, 0, {0}};
        mpy_polyval_t hash = w->keys.hash;
        for (uint64_t done = 0; done < bytes;) {
            static char copy[1 << 20]; /* only the worker thread runs this */
            uint64_t k = bytes - done < WRITE_CHUNK ? bytes - done : WRITE_CHUNK;
            const void *source = (const void *)(at + done);
            if (!readable) { /* PROT_NONE or write-only memory: read it through /proc/self/mem */
                if (k > sizeof copy) k = sizeof copy;
                if (pread(w->mem, copy, k, (off_t)(at + done)) != (ssize_t)k)
                    return fail(w, "cannot read protected memory");
                source = copy;
            }
            run.crc = mpy_crc32c(run.crc, source, k);
            mpy_polyval_update(&hash, source, k);
            if (put(w, source, k)) return -1;
            done += k;
        }
        mpy_image_seal_run(&w->keys, &run, &hash, run.seal);
        *(mpy_image_run_t *)vector_push(&w->runs, 1) = run;
        w->memory_bytes += bytes;
        at += bytes;
    }
    return 0;
}

/* Checksums of unchanged file ranges, kept from one checkpoint to the next (key: file identity and range). */
typedef struct known { uint64_t device, inode, mtime_ns, bytes, offset, length; uint32_t crc; } known_t;
static vector_t known_crcs = {.size = sizeof(known_t)};

static int file_crc(writer_t *w, const char *path, const mpy_image_file_t *file, uint64_t offset, uint64_t length,
                    uint32_t *crc) {
    for (size_t i = 0; i < known_crcs.count; i++) {
        const known_t *k = (const known_t *)known_crcs.items + i;
        if (k->device == file->device && k->inode == file->inode && k->mtime_ns == file->mtime_ns &&
            k->bytes == file->bytes && k->offset == offset && k->length == length) {
            *crc = k->crc;
            return 0;
        }
    }
    static char copy[1 << 20];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(w, path);
    *crc = 0;
    for (uint64_t done = 0; done < length;) {
        if (given_up(w)) { close(fd); return -1; }
        uint64_t k = length - done < sizeof copy ? length - done : sizeof copy;
        memset(copy, 0, k); /* the last page of a file is filled up with zeros in memory */
        ssize_t got = pread(fd, copy, k, (off_t)(offset + done));
        if (got < 0 || (got == 0 && offset + done < file->bytes)) { close(fd); return fail(w, path); }
        *crc = mpy_crc32c(*crc, copy, k);
        done += k;
    }
    close(fd);
    *(known_t *)vector_push(&known_crcs, 1) =
        (known_t){file->device, file->inode, file->mtime_ns, file->bytes, offset, length, *crc};
    return 0;
}

static int file_run(writer_t *w, const mpy_map_t *m, const char *path, const mpy_image_file_t *file, uint64_t lo,
                    uint64_t hi) {
    for (uint64_t at = lo; at < hi;) {
        uint64_t bytes = hi - at < MPY_RUN_MAX ? hi - at : MPY_RUN_MAX;
        mpy_image_run_t run = {at, bytes, m->offset + (at - m->lo), MPY_RUN_FILE, 0, {0}};
        if (file_crc(w, path, file, run.offset, bytes, &run.crc)) return -1;
        *(mpy_image_run_t *)vector_push(&w->runs, 1) = run;
        w->memory_bytes += bytes;
        at += bytes;
    }
    return 0;
}

/* ---- regions ---- */

/* Index of the mapped file in FILES. Returns -1 if the image can't rely on the file: it was deleted or replaced, or is
 * not a regular file. */
static long file_index(writer_t *w, const mpy_map_t *m) {
    struct stat st;
    if (!m->path[0] || m->deleted || stat(m->path, &st) || !S_ISREG(st.st_mode) || st.st_ino != m->inode) return -1;
    mpy_image_file_t *files = w->files.items;
    for (size_t i = 0; i < w->files.count; i++)
        if (files[i].inode == m->inode && !strcmp((char *)w->strings.items + files[i].path, m->path)) return (long)i;
    size_t length = strlen(m->path) + 1, at = w->strings.count;
    memcpy(vector_push(&w->strings, length), m->path, length);
    *(mpy_image_file_t *)vector_push(&w->files, 1) =
        (mpy_image_file_t){at, st.st_dev, st.st_ino, (uint64_t)st.st_size,
                           (uint64_t)st.st_mtim.tv_sec * 1000000000ul + (uint64_t)st.st_mtim.tv_nsec};
    return (long)w->files.count - 1;
}

enum page { ZERO, DATA, FROM_FILE };

/* Classifies a page by its pagemap entry. `file_end`: the address where the mapped file ends (m->lo if the image can't
 * rely on the file). */
static enum page classify(const mpy_map_t *m, uint64_t address, uint64_t entry, uint64_t file_end) {
    int own = (entry & PM_SWAPPED) || ((entry & PM_PRESENT) && (m->shared || !(entry & PM_FILE)));
    if (!m->path[0] || m->shared) return entry & (PM_PRESENT | PM_SWAPPED) ? DATA : ZERO;
    if (own) return DATA;
    if (address < file_end) return FROM_FILE;
    return entry & PM_PRESENT ? DATA : ZERO;
}

static int region_pages(writer_t *w, const mpy_map_t *m, const char *path, const mpy_image_file_t *file) {
    static uint64_t entries[PAGEMAP_CHUNK];
    uint64_t file_end = m->lo, run_lo = m->lo;
    enum page run_kind = ZERO;
    int lost_file = m->path[0] && !m->shared && !file; /* a deleted file: its pages exist only here */
    /* beyond the end of a truncated file a direct read would cause SIGBUS */
    int readable = (m->prot & PROT_READ) && !lost_file;
    if (file && file->bytes > m->offset) {
        file_end = m->lo + ((file->bytes - m->offset + PAGE - 1) & ~(uint64_t)(PAGE - 1));
        if (file_end > m->hi) file_end = m->hi;
    }
    for (uint64_t at = m->lo; at <= m->hi;) {
        if (given_up(w)) return -1;
        uint64_t pages = (m->hi - at) / PAGE;
        if (pages > PAGEMAP_CHUNK) pages = PAGEMAP_CHUNK;
        if (pages && pread(w->pagemap, entries, pages * 8, (off_t)(at / PAGE * 8)) != (ssize_t)(pages * 8))
            return fail(w, "cannot read /proc/self/pagemap");
        for (uint64_t i = 0; i <= pages; i++) {
            uint64_t address = at + i * PAGE;
            if (i == pages && address < m->hi) break;
            enum page kind = ZERO;
            if (address < m->hi) {
                kind = classify(m, address, entries[i], file_end);
                if (lost_file && kind == ZERO) kind = DATA;
                if (kind == DATA && readable && is_zero((const void *)address)) kind = ZERO;
                if (kind == ZERO && address < file_end) kind = DATA; /* zeros over a file's page must be written */
            }
            if (kind == run_kind && address < m->hi) continue;
            if (run_kind == DATA && data_run(w, run_lo, address, readable)) return -1;
            if (run_kind == FROM_FILE && file_run(w, m, path, file, run_lo, address)) return -1;
            run_lo = address;
            run_kind = kind;
        }
        if (pages == 0) break;
        at += pages * PAGE;
        if (at == m->hi) break;
    }
    return 0;
}

static int save_region(writer_t *w, const mpy_map_t *m) {
    long index = file_index(w, m);
    mpy_image_region_t r = {.lo = m->lo, .hi = m->hi, .prot = m->prot, .flags = m->advice, .file_offset = m->offset};
    mpy_advice_policy(&r);
    if (m->shared) r.flags |= MPY_REGION_SHARED;
    if (index >= 0) { r.flags |= MPY_REGION_FILE; r.file = (uint32_t)index; }
    *(mpy_image_region_t *)vector_push(&w->regions, 1) = r;
    if (m->shared && index >= 0) return 0; /* its content is in the file */
    mpy_image_file_t file; /* a copy, because the vector may move */
    if (index >= 0) file = ((mpy_image_file_t *)w->files.items)[index];
    return region_pages(w, m, m->path, index >= 0 ? &file : NULL);
}

static int save_memory(writer_t *w) {
    mpy_map_t *maps;
    long count = mpy_maps_read(&maps, 1, w->error, w->n);
    if (count < 0) return -1;
    int bad = 0;
    for (long i = 0; i < count && !bad; i++) bad = save_region(w, &maps[i]);
    mpy_maps_free(maps, count);
    return bad;
}

/* ---- sections and header ---- */

static int put_section(writer_t *w, mpy_image_header_t *h, uint32_t kind, const void *data, uint64_t bytes,
                       uint64_t count) {
    static const char padding[8];
    if (w->offset % 8 && put(w, padding, 8 - w->offset % 8)) return -1;
    mpy_hmac_update(&w->seal, data, bytes);
    h->sections[h->nsections++] = (mpy_image_section_t){kind, mpy_crc32c(0, data, bytes), w->offset, bytes, count};
    return put(w, data, bytes);
}

static int put_vector(writer_t *w, mpy_image_header_t *h, uint32_t kind, const vector_t *v) {
    return put_section(w, h, kind, v->items, v->count * v->size, v->count);
}

static int put_threads(writer_t *w, mpy_image_header_t *h) {
    int count = mpy_stop_count();
    mpy_image_thread_t *threads = calloc((size_t)count, sizeof *threads);
    if (!threads) return fail(w, "threads");
    for (int i = 0; i < count; i++) mpy_stop_describe(i, &threads[i]);
    int r = put_section(w, h, MPY_SECTION_THREADS, threads, (uint64_t)count * sizeof *threads, (uint64_t)count);
    free(threads);
    return r;
}

static int put_blob(writer_t *w, mpy_image_header_t *h, uint32_t kind, int (*save)(mpy_blob_t *, char *, size_t)) {
    mpy_blob_t blob;
    mpy_blob_init(&blob);
    int r = save(&blob, w->error, w->n);
    if (!r && blob.failed) { errno = ENOMEM; r = fail(w, "saving the state of the process"); }
    if (!r) r = put_section(w, h, kind, blob.data, blob.bytes, 1);
    mpy_blob_free(&blob);
    return r;
}

static int put_header(writer_t *w, mpy_image_header_t *h) {
    memcpy(h->magic, MPY_IMAGE_MAGIC, sizeof h->magic);
    h->version = MPY_IMAGE_VERSION;
    h->boundary_version = MPY_BOUNDARY_VERSION;
    h->table_hash = MPY_TABLE_HASH;
    h->rank = MPY_LOWER->rank;
    h->size = MPY_LOWER->size;
    h->generation = MPY_LOWER->generation;
    h->created_ns = (uint64_t)mpy_now_ns(CLOCK_REALTIME);
    h->file_bytes = w->offset;
    h->memory_bytes = w->memory_bytes;
    mpy_cpu_features(h->cpu_features);
    h->xsave_bytes = mpy_cpu_xsave_bytes();
    gethostname(h->host, sizeof h->host - 1);
    snprintf(h->program, sizeof h->program, "%.*s", (int)sizeof h->program - 1, MPY_TRAP->exe);
    mpy_image_seal_finish(&w->seal, h, h->seal);
    h->header_crc = mpy_crc32c(0, h, offsetof(mpy_image_header_t, header_crc));
    if (pwrite(w->fd, h, sizeof *h, 0) != sizeof *h) return fail(w, "cannot write the image");
    return 0;
}

static int save_process(mpy_blob_t *b, char *error, size_t n) { return mpy_process_save(b, mpy_id_shown, error, n); }

static int write_all(writer_t *w, mpy_image_header_t *h) {
    static const char blank[PAGE];
    mpy_signals_collect();
    mpy_clocks_note();
    if (put(w, blank, PAGE) || save_memory(w)) return -1;
    if (put_vector(w, h, MPY_SECTION_REGIONS, &w->regions) || put_vector(w, h, MPY_SECTION_RUNS, &w->runs) ||
        put_vector(w, h, MPY_SECTION_FILES, &w->files) || put_vector(w, h, MPY_SECTION_STRINGS, &w->strings) ||
        put_threads(w, h) || put_blob(w, h, MPY_SECTION_PROCESS, save_process) ||
        put_blob(w, h, MPY_SECTION_FDS, mpy_fds_save) || put_header(w, h))
        return -1;
    return fsync(w->fd) ? fail(w, "cannot write the image (fsync)") : 0;
}

int mpy_snapshot_write(const char *directory, mpy_image_result_t *result, char *error, size_t n) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/rank-%05d.img", directory, MPY_LOWER->rank);
    int64_t begin = mpy_now_ns(CLOCK_MONOTONIC);
    writer_t w = {.fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600),
                  .pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC),
                  .mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC),
                  .regions.size = sizeof(mpy_image_region_t),
                  .runs.size = sizeof(mpy_image_run_t),
                  .files.size = sizeof(mpy_image_file_t),
                  .strings.size = 1,
                  .error = error,
                  .n = n};
    mpy_image_header_t header = {0};
    int bad;
    mpy_image_keys(&w.keys, mpy_lower_secret());
    mpy_image_seal_begin(&w.seal, &w.keys);
    if (w.fd < 0) bad = fail(&w, path);
    else if (w.pagemap < 0 || w.mem < 0) bad = fail(&w, "cannot read /proc/self/pagemap or mem");
    else bad = write_all(&w, &header);
    double seconds = 1e-9 * (double)(mpy_now_ns(CLOCK_MONOTONIC) - begin);
    *result = (mpy_image_result_t){header.memory_bytes, w.offset, header.header_crc, seconds, ""};
    mpy_hex(header.seal, MPY_IMAGE_SEAL, result->seal);
    if (w.fd >= 0) close(w.fd);
    if (w.pagemap >= 0) close(w.pagemap);
    if (w.mem >= 0) close(w.mem);
    if (bad && w.fd >= 0) unlink(path);
    free(w.regions.items); free(w.runs.items); free(w.files.items); free(w.strings.items);
    return bad;
}
