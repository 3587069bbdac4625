/* reader.c - open an image: header and sections, with every bound checked before it is used. Lower half, libc allowed.
 *
 * Invariants
 *  1. No byte of the file is used before its checksum is verified, and no offset before it is known to be inside the
 *     file: a truncated or altered image causes a message, never a crash.
 *  2. After mpy_image_open: regions and runs are ascending, page-aligned and do not overlap; every run lies in one
 *     region; the data of runs lies between the header page and the end of the file, and has a length that fits their
 *     kind; a FILE run's region is mapped from a file that is listed; strings end in NUL; kept pages are ascending,
 *     page-aligned, in a region and in no run. If seals are checked, the header's seal is right, so the job has written
 *     all this.
 *  3. The same holds for the parents. Each is the image that its child names, by its identity, and has the child's
 *     kept pages, in a run with data or kept again. The last one of a chain has no parent. A circle is longer than
 *     MPY_CHAIN_MAX.
 *  4. The members of a tree are numbered from 0. The image of a member is the one that the rank's image names, by its
 *     identity.
 */
#include "reader.h"

#include "base/io/whole.h"
#include "base/reason.h"
#include "crc32c.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <manapy/boundary.h>
#include <manapy/image_path.h>
#include <manapy/own.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int mpy_image_read_at(const mpy_image_t *im, void *to, uint64_t bytes, uint64_t offset, char *err, size_t n) {
    ssize_t got = mpy_read_whole(im->fd, to, bytes, (off_t)offset);
    if (got < 0) return mpy_reason(err, n, "%s: cannot read: %s", im->path, strerror(errno));
    if ((uint64_t)got < bytes)
        return mpy_reason(err, n, "%s: truncated: ends at byte %llu", im->path,
                          (unsigned long long)offset + (unsigned long long)got);
    return 0;
}

