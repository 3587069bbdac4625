/* zip.c - which pages of an image are compressed, while it is written.
 *
 * A frame is tried. If it shrinks by a tenth or more, it is written compressed. A frame pays if it does so and, with
 * `auto`, if writing the bytes that it saves would have taken longer than compressing it has taken. After a frame that
 * does not pay, as many bytes are written as they are; after the next one twice as many, and so on, up to MOST_LEFT_OUT
 * times as many. So data that does not shrink costs one tried frame in MOST_LEFT_OUT + 1. After a frame that pays, the
 * next one is tried at once.
 *
 * If there are several threads (compressors.c), the frames behind one that is to be tried are made at the same time,
 * unless the last one did not pay. Each is then used, or not, as if it had been tried alone: the image is the same.
 * With `auto`, making one of them counts as its part of the time that they took together.
 *
 * What writing costs is measured once a frame has shrunk: memory that does not shrink need not wait for the disk. That
 * frame and the next bytes, MEASURED in all, are written as they are, and the clock runs until they are on the disk: a
 * page cache takes bytes much faster than the disk behind it, but then fsync waits.
 * The rule counts compressing and writing one after the other. In fact the disk works in parallel with the processor,
 * so the rule compresses slightly too little. Images of fewer bytes are not compressed with `auto`.
 *
 * Invariants
 *  1. A forked process may call these functions (invariant 1 of output.c).
 *  2. What is compressed does not change meanwhile: the program is halted, or the writer has its own copy.
 */
#include "zip.h"

#include "base/now.h"
#include "base/page.h"
#include "base/zstd.h"

#include <fcntl.h>
#include <manapy/image.h>
#include <manapy/syscall.h>
#include <string.h>
#include <sys/mman.h>

#define MEASURED (8ul << 20)
enum { MOST_LEFT_OUT = 64 };

static size_t room_of(const mpy_zip_t *zip) {
    return MPY_PAGE_UP(MPY_FRAME_MAX + zip->pool.workspace);
}

void mpy_zip_begin(mpy_zip_t *zip, const char *how, int threads) {
    *zip = (mpy_zip_t){.automatic = !strcmp(how, "auto")};
    if (!strcmp(how, "off") || !mpy_zstd_open()) return;
    mpy_compressors_begin(&zip->pool, threads, mpy_zstd_workspace());
    const int members = zip->pool.helpers + 1;
    long at = mpy_sys(SYS_mmap, 0, (size_t)members * room_of(zip), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mpy_sys_failed(at)) {
        mpy_compressors_end(&zip->pool);
        return;
    }
    zip->rooms = (char *)at;
    for (int i = 0; i < members; i++) zip->pool.frames[i].frame = zip->rooms + (size_t)i * room_of(zip);
    zip->on = 1;
}

void mpy_zip_end(mpy_zip_t *zip) {
    if (!zip->on) return;
    mpy_sys(SYS_munmap, zip->rooms, (size_t)(zip->pool.helpers + 1) * room_of(zip));
    mpy_compressors_end(&zip->pool);
    zip->on = 0;
}

static int is_unmeasured(const mpy_zip_t *zip) { return zip->automatic && zip->byte_ns == 0; }

int mpy_zip_measures(const mpy_zip_t *zip) { return zip->on && is_unmeasured(zip) && zip->worth; }

void mpy_zip_measure(mpy_zip_t *zip, int fd, uint64_t offset, uint64_t bytes, int64_t ns) {
    if (!zip->plain_bytes) zip->plain_from = offset;
    zip->plain_bytes += bytes;
    zip->plain_ns += ns;
    if (zip->plain_bytes < MEASURED) return;
    int64_t begun = mpy_now_ns(CLOCK_MONOTONIC);
    sync_file_range(fd, (off_t)zip->plain_from, 0,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    zip->plain_ns += mpy_now_ns(CLOCK_MONOTONIC) - begun;
    zip->byte_ns = (double)(zip->plain_ns + 1) / (double)zip->plain_bytes;
}

uint64_t mpy_zip_plain(mpy_zip_t *zip, uint64_t bytes) {
    if (!zip->on) return bytes;
    uint64_t wanted = mpy_zip_measures(zip) ? MEASURED - zip->plain_bytes : zip->left_out;
    uint64_t plain = bytes < wanted ? bytes : wanted;
    if (!mpy_zip_measures(zip)) zip->left_out -= plain;
    return plain;
}

/* Makes this frame, and those behind it. */
static void make(mpy_zip_t *zip, const char *from, size_t bytes, uint64_t more) {
    const int most = zip->failures ? 1 : zip->pool.helpers + 1;
    uint64_t left = bytes + more;
    zip->ahead = zip->next = 0;
    do {
        mpy_frame_t *frame = &zip->pool.frames[zip->ahead++];
        frame->from = from;
        frame->bytes = bytes;
        from += bytes, left -= bytes;
        bytes = left < MPY_FRAME_MAX ? (size_t)left : MPY_FRAME_MAX;
    } while (zip->ahead < most && left);
    const int64_t begun = mpy_now_ns(CLOCK_MONOTONIC);
    mpy_compressors_run(&zip->pool, zip->ahead);
    zip->frame_ns = (double)(mpy_now_ns(CLOCK_MONOTONIC) - begun) / zip->ahead;
}

size_t mpy_zip_try(mpy_zip_t *zip, const void *from, size_t bytes, uint64_t more) {
    const mpy_frame_t *known = zip->next < zip->ahead ? &zip->pool.frames[zip->next] : NULL;
    if (!known || known->from != from || known->bytes != bytes) make(zip, from, bytes, more);
    const mpy_frame_t *made = &zip->pool.frames[zip->next++];
    const size_t length = made->length;
    zip->frame = made->frame;
    zip->worth |= length > 0;
    int pays = length && (!zip->automatic || zip->byte_ns == 0 ||
                          (double)(bytes - length) * zip->byte_ns > zip->frame_ns);
    if (pays) {
        zip->failures = 0;
    } else {
        uint64_t times = 1ul << zip->failures;
        zip->left_out = bytes * times;
        if (times < MOST_LEFT_OUT) zip->failures++;
    }
    return is_unmeasured(zip) ? 0 : length;
}
