/* fold.c - makes a full image of an incremental one and its parents.
 *
 * Half: Python's process; libc allowed.
 *
 * Invariants
 *  1. The new image has the identity of the old one (image.h), and the same sections, except RUNS and KEPT. So it can
 *     replace the old one, and references to the old one stay valid.
 *  2. What is written has been checked: each run by its checksum and its seal.
 *  3. Compressed data stays compressed. A frame that is needed completely is copied as it is. The needed pages of other
 *     frames are compressed again, together with the pages beside them.
 *  4. The file `into` is complete and fsynced, or does not exist.
 */
#include "fold.h"

#include "image/file/chain.h"
#include "image/write/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Consecutive pages that a run holds. */
typedef struct piece {
    const mpy_image_t *image;
    const mpy_image_run_t *run;
    uint64_t address, bytes;
} piece_t;

typedef struct fold {
    mpy_image_output_t out;
    mpy_vector_t pieces;        /* piece_t */
    const mpy_image_run_t *got; /* the run whose memory is in `room` */
    char *room;                 /* MPY_RUN_MAX bytes, as the next ones */
    char *pages;                /* consecutive pages that are to be written */
    uint64_t address, bytes;    /* of them */
    const mpy_image_region_t *region; /* that contains them */
    char *err;
    size_t n;
} fold_t;

static int fail(fold_t *f, const char *path, const char *why) {
    snprintf(f->err, f->n, "%s: %s", path, why);
    return -1;
}

/* ---- what the image needs, in the order of addresses ---- */

static int add_piece(fold_t *f, const mpy_image_t *im, const mpy_image_run_t *run, uint64_t address, uint64_t bytes) {
    piece_t *piece = mpy_vector_push(&f->pieces, 1);
    if (!piece) return fail(f, im->path, "no memory for the list of its pages");
    *piece = (piece_t){im, run, address, bytes};
    return 0;
}

static int add_part(void *context, const mpy_image_part_t *part, char *err, size_t n) {
    (void)err, (void)n; /* those of the fold */
    for (size_t i = 0; i < part->nwanted; i++)
        if (add_piece(context, part->image, part->run, part->wanted[i].address, part->wanted[i].bytes)) return -1;
    return 0;
}

static int by_address(const void *a, const void *b) {
    const uint64_t x = ((const piece_t *)a)->address, y = ((const piece_t *)b)->address;
    return (x > y) - (x < y);
}

static int collect(fold_t *f, const mpy_image_t *im) {
    for (uint64_t i = 0; i < im->nruns; i++) {
        const mpy_image_run_t *run = &im->runs[i];
        if (run->kind == MPY_RUN_FILE && add_piece(f, im, run, run->address, run->bytes)) return -1;
    }
    if (mpy_image_each_part(im, add_part, f, f->err, f->n)) return -1;
    qsort(f->pieces.items, f->pieces.count, sizeof(piece_t), by_address);
    return 0;
}

/* ---- writing ---- */

static int write_pages(fold_t *f) {
    mpy_image_output_t *o = &f->out;
    for (uint64_t done = 0, k; done < f->bytes; done += k) {
        const uint64_t left = f->bytes - done, plain = mpy_zip_plain(&o->zip, left);
        const void *from = f->pages + done;
        k = plain ? plain : left < MPY_FRAME_MAX ? left : MPY_FRAME_MAX;
        mpy_image_run_t run = {.address = f->address + done, .bytes = k, .stored = k, .kind = MPY_RUN_DATA};
        const size_t length = plain ? 0 : mpy_zip_try(&o->zip, from, k, 0);
        if (length) run.kind = MPY_RUN_ZIPPED, run.stored = length, from = o->zip.frame;
        if (mpy_image_output_stored(o, &run, from) || mpy_image_output_run(o, &run)) return -1;
    }
    f->bytes = 0;
    return 0;
}

/* A run lies in one region. */
static int add_pages(fold_t *f, const char *from, uint64_t address, uint64_t bytes) {
    const mpy_image_region_t *region = f->region;
    while (region->hi <= address) region++;
    if (f->bytes && (f->address + f->bytes != address || region != f->region) && write_pages(f)) return -1;
    f->region = region;
    while (bytes) {
        if (f->bytes == MPY_RUN_MAX && write_pages(f)) return -1;
        if (!f->bytes) f->address = address;
        const uint64_t k = bytes < MPY_RUN_MAX - f->bytes ? bytes : MPY_RUN_MAX - f->bytes;
        memcpy(f->pages + f->bytes, from, k);
        f->bytes += k, from += k, address += k, bytes -= k;
    }
    return 0;
}

/* A frame is shorter than its memory, which fits into the room. */
static int copy_frame(fold_t *f, const mpy_image_t *im, const mpy_image_run_t *run) {
    mpy_image_sum_t sum;
    mpy_image_run_t copy = *run;
    f->got = NULL;
    mpy_image_sum_begin(im, &sum);
    if (mpy_image_read_at(im, f->room, run->stored, run->offset, f->err, f->n)) return -1;
    mpy_image_sum_add(im, &sum, f->room, run->stored);
    if (mpy_image_check_sum(im, run, &sum, f->err, f->n)) return -1;
    return mpy_image_output_stored(&f->out, &copy, f->room) || mpy_image_output_run(&f->out, &copy) ? -1 : 0;
}

