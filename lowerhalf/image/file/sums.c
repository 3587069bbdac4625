/* sums.c - checksum and hash of a run, as its bytes are read. Lower half or Python's process; libc allowed. */
#include "reader.h"

#include "base/reason.h"
#include "crc32c.h"

#include <string.h>

void mpy_image_sum_begin(const mpy_image_t *im, mpy_image_sum_t *sum) {
    sum->crc = 0;
    if (im->keys) sum->hash = im->keys->hash;
}

void mpy_image_sum_add(const mpy_image_t *im, mpy_image_sum_t *sum, const void *data, size_t n) {
    sum->crc = mpy_crc32c(sum->crc, data, n);
    if (im->keys) mpy_polyval_update(&sum->hash, data, n);
}

int mpy_image_check_sum(const mpy_image_t *im, const mpy_image_run_t *run, mpy_image_sum_t *sum, char *err, size_t n) {
    if (sum->crc != run->crc)
        return mpy_reason(err, n, "%s: damaged: %llu bytes at 0x%llx (byte %llu of the file) have checksum %08x "
                          "instead of %08x", im->path, (unsigned long long)run->bytes, (unsigned long long)run->address,
                          (unsigned long long)run->offset, sum->crc, run->crc);
    uint8_t seal[MPY_RUN_SEAL];
    if (!im->keys) return 0;
    mpy_image_seal_run(im->keys, run, &sum->hash, seal);
    if (memcmp(seal, run->seal, sizeof seal))
        return mpy_reason(err, n, "%s: changed after its job had written it: the seal of the memory at 0x%llx is wrong",
                          im->path, (unsigned long long)run->address);
    return 0;
}
