/* output.c - an image that is being written: bytes, sections, and last the header.
 *
 * Invariants
 *  1. A process that was forked from one with threads may call these functions: they take no lock. So memory comes from
 *     the kernel, not from malloc, and a failure is kept as a number; whoever reads it makes the text.
 *  2. Small pieces are gathered: single pages would cost a system call each. One thread or process writes an image at a
 *     time.
 *  3. The header is written last, before the single fsync: an interrupted image has no header.
 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <manapy/syscall.h>

#include "base/io/whole.h"
#include "base/page.h"
#include "image/file/crc32c.h"

#define WRITE_CHUNK (8ul << 20)

/* ---- vectors ---- */

void *mpy_vector_push(mpy_vector_t *v, size_t count) {
    if (v->count + count > v->room) {
        size_t bytes = MPY_PAGE_UP(2 * (v->count + count) * v->size + 1);
        long items = v->items != NULL
                         ? mpy_sys(SYS_mremap, v->items, v->room * v->size, bytes, MREMAP_MAYMOVE)
                         : mpy_sys(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mpy_sys_failed(items)) return NULL;
        v->items = (void *)items;
        v->room = bytes / v->size;
    }
    void *at = (char *)v->items + v->count * v->size;
    v->count += count;
    return at;
}

void mpy_vector_free(mpy_vector_t *v) {
    if (v->items != NULL) mpy_sys(SYS_munmap, v->items, v->room * v->size);
    *v = (mpy_vector_t){.size = v->size};
}

/* ---- the file ---- */

int mpy_image_output_fail(mpy_image_output_t *o, const char *what) {
    o->failure->error_number = errno;
    size_t n = strlen(what);
    if (n >= sizeof o->failure->what) n = sizeof o->failure->what - 1;
    memcpy(o->failure->what, what, n);
    o->failure->what[n] = '\0';
    return -1;
}

/* The disk of another rank may be full. While all ranks are halted, they stay so until the last one has noticed
 * this. */
int mpy_image_output_cancelled(mpy_image_output_t *o) {
    if (!o->cancelled()) return 0;
    errno = 0;
    return mpy_image_output_fail(o, "the checkpoint was cancelled");
}

static int write_out(mpy_image_output_t *o, const char *p, uint64_t bytes, uint64_t offset) {
    while (bytes) {
        if (mpy_image_output_cancelled(o)) return -1;
        const uint64_t chunk = bytes < WRITE_CHUNK ? bytes : WRITE_CHUNK;
        if (mpy_write_whole(o->fd, p, chunk, (off_t)offset))
            return mpy_image_output_fail(o, "cannot write the image");
        p += chunk; bytes -= chunk; offset += chunk;
    }
    return 0;
}

static char gathered[1 << 18]; /* the last o->gathered bytes of the image */

static int write_gathered(mpy_image_output_t *o) {
    const uint64_t bytes = o->gathered;
    o->gathered = 0;
    return write_out(o, gathered, bytes, o->offset - bytes);
}

int mpy_image_output_put(mpy_image_output_t *o, const void *data, uint64_t bytes) {
    if (o->gathered + bytes > sizeof gathered && write_gathered(o)) return -1;
    if (bytes <= sizeof gathered / 4) {
        memcpy(gathered + o->gathered, data, bytes);
        o->gathered += bytes;
        o->offset += bytes;
        return 0;
    }
    if (write_gathered(o) || write_out(o, data, bytes, o->offset)) return -1;
    o->offset += bytes;
    /* start write-back early, so that the fsync at the end finds little to do */
    if (o->offset - o->synced >= 4 * WRITE_CHUNK) {
        sync_file_range(o->fd, (off_t)o->synced, (off_t)(o->offset - o->synced), SYNC_FILE_RANGE_WRITE);
        o->synced = o->offset;
    }
    return 0;
}

int mpy_image_output_align(mpy_image_output_t *o, uint64_t unit) {
    static const char zeros[MPY_IMAGE_PAGE];
    return mpy_image_output_put(o, zeros, -o->offset % unit);
}

int mpy_image_output_run(mpy_image_output_t *o, const mpy_image_run_t *run) {
    mpy_image_run_t *at = mpy_vector_push(&o->runs, 1);
    if (at == NULL) {
        errno = ENOMEM;
        return mpy_image_output_fail(o, "the list of the image's pages");
    }
    *at = *run;
    o->header.memory_bytes += run->bytes;
    return 0;
}

int mpy_image_output_stored(mpy_image_output_t *o, mpy_image_run_t *run, const void *stored) {
    mpy_polyval_t hash = o->keys.hash;
    if (run->kind == MPY_RUN_DATA && mpy_image_output_align(o, MPY_IMAGE_PAGE)) return -1;
    run->offset = o->offset;
    run->crc = mpy_crc32c(0, stored, run->stored);
    mpy_polyval_update(&hash, stored, run->stored);
    mpy_image_seal_run(&o->keys, run, &hash, run->seal);
    return mpy_image_output_put(o, stored, run->stored);
}

int mpy_image_output_kept(mpy_image_output_t *o, uint64_t address, uint64_t bytes) {
    mpy_image_kept_t *at = mpy_vector_push(&o->kept, 1);
    if (at == NULL) {
        errno = ENOMEM;
        return mpy_image_output_fail(o, "the list of the image's pages");
    }
    *at = (mpy_image_kept_t){address, bytes};
    o->kept_bytes += bytes;
    o->header.memory_bytes += bytes;
    return 0;
}

int mpy_image_output_section(mpy_image_output_t *o, uint32_t kind, const void *data, uint64_t bytes, uint64_t count) {
    if (mpy_image_output_align(o, 8)) return -1;
    mpy_hmac_update(&o->seal, data, bytes);
    o->header.sections[o->header.nsections++] =
        (mpy_image_section_t){kind, mpy_crc32c(0, data, bytes), o->offset, bytes, count};
    return mpy_image_output_put(o, data, bytes);
}

int mpy_image_output_vector(mpy_image_output_t *o, uint32_t kind, const mpy_vector_t *v) {
    return mpy_image_output_section(o, kind, v->items, v->count * v->size, v->count);
}

int mpy_image_output_finish(mpy_image_output_t *o) {
    mpy_image_header_t *h = &o->header;
    if (write_gathered(o)) return -1;
    h->file_bytes = o->offset;
    mpy_image_seal_finish(&o->seal, h, h->seal);
    h->header_crc = mpy_crc32c(0, h, offsetof(mpy_image_header_t, header_crc));
    if (pwrite(o->fd, h, sizeof *h, 0) != sizeof *h) return mpy_image_output_fail(o, "cannot write the image");
    return fsync(o->fd) ? mpy_image_output_fail(o, "cannot write the image (fsync)") : 0;
}
