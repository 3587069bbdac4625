/* chain.c - finds the memory of an image in the image itself and in its parents, and reads it.
 *
 * Half: lower, or Python's process; libc allowed.
 *
 * Invariants
 *  1. The newest image needs from a parent only pages that all images between the two keep. So the walk goes from child
 *     to parent with one list of ranges, which it cuts down to what the parent keeps.
 *  2. A run is read as a whole, because its checksum and its seal are those of the whole run. Only the wanted parts are
 *     copied.
 *  3. An image that is open has all bounds checked (reader.c, invariants 2 and 3), so no step here can leave the file
 *     or the regions of the newest image.
 */
#include "base/reason.h"
#include "chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which parts of which runs ---- */

typedef struct ranges {
    mpy_image_kept_t *items;
    size_t count;
} ranges_t;

/* What both lists contain. `to` has room for a.count + b.count. */
static size_t intersect(const ranges_t *a, const ranges_t *b, mpy_image_kept_t *to) {
    size_t count = 0;
    for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
        const mpy_image_kept_t *x = &a->items[i], *y = &b->items[j];
        uint64_t x_end = x->address + x->bytes, y_end = y->address + y->bytes;
        uint64_t lo = x->address > y->address ? x->address : y->address, hi = x_end < y_end ? x_end : y_end;
        if (lo < hi) to[count++] = (mpy_image_kept_t){lo, hi - lo};
        if (x_end < y_end) i++;
        else j++;
    }
    return count;
}

static int visit_own(const mpy_image_t *im, mpy_image_visit_t *visit, void *context, char *err, size_t n) {
    for (uint64_t i = 0; i < im->nruns; i++) {
        const mpy_image_run_t *run = &im->runs[i];
        const mpy_image_kept_t whole = {run->address, run->bytes};
        const mpy_image_part_t part = {im, run, &whole, 1};
        if (run->kind != MPY_RUN_FILE && visit(context, &part, err, n)) return -1;
    }
    return 0;
}

/* The runs of a parent. `scratch` has room for all of `wanted`. */
static int visit_wanted(const mpy_image_t *im, const ranges_t *wanted, mpy_image_kept_t *scratch,
                        mpy_image_visit_t *visit, void *context, char *err, size_t n) {
    ranges_t rest = *wanted;
    for (uint64_t i = 0; i < im->nruns; i++) {
        const mpy_image_run_t *run = &im->runs[i];
        mpy_image_kept_t whole = {run->address, run->bytes};
        const ranges_t one = {&whole, 1};
        while (rest.count && rest.items->address + rest.items->bytes <= run->address) rest.items++, rest.count--;
        const mpy_image_part_t part = {im, run, scratch, intersect(&rest, &one, scratch)};
        if (run->kind != MPY_RUN_FILE && part.nwanted && visit(context, &part, err, n)) return -1;
    }
    return 0;
}

int mpy_image_each_part(const mpy_image_t *im, mpy_image_visit_t *visit, void *context, char *err, size_t n) {
    if (visit_own(im, visit, context, err, n)) return -1;
    const ranges_t kept = {im->kept, im->nkept};
    ranges_t wanted = kept;
    mpy_image_kept_t *owned = NULL; /* the items of `wanted`, unless they are the image's */
    int bad = 0;
    for (const mpy_image_t *p = im->parent; p && wanted.count && !bad; p = p->parent) {
        const ranges_t all = {p->kept, p->nkept};
        size_t room = wanted.count + p->nkept + 1;
        mpy_image_kept_t *more = malloc(room * sizeof *more), *scratch = malloc(room * sizeof *scratch);
        if (!more || !scratch) bad = mpy_reason(err, n, "%s: no memory for its list of pages", p->path);
        else bad = visit_wanted(p, &wanted, scratch, visit, context, err, n);
        if (!bad) wanted = (ranges_t){more, intersect(&wanted, &all, more)};
        free(scratch);
        free(owned);
        owned = more;
    }
    free(owned);
    return bad;
}