static int write_piece(fold_t *f, const piece_t *piece) {
    const mpy_image_run_t *run = piece->run;
    const int whole = piece->bytes == run->bytes;
    if (run->kind == MPY_RUN_FILE) return write_pages(f) || mpy_image_output_run(&f->out, run) ? -1 : 0;
    if (run->kind == MPY_RUN_ZIPPED && whole) return write_pages(f) || copy_frame(f, piece->image, run) ? -1 : 0;
    if (f->got != run && mpy_image_read_run(piece->image, run, f->room, f->err, f->n)) return -1;
    f->got = run;
    return add_pages(f, f->room + (piece->address - run->address), piece->address, piece->bytes);
}

/* The sections of the old image, as they are, except its runs. */
static int write_sections(mpy_image_output_t *o, const mpy_image_t *im) {
    return mpy_image_output_section(o, MPY_SECTION_REGIONS, im->regions, im->nregions * sizeof *im->regions,
                                    im->nregions) ||
                   mpy_image_output_vector(o, MPY_SECTION_RUNS, &o->runs) ||
                   mpy_image_output_section(o, MPY_SECTION_FILES, im->files, im->nfiles * sizeof *im->files,
                                            im->nfiles) ||
                   mpy_image_output_section(o, MPY_SECTION_STRINGS, im->strings, im->strings_bytes,
                                            im->strings_bytes) ||
                   mpy_image_output_section(o, MPY_SECTION_THREADS, im->threads, im->nthreads * sizeof *im->threads,
                                            im->nthreads) ||
                   (im->process && mpy_image_output_section(o, MPY_SECTION_PROCESS, im->process, im->process_bytes,
                                                            1)) ||
                   (im->fds && mpy_image_output_section(o, MPY_SECTION_FDS, im->fds, im->fds_bytes, 1)) ||
                   (im->members && mpy_image_output_section(o, MPY_SECTION_TREE, im->members,
                                                            im->nmembers * sizeof *im->members, im->nmembers))
               ? -1
               : 0;
}

/* Invariant 1 */
static void begin_header(mpy_image_header_t *to, const mpy_image_header_t *from) {
    *to = *from;
    memcpy(to->folded_seal, from->seal, sizeof to->folded_seal);
    to->folded_crc = from->header_crc;
    memset(to->parent, 0, sizeof to->parent);
    memset(to->parent_seal, 0, sizeof to->parent_seal);
    memset(to->sections, 0, sizeof to->sections);
    to->parent_crc = to->nsections = 0;
    to->memory_bytes = 0; /* the runs are counted again */
}

static int write_image(fold_t *f, const mpy_image_t *im) {
    static const char blank[MPY_IMAGE_PAGE];
    mpy_image_output_t *o = &f->out;
    begin_header(&o->header, &im->header);
    f->region = im->regions;
    if (mpy_image_output_put(o, blank, sizeof blank)) return -1; /* the place of the header */
    const piece_t *pieces = f->pieces.items;
    for (size_t i = 0; i < f->pieces.count; i++)
        if (write_piece(f, &pieces[i])) return -1;
    return write_pages(f) || write_sections(o, im) || mpy_image_output_finish(o) ? -1 : 0;
}

static int is_compressed(const mpy_image_t *im) {
    for (; im; im = im->parent)
        for (uint64_t i = 0; i < im->nruns; i++)
            if (im->runs[i].kind == MPY_RUN_ZIPPED) return 1;
    return 0;
}

static int never(void) { return 0; }

static int fold(fold_t *f, const mpy_image_t *im, const char *into) {
    mpy_image_failure_t failure = {0};
    mpy_image_output_t *o = &f->out;
    o->failure = &failure;
    o->fd = open(into, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (o->fd < 0) return fail(f, into, strerror(errno));
    o->keys = *im->keys;
    mpy_image_seal_begin(&o->seal, &o->keys);
    mpy_zip_begin(&o->zip, is_compressed(im) ? "on" : "off", 1);
    const int bad = collect(f, im) || write_image(f, im);
    mpy_zip_end(&o->zip);
    close(o->fd);
    if (!bad) return 0;
    if (failure.what[0])
        snprintf(f->err, f->n, "%s: %s: %s", into, failure.what, strerror(failure.error_number));
    unlink(into);
    return -1;
}

int mpy_image_fold(const char *path, const uint8_t *secret, const char *into, char *err, size_t n) {
    mpy_image_t image;
    mpy_image_keys_t keys;
    mpy_image_keys(&keys, secret);
    if (mpy_image_open(&image, path, -1, -1, &keys, err, n)) return -1;
    fold_t f = {.out = {.runs.size = sizeof(mpy_image_run_t),
                        .kept.size = sizeof(mpy_image_kept_t),
                        .cancelled = never},
                .pieces.size = sizeof(piece_t),
                .room = malloc(MPY_RUN_MAX),
                .pages = malloc(MPY_RUN_MAX),
                .err = err,
                .n = n};
    int bad = !f.room || !f.pages ? fail(&f, path, "no memory to fold it") : 0;
    if (!bad) bad = mpy_image_check_loadable(&image, err, n) || fold(&f, &image, into) ? -1 : 0;
    free(f.room);
    free(f.pages);
    mpy_vector_free(&f.pieces);
    mpy_vector_free(&f.out.runs);
    mpy_image_close(&image);
    return bad;
}
