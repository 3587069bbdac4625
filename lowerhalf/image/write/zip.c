/* zip.c - which pages of an image are compressed, while it is written. One thread compresses: the writer may be a
 * forked process, and there threads would have no libc.
 *
 * A frame is tried. If it shrinks by a tenth or more, it is written compressed. A frame pays if it does so and, with
 * `auto`, if writing the bytes that it saves would have taken longer than compressing it has taken. After a frame that
 * does not pay, as many bytes are written as they are; after the next one twice as many, and so on, up to MOST_LEFT_OUT
 * times as many. So data that does not shrink costs one tried frame in MOST_LEFT_OUT + 1. After a frame that pays, the
 * next one is tried at once.
 *
 * What writing costs is measured on the first MEASURED bytes of the image. They are written as they are, and the clock
 * runs until they are on the disk: a page cache takes bytes much faster than the disk behind it, but then fsync waits.
 * The rule counts compressing and writing one after the other. In truth the disk works beside the processor, so the
 * rule compresses rather too little. Images of fewer bytes are not compressed with `auto`.
 *
 * Invariants
 *  1. A forked process may call these functions (invariant 1 of output.c).
 *  2. What is compressed does not change meanwhile: the program is halted, or the writer has its own copy.
 */
#include "zip.h"

#include "base/now.h"
#include "base/zstd.h"

#include <fcntl.h>
#include <manapy/image.h>
#include <manapy/syscall.h>
#include <string.h>
#include <sys/mman.h>

#define MEASURED (8ul << 20)
enum { SHRINKS = 10 }; /* by at least 1 / SHRINKS */
enum { MOST_LEFT_OUT = 64 };

void mpy_zip_begin(mpy_zip_t *zip, const char *how) {
    *zip = (mpy_zip_t){.automatic = !strcmp(how, "auto")};
    if (!strcmp(how, "off") || !mpy_zstd_open()) return;
    zip->workspace = mpy_zstd_workspace();
    long at = mpy_sys(SYS_mmap, 0, MPY_FRAME_MAX + zip->workspace, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mpy_sys_failed(at)) return;
    zip->frame = (char *)at;
    zip->on = 1;
}

void mpy_zip_end(mpy_zip_t *zip) {
    if (zip->on) mpy_sys(SYS_munmap, zip->frame, MPY_FRAME_MAX + zip->workspace);
    zip->on = 0;
}

int mpy_zip_measures(const mpy_zip_t *zip) { return zip->on && zip->automatic && zip->byte_ns == 0; }

void mpy_zip_measure(mpy_zip_t *zip, int fd, uint64_t bytes, int64_t ns) {
    zip->plain_bytes += bytes;
    zip->plain_ns += ns;
    if (zip->plain_bytes < MEASURED) return;
    int64_t begun = mpy_now_ns(CLOCK_MONOTONIC);
    sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
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

size_t mpy_zip_try(mpy_zip_t *zip, const void *from, size_t bytes) {
    size_t most = bytes - bytes / SHRINKS;
    int64_t begun = mpy_now_ns(CLOCK_MONOTONIC);
    size_t length = mpy_zstd_compress(zip->frame + MPY_FRAME_MAX, zip->workspace, zip->frame, most, from, bytes);
    double ns = (double)(mpy_now_ns(CLOCK_MONOTONIC) - begun);
    int pays = length && (!zip->automatic || (double)(bytes - length) * zip->byte_ns > ns);
    if (pays) {
        zip->failures = 0;
    } else {
        uint64_t times = 1ul << zip->failures;
        zip->left_out = bytes * times;
        if (times < MOST_LEFT_OUT) zip->failures++;
    }
    return length;
}
