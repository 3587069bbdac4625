/* zipped.c - a library for test_zipped.py: writes memory of this process, or pages of a mapped file, as an image, with
 * the real writer, and loads the runs of an image, with the real functions of the restore.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/zstd.h"
#include "check.h"
#include "image/file/reader.h"
#include "image/pages.h"

static mpy_image_failure_t failure;
static mpy_image_output_t o;

static int never(void) { return 0; }

static void begin(const char *path, const char *compress, int threads, const uint8_t *secret) {
    static const char page[MPY_IMAGE_PAGE];
    o = (mpy_image_output_t){.runs.size = sizeof(mpy_image_run_t), .cancelled = never, .failure = &failure};
    memcpy(o.header.magic, MPY_IMAGE_MAGIC, sizeof o.header.magic);
    o.header.version = MPY_IMAGE_VERSION, o.header.boundary_version = MPY_BOUNDARY_VERSION, o.header.size = 1;
    CHECK((o.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
    mpy_image_keys(&o.keys, secret);
    mpy_image_seal_begin(&o.seal, &o.keys);
    mpy_zip_begin(&o.zip, compress, threads);
    CHECK(!mpy_pages_begin(&o) && !mpy_image_output_put(&o, page, sizeof page));
}

static void end(void) {
    mpy_pages_end();
    mpy_zip_end(&o.zip);
    mpy_vector_free(&o.runs);
    close(o.fd);
}

/* Writes [lo, lo + bytes). */
void write_image(const char *path, uint64_t lo, uint64_t bytes, const char *compress, int threads,
                 const uint8_t *secret) {
    static char no_path[] = "";
    const mpy_map_t map = {.lo = lo, .hi = lo + bytes, .prot = 3, .path = no_path};
    const mpy_pages_t pages = {.map = &map};
    const mpy_image_region_t region = {.lo = lo, .hi = lo + bytes, .prot = 3};
    begin(path, compress, threads, secret);
    CHECK(!mpy_pages_write(&o, &pages, NULL));
    CHECK(!mpy_image_output_section(&o, MPY_SECTION_REGIONS, &region, sizeof region, 1) &&
          !mpy_image_output_vector(&o, MPY_SECTION_RUNS, &o.runs) &&
          !mpy_image_output_section(&o, MPY_SECTION_FILES, "", 0, 0) &&
          !mpy_image_output_section(&o, MPY_SECTION_STRINGS, "", 0, 0) &&
          !mpy_image_output_section(&o, MPY_SECTION_THREADS, "", 0, 0) && !mpy_image_output_finish(&o));
    end();
}

/* Writes the pages of a mapped file, whose name another file gets (NULL: none) after it was mapped. Returns 0, or errno
 * with the reason in what. */
int write_mapped(const char *path, char *file, const char *other, const uint8_t *secret, char *what, size_t n) {
    struct stat st;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && !fstat(fd, &st));
    char *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED && !close(fd) && (!other || !rename(other, file)));
    const mpy_image_file_t mapped = {.device = st.st_dev, .inode = st.st_ino, .bytes = (uint64_t)st.st_size};
    const mpy_map_t map = {.lo = (uint64_t)at, .hi = (uint64_t)at + mapped.bytes, .prot = PROT_READ, .path = file};
    const mpy_pages_t pages = {.map = &map, .file = &mapped, .fd = MPY_PAGES_NOT_OPEN};
    begin(path, "off", 1, secret);
    const int bad = mpy_pages_write(&o, &pages, NULL);
    end();
    munmap(at, mapped.bytes);
    snprintf(what, n, "%s", bad ? failure.what : "");
    return bad ? failure.error_number : 0;
}

/* Loads all runs, each at its distance from `lo`. Returns 0, or -1 with one line in err. */
int load_image(const char *path, uint64_t lo, char *to, const uint8_t *secret, char *err, size_t n) {
    mpy_image_t image;
    mpy_image_keys_t keys;
    mpy_image_keys(&keys, secret);
    if (mpy_image_open(&image, path, -1, -1, &keys, err, n)) return -1;
    int bad = mpy_image_check_loadable(&image, err, n);
    for (uint64_t i = 0; i < image.nruns && !bad; i++)
        bad = mpy_image_read_run(&image, &image.runs[i], to + (image.runs[i].address - lo), err, n);
    mpy_image_close(&image);
    return bad;
}

/* How many of these frames of random data are tried? */
int tried_frames(int frames, const char *frame) {
    mpy_zip_t zip;
    int tries = 0;
    mpy_zip_begin(&zip, "on", 1);
    for (uint64_t left = (uint64_t)frames * MPY_FRAME_MAX, plain; left; left -= plain) {
        plain = mpy_zip_plain(&zip, left);
        if (plain) continue;
        plain = MPY_FRAME_MAX;
        CHECK(mpy_zip_try(&zip, frame, plain, 0) == 0);
        tries++;
    }
    mpy_zip_end(&zip);
    return tries;
}

/* With `auto`, on a disk that takes so many ns a byte: is a frame tried at once after this one? */
int pays(double byte_ns, const char *frame) {
    mpy_zip_t zip;
    mpy_zip_begin(&zip, "auto", 1);
    zip.byte_ns = byte_ns;
    CHECK(mpy_zip_try(&zip, frame, MPY_FRAME_MAX, 0) > 0);
    int at_once = mpy_zip_plain(&zip, MPY_FRAME_MAX) == 0;
    mpy_zip_end(&zip);
    return at_once;
}

/* How many threads help to compress, if there are to be so many in all? */
int helpers(int threads) {
    mpy_zip_t zip;
    mpy_zip_begin(&zip, "on", threads);
    const int found = zip.pool.helpers;
    mpy_zip_end(&zip);
    return found;
}

/* With `auto`: is the disk measured after this frame? */
int measures(const char *frame) {
    mpy_zip_t zip;
    mpy_zip_begin(&zip, "auto", 1);
    CHECK(!mpy_zip_measures(&zip) && mpy_zip_plain(&zip, MPY_FRAME_MAX) == 0);
    CHECK(mpy_zip_try(&zip, frame, MPY_FRAME_MAX, 0) == 0); /* it is written as it is */
    const int found = mpy_zip_measures(&zip);
    mpy_zip_end(&zip);
    return found;
}
