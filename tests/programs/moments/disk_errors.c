/* disk_errors.c - a library to be preloaded: a disk that fails, or is slow, when a test wants it.
 *
 * DISK_ERRORS names a file. While this file exists, its line "ERRNO CALL TEXT" makes each CALL (write, pwrite, fsync)
 * on a file whose path contains TEXT fail with ERRNO. The line "0 pread TEXT" makes each pread of 64 KiB or more take
 * 10 ms.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd, const char *call) {
    char line[512] = "", wanted[16], text[256], link[64], path[4096] = "";
    const char *order = getenv("DISK_ERRORS");
    int number, saved = errno, file = order != NULL ? open(order, O_RDONLY | O_CLOEXEC) : -1;
    errno = saved;
    if (file < 0) return 0;
    int got = read(file, line, sizeof line - 1) > 0 && sscanf(line, "%d %15s %255s", &number, wanted, text) == 3;
    close(file);
    if (!got || strcmp(wanted, call) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0 || strstr(path, text) == NULL) return 0;
    errno = number;
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t n) { return fails(fd, "write") ? -1 : NEXT(write)(fd, data, n); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    return fails(fd, "pwrite") ? -1 : NEXT(pwrite)(fd, data, n, at);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    return fails(fd, "pwrite") ? -1 : NEXT(pwrite64)(fd, data, n, at);
}
static void tarry(int fd, size_t n) {
    if (n >= 1 << 16 && fails(fd, "pread")) usleep(10000);
}
ssize_t pread(int fd, void *data, size_t n, off_t at) { return tarry(fd, n), NEXT(pread)(fd, data, n, at); }
ssize_t pread64(int fd, void *data, size_t n, off64_t at) { return tarry(fd, n), NEXT(pread64)(fd, data, n, at); }
int fsync(int fd) { return fails(fd, "fsync") ? -1 : NEXT(fsync)(fd); }
