/* frugal.c - does the writer of a compressed image call malloc, or open a library? A forked writer must not. Prints how
 * often it does, while it writes an image: with libzstd, without it, and, to show that calls are counted, while a frame
 * is expanded.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/zstd.h"
#include "check.h"
#include "image/write/zip.h"

enum { BYTES = 32 << 20, PIECE = 1 << 20 };

void write_image(const char *path, uint64_t lo, uint64_t bytes, const char *compress, int threads,
                 const uint8_t *secret);

static int counts, calls, hidden;

/* A program's own functions come before those of the libraries, also for libraries that are opened later. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t m, size_t n);
void *malloc(size_t n) {
    calls += counts;
    return __libc_malloc(n);
}
void *calloc(size_t m, size_t n) {
    calls += counts;
    return __libc_calloc(m, n);
}
void *dlopen(const char *name, int flags) {
    calls += counts;
    return hidden ? NULL : ((void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen"))(name, flags);
}

static int end_count(void) {
    int found = calls;
    counts = calls = 0;
    return found;
}

int main(int argc, char **argv) {
    static const uint8_t secret[32];
    CHECK(argc == 3);
    hidden = argv[2][0] == 'h';
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < BYTES; i++) memory[i] = (char)(i / PIECE % 2 ? random() : 'x'); /* every other frame shrinks */
    int is_there = mpy_zstd_open(); /* as manapy-launch does */
    CHECK(is_there == !hidden);
    static const char *const ways[] = {"on", "auto", "off"};
    for (int i = 0; i < 3; i++) {
        counts = 1;
        write_image(argv[1], (uint64_t)memory, BYTES, ways[i], 3, secret);
        printf("%s %d\n", ways[i], end_count());
    }
    if (!is_there) return 0;
    mpy_zip_t zip;
    mpy_zip_begin(&zip, "on", 1);
    size_t length = mpy_zip_try(&zip, memory, PIECE, 0);
    counts = 1;
    CHECK(length && mpy_zstd_expand(zip.frame, length, memory, PIECE) == 0);
    printf("expanding %s\n", end_count() ? "some" : "none");
    return 0;
}