static int read_header(mpy_image_t *im, int rank, int size, char *err, size_t n) {
    mpy_image_header_t *h = &im->header;
    struct stat st;
    if (fstat(im->fd, &st)) return mpy_reason(err, n, "%s: %s", im->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return mpy_reason(err, n, "%s: not a regular file", im->path);
    if (mpy_own_check(im->path, &st, 022, err, n)) return -1;
    if ((uint64_t)st.st_size < MPY_IMAGE_PAGE)
        return mpy_reason(err, n, "%s: truncated: %lld bytes are less than a header", im->path, (long long)st.st_size);
    if (mpy_image_read_at(im, h, sizeof *h, 0, err, n)) return -1;
    if (memcmp(h->magic, MPY_IMAGE_MAGIC, sizeof h->magic))
        return mpy_reason(err, n, "%s: not an image of manapy, or one whose writing was interrupted", im->path);
    if (h->version != MPY_IMAGE_VERSION)
        return mpy_reason(err, n, "%s: image format %u, this manapy reads format %u", im->path, h->version,
                          MPY_IMAGE_VERSION);
    char rest[MPY_IMAGE_PAGE - sizeof *h];
    if (mpy_image_read_at(im, rest, sizeof rest, sizeof *h, err, n)) return -1;
    int stray = 0;
    for (size_t i = 0; i < sizeof rest; i++) stray |= rest[i];
    if (stray || mpy_crc32c(0, h, offsetof(mpy_image_header_t, header_crc)) != h->header_crc)
        return mpy_reason(err, n, "%s: damaged: the header's checksum is wrong", im->path);
    if (h->boundary_version != MPY_BOUNDARY_VERSION)
        return mpy_reason(err, n, "%s: written by another manapy (boundary version %u, here %u)", im->path,
                          h->boundary_version, MPY_BOUNDARY_VERSION);
    if (h->file_bytes != (uint64_t)st.st_size)
        return mpy_reason(err, n, "%s: truncated or extended: %lld bytes instead of %llu", im->path,
                          (long long)st.st_size, (unsigned long long)h->file_bytes);
    if (size >= 0 && h->size != size)
        return mpy_reason(err, n, "%s: image of a job of %d ranks, not of %d", im->path, h->size, size);
    if (rank >= 0 && h->rank != rank)
        return mpy_reason(err, n, "%s: image of rank %d, not of rank %d", im->path, h->rank, rank);
    if (h->nsections > MPY_SECTIONS_MAX) return mpy_reason(err, n, "%s: damaged: %u sections", im->path, h->nsections);
    if (h->parent[0] == '/' || h->parent[sizeof h->parent - 1])
        return mpy_reason(err, n, "%s: damaged: the path of its parent is invalid", im->path);
    return 0;
}

/* Read one section into new memory (never NULL on success). record = 0: a blob. */
static int read_section(mpy_image_t *im, uint32_t kind, uint64_t record, int optional, void *out, uint64_t *count,
                        char *err, size_t n) {
    const mpy_image_section_t *s = NULL;
    for (uint32_t i = 0; i < im->header.nsections; i++)
        if (im->header.sections[i].kind == kind) s = &im->header.sections[i];
    if (!s) {
        if (optional) return 0;
        return mpy_reason(err, n, "%s: damaged: section %u is missing", im->path, kind);
    }
    if (s->offset % 8 || s->offset < MPY_IMAGE_PAGE || s->offset > im->header.file_bytes ||
        s->bytes > im->header.file_bytes - s->offset)
        return mpy_reason(err, n, "%s: damaged: section %u lies outside the file", im->path, kind);
    if (record && (s->count > s->bytes / record || s->count * record != s->bytes))
        return mpy_reason(err, n, "%s: damaged: section %u has %llu records in %llu bytes", im->path, kind,
                          (unsigned long long)s->count, (unsigned long long)s->bytes);
    void *p = malloc(s->bytes ? s->bytes : 1);
    if (!p) return mpy_reason(err, n, "%s: no memory for section %u", im->path, kind);
    *(void **)out = p; /* mpy_image_close frees it, also after the failures below */
    *count = record ? s->count : s->bytes;
    if (mpy_image_read_at(im, p, s->bytes, s->offset, err, n)) return -1;
    if (mpy_crc32c(0, p, s->bytes) != s->crc)
        return mpy_reason(err, n, "%s: damaged: the checksum of section %u is wrong", im->path, kind);
    return 0;
}

static int check_strings(const mpy_image_t *im, char *err, size_t n) {
    if (im->strings_bytes && im->strings[im->strings_bytes - 1])
        return mpy_reason(err, n, "%s: damaged: the string section has no end", im->path);
    for (uint64_t i = 0; i < im->nfiles; i++)
        if (im->files[i].path >= im->strings_bytes)
            return mpy_reason(err, n, "%s: damaged: file %llu has no path", im->path, (unsigned long long)i);
    return 0;
}

static int check_regions(const mpy_image_t *im, char *err, size_t n) {
    uint64_t end = 0;
    for (uint64_t i = 0; i < im->nregions; i++) {
        const mpy_image_region_t *r = &im->regions[i];
        if (r->lo % MPY_IMAGE_PAGE || r->hi % MPY_IMAGE_PAGE || r->lo < end || r->hi <= r->lo)
            return mpy_reason(err, n, "%s: damaged: region %llu (0x%llx-0x%llx) is out of order", im->path,
                              (unsigned long long)i, (unsigned long long)r->lo, (unsigned long long)r->hi);
        if ((r->flags & MPY_REGION_FILE) && r->file >= im->nfiles)
            return mpy_reason(err, n, "%s: damaged: region %llu refers to file %u of %llu", im->path,
                              (unsigned long long)i, r->file, (unsigned long long)im->nfiles);
        end = r->hi;
    }
    return 0;
}

/* Is the run of a known kind, in such a region, and does its data fit that kind? */
static int has_right_kind(const mpy_image_run_t *r, const mpy_image_region_t *region) {
    int aligned = r->offset % MPY_IMAGE_PAGE == 0;
    switch (r->kind) {
    case MPY_RUN_DATA: return aligned && r->stored == r->bytes;
    case MPY_RUN_ZIPPED: return r->bytes <= MPY_FRAME_MAX && r->stored && r->stored < r->bytes;
    case MPY_RUN_FILE: return aligned && !r->stored && (region->flags & MPY_REGION_FILE);
    default: return 0;
    }
}

static int check_runs(const mpy_image_t *im, char *err, size_t n) {
    uint64_t end = 0, region = 0;
    for (uint64_t i = 0; i < im->nruns; i++) {
        const mpy_image_run_t *r = &im->runs[i];
        if (r->address % MPY_IMAGE_PAGE || r->bytes % MPY_IMAGE_PAGE || !r->bytes || r->bytes > MPY_RUN_MAX ||
            r->address < end)
            return mpy_reason(err, n, "%s: damaged: run %llu at 0x%llx is out of order", im->path,
                              (unsigned long long)i, (unsigned long long)r->address);
        end = r->address + r->bytes;
        while (region < im->nregions && im->regions[region].hi <= r->address) region++;
        const mpy_image_region_t *g = region < im->nregions ? &im->regions[region] : NULL;
        if (!g || r->address < g->lo || end > g->hi)
            return mpy_reason(err, n, "%s: damaged: run %llu at 0x%llx lies in no region", im->path,
                              (unsigned long long)i, (unsigned long long)r->address);
        if (!has_right_kind(r, g))
            return mpy_reason(err, n, "%s: damaged: run %llu has unknown kind %u, or a wrong length or place", im->path,
                              (unsigned long long)i, r->kind);
        if (r->kind != MPY_RUN_FILE && (r->offset < MPY_IMAGE_PAGE || r->offset > im->header.file_bytes ||
                                        r->stored > im->header.file_bytes - r->offset))
            return mpy_reason(err, n, "%s: damaged: run %llu lies outside the file", im->path, (unsigned long long)i);
    }
    return 0;
}

static int check_kept(const mpy_image_t *im, char *err, size_t n) {
    uint64_t end = 0, region = 0, run = 0;
    if (!im->header.parent[0] != !im->kept)
        return mpy_reason(err, n, "%s: damaged: an image must have kept pages if it has a parent, and only then",
                          im->path);
    for (uint64_t i = 0; i < im->nkept; i++) {
        const mpy_image_kept_t *k = &im->kept[i];
        if (k->address % MPY_IMAGE_PAGE || k->bytes % MPY_IMAGE_PAGE || !k->bytes || k->address < end ||
            k->bytes > UINT64_MAX - k->address)
            return mpy_reason(err, n, "%s: damaged: the kept pages at 0x%llx are out of order", im->path,
                              (unsigned long long)k->address);
        end = k->address + k->bytes;
        while (region < im->nregions && im->regions[region].hi <= k->address) region++;
        if (region == im->nregions || k->address < im->regions[region].lo || end > im->regions[region].hi)
            return mpy_reason(err, n, "%s: damaged: the kept pages at 0x%llx lie in no region", im->path,
                              (unsigned long long)k->address);
        while (run < im->nruns && im->runs[run].address + im->runs[run].bytes <= k->address) run++;
        if (run < im->nruns && im->runs[run].address < end)
            return mpy_reason(err, n, "%s: damaged: the kept pages at 0x%llx are in a run, too", im->path,
                              (unsigned long long)k->address);
    }
    return 0;
}

static int check_members(const mpy_image_t *im, char *err, size_t n) {
    if (im->members && !im->nmembers) return mpy_reason(err, n, "%s: damaged: its tree has no process", im->path);
    for (uint64_t i = 0; i < im->nmembers; i++)
        if (im->members[i].index != i || im->members[i].pid <= 0)
            return mpy_reason(err, n, "%s: damaged: process %llu of its tree is invalid", im->path,
                              (unsigned long long)i);
    return 0;
}

static int check_seal(const mpy_image_t *im, char *err, size_t n) {
    const void *const content[] = {[MPY_SECTION_REGIONS] = im->regions, [MPY_SECTION_RUNS] = im->runs,
                                   [MPY_SECTION_FILES] = im->files,     [MPY_SECTION_STRINGS] = im->strings,
                                   [MPY_SECTION_THREADS] = im->threads, [MPY_SECTION_PROCESS] = im->process,
                                   [MPY_SECTION_FDS] = im->fds,         [MPY_SECTION_KEPT] = im->kept,
                                   [MPY_SECTION_TREE] = im->members};
    uint8_t seal[MPY_IMAGE_SEAL];
    uint32_t seen = 0;
    mpy_hmac_t m;
    if (!im->keys) return 0;
    mpy_image_seal_begin(&m, im->keys);
    for (uint32_t i = 0; i < im->header.nsections; i++) {
        const mpy_image_section_t *s = &im->header.sections[i];
        if (s->kind >= sizeof content / sizeof *content || !content[s->kind] || (seen & 1u << s->kind))
            return mpy_reason(err, n, "%s: damaged: section %u is unknown, or there twice", im->path, s->kind);
        seen |= 1u << s->kind;
        mpy_hmac_update(&m, content[s->kind], s->bytes);
    }
    mpy_image_seal_finish(&m, &im->header, seal);
    if (memcmp(seal, im->header.seal, sizeof seal))
        return mpy_reason(err, n, "%s: changed after its job had written it: its seal is wrong", im->path);
    return 0;
}

static int open_one(mpy_image_t *im, const char *path, int rank, int size, const mpy_image_keys_t *keys, char *err,
                    size_t n) {
    memset(im, 0, sizeof *im);
    im->keys = keys;
    snprintf(im->path, sizeof im->path, "%s", path);
    im->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (im->fd < 0)
        return mpy_reason(err, n, "%s: %s", path, errno == ENOENT ? "the image is missing" : strerror(errno));
    return read_header(im, rank, size, err, n) ||
                   read_section(im, MPY_SECTION_REGIONS, sizeof *im->regions, 0, &im->regions, &im->nregions, err, n) ||
                   read_section(im, MPY_SECTION_RUNS, sizeof *im->runs, 0, &im->runs, &im->nruns, err, n) ||
                   read_section(im, MPY_SECTION_FILES, sizeof *im->files, 0, &im->files, &im->nfiles, err, n) ||
                   read_section(im, MPY_SECTION_STRINGS, 0, 0, &im->strings, &im->strings_bytes, err, n) ||
                   read_section(im, MPY_SECTION_THREADS, sizeof *im->threads, 0, &im->threads, &im->nthreads, err, n) ||
                   read_section(im, MPY_SECTION_PROCESS, 0, 1, &im->process, &im->process_bytes, err, n) ||
                   read_section(im, MPY_SECTION_FDS, 0, 1, &im->fds, &im->fds_bytes, err, n) ||
                   read_section(im, MPY_SECTION_KEPT, sizeof *im->kept, 1, &im->kept, &im->nkept, err, n) ||
                   read_section(im, MPY_SECTION_TREE, sizeof *im->members, 1, &im->members, &im->nmembers, err, n) ||
                   check_seal(im, err, n) || check_strings(im, err, n) || check_regions(im, err, n) ||
                   check_runs(im, err, n) || check_kept(im, err, n) || check_members(im, err, n)
               ? -1
               : 0;
}

/* ---- the chain ---- */

static int is_folded(const mpy_image_header_t *h) {
    int any = 0;
    for (size_t i = 0; i < sizeof h->folded_seal; i++) any |= h->folded_seal[i];
    return any;
}

static const uint8_t *identity(const mpy_image_header_t *h) { return is_folded(h) ? h->folded_seal : h->seal; }

int mpy_image_is(const mpy_image_header_t *h, const uint8_t seal[MPY_IMAGE_SEAL], uint32_t crc) {
    return crc == (is_folded(h) ? h->folded_crc : h->header_crc) && !memcmp(seal, identity(h), MPY_IMAGE_SEAL);
}

/* Invariant 3: each kept page is in the parent. */
static int check_parent_has(const mpy_image_t *im, const mpy_image_t *parent, char *err, size_t n) {
    uint64_t run = 0, kept = 0;
    for (uint64_t i = 0; i < im->nkept; i++) {
        for (uint64_t at = im->kept[i].address, end = at + im->kept[i].bytes; at < end;) {
            while (run < parent->nruns && parent->runs[run].address + parent->runs[run].bytes <= at) run++;
            while (kept < parent->nkept && parent->kept[kept].address + parent->kept[kept].bytes <= at) kept++;
            const mpy_image_run_t *r = run < parent->nruns ? &parent->runs[run] : NULL;
            const mpy_image_kept_t *k = kept < parent->nkept ? &parent->kept[kept] : NULL;
            if (r && r->kind != MPY_RUN_FILE && r->address <= at) at = r->address + r->bytes;
            else if (k && k->address <= at) at = k->address + k->bytes;
            else
                return mpy_reason(err, n, "%s: damaged: its parent %s does not have the memory at 0x%llx", im->path,
                                  parent->path, (unsigned long long)at);
        }
    }
    return 0;
}

/* The real path, so that messages show no detour. */
static void parent_path(const mpy_image_t *im, char *path, size_t n) {
    const char *slash = strrchr(im->path, '/');
    char real[PATH_MAX];
    snprintf(path, n, "%.*s%s", slash ? (int)(slash + 1 - im->path) : 0, im->path, im->header.parent);
    if (realpath(path, real) && strlen(real) < n) memcpy(path, real, strlen(real) + 1);
}

static int open_parents(mpy_image_t *im, char *err, size_t n) {
    for (int images = 1; im->header.parent[0]; images++, im = im->parent) {
        char path[sizeof im->path + MPY_PARENT_PATH];
        const mpy_image_header_t *h = &im->header;
        if (images == MPY_CHAIN_MAX)
            return mpy_reason(err, n, "%s: its chain of parents has more than %d images", im->path, MPY_CHAIN_MAX);
        parent_path(im, path, sizeof path);
        if (strlen(path) >= sizeof im->path)
            return mpy_reason(err, n, "%s: the path of its parent is too long", im->path);
        im->parent = malloc(sizeof *im->parent);
        if (!im->parent) return mpy_reason(err, n, "%s: no memory for its parent", im->path);
        if (open_one(im->parent, path, h->rank, h->size, im->keys, err, n)) return -1;
        const mpy_image_header_t *p = &im->parent->header;
        if (!mpy_image_is(p, h->parent_seal, h->parent_crc) || p->generation != h->generation)
            return mpy_reason(err, n, "%s: not the image that %s needs: it was replaced", im->parent->path, im->path);
        if (check_parent_has(im, im->parent, err, n)) return -1;
    }
    return 0;
}

int mpy_image_open(mpy_image_t *im, const char *path, int rank, int size, const mpy_image_keys_t *keys, char *err,
                   size_t n) {
    if (open_one(im, path, rank, size, keys, err, n) == 0 && open_parents(im, err, n) == 0) return 0;
    mpy_image_close(im);
    return -1;
}

int mpy_image_open_member(const mpy_image_t *im, const mpy_image_member_t *member, mpy_image_t *out, char *err,
                          size_t n) {
    char path[sizeof im->path + MPY_IMAGE_PATH_MORE];
    const char *slash = strrchr(im->path, '/');
    char directory[sizeof im->path];
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - im->path) : 1, slash ? im->path : ".");
    mpy_image_member_path(path, sizeof path, directory, im->header.rank, member->index);
    if (strlen(path) >= sizeof im->path) return mpy_reason(err, n, "%s: its path is too long", path);
    if (mpy_image_open(out, path, im->header.rank, im->header.size, im->keys, err, n)) return -1;
    if (!memcmp(identity(&out->header), member->seal, sizeof member->seal)) return 0;
    mpy_image_close(out);
    return mpy_reason(err, n, "%s: not the image that %s needs: it was replaced", path, im->path);
}

void mpy_image_close(mpy_image_t *im) {
    if (im->fd >= 0) close(im->fd);
    free(im->regions);
    free(im->runs);
    free(im->files);
    free(im->strings);
    free(im->threads);
    free(im->process);
    free(im->fds);
    free(im->kept);
    free(im->members);
    if (im->parent) {
        mpy_image_close(im->parent);
        free(im->parent);
    }
    memset(im, 0, sizeof *im);
    im->fd = -1;
}

const char *mpy_image_file_path(const mpy_image_t *im, uint32_t file) {
    return file < im->nfiles && im->files[file].path < im->strings_bytes ? im->strings + im->files[file].path : "";
}