/* ---- reading ---- */

int mpy_image_place_part(const mpy_image_part_t *part, uint64_t shift, char *room, char *err, size_t n) {
    const mpy_image_run_t *run = part->run;
    if (part->nwanted == 1 && part->wanted->bytes == run->bytes)
        return mpy_image_read_run(part->image, run, (char *)(run->address + shift), err, n);
    if (mpy_image_read_run(part->image, run, room, err, n)) return -1;
    for (size_t i = 0; i < part->nwanted; i++) {
        const mpy_image_kept_t *w = &part->wanted[i];
        memcpy((char *)(w->address + shift), room + (w->address - run->address), w->bytes);
    }
    return 0;
}

typedef struct target {
    uint64_t shift;
    char *room; /* MPY_RUN_MAX bytes */
} target_t;

static int place(void *context, const mpy_image_part_t *part, char *err, size_t n) {
    const target_t *target = context;
    return mpy_image_place_part(part, target->shift, target->room, err, n);
}

static int place_all(const mpy_image_t *im, uint64_t shift, char *err, size_t n) {
    target_t target = {shift, malloc(MPY_RUN_MAX)};
    if (!target.room) return mpy_reason(err, n, "%s: no memory", im->path);
    int bad = mpy_image_each_part(im, place, &target, err, n);
    free(target.room);
    return bad;
}

/* The run with data that holds an address, in the image or in a parent; NULL: the page is zero. */
static const mpy_image_run_t *holder(const mpy_image_t **im, uint64_t address) {
    for (; *im; *im = (*im)->parent) {
        for (uint64_t i = 0; i < (*im)->nruns; i++) {
            const mpy_image_run_t *run = &(*im)->runs[i];
            if (run->kind != MPY_RUN_FILE && run->address <= address && address < run->address + run->bytes) return run;
        }
        uint64_t i = 0;
        while (i < (*im)->nkept && (*im)->kept[i].address + (*im)->kept[i].bytes <= address) i++;
        if (i == (*im)->nkept || address < (*im)->kept[i].address) return NULL;
    }
    return NULL;
}

int mpy_image_peek(const mpy_image_t *newest, uint64_t address, void *to, size_t bytes, char *err, size_t n) {
    const mpy_image_run_t *in_room = NULL;
    char *room = malloc(MPY_RUN_MAX);
    if (!room) return mpy_reason(err, n, "%s: no memory", newest->path);
    int bad = 0;
    for (size_t done = 0, k; done < bytes && !bad; done += k) {
        const mpy_image_t *im = newest;
        const uint64_t at = address + done;
        const mpy_image_run_t *run = holder(&im, at);
        k = MPY_IMAGE_PAGE - at % MPY_IMAGE_PAGE; /* the next page may be elsewhere */
        if (k > bytes - done) k = bytes - done;
        if (run && run != in_room) bad = mpy_image_read_run(im, run, room, err, n);
        in_room = run ? run : in_room;
        if (run) memcpy((char *)to + done, room + (at - run->address), k);
        else memset((char *)to + done, 0, k);
    }
    free(room);
    return bad;
}

int mpy_image_load(const char *path, const uint8_t *secret, uint64_t address, uint64_t bytes, char *to, char *err,
                   size_t n) {
    mpy_image_t image;
    mpy_image_keys_t keys;
    if (secret) mpy_image_keys(&keys, secret);
    if (mpy_image_open(&image, path, -1, -1, secret ? &keys : NULL, err, n)) return -1;
    int bad = 0;
    for (uint64_t i = 0; i < image.nregions && !bad; i++)
        if (image.regions[i].lo < address || image.regions[i].hi > address + bytes)
            bad = mpy_reason(err, n, "%s: it has memory outside the range", path);
    if (!bad) bad = place_all(&image, (uint64_t)to - address, err, n);
    mpy_image_close(&image);
    return bad;
}
