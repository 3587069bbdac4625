/* state_cases_files.c - files, locks, devices, and the descriptors with which a process begins. */
#define _GNU_SOURCE
#include "state_cases.h"

#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int probed_size(const char *path) {
    struct stat st;
    return stat(path, &st) ? -1 : (int)st.st_size;
}

static void files_setup(void) {
    at(20, open("in.txt", O_RDWR | O_CREAT, 0644));
    CHECK(write(20, "hello world", 11) == 11);
    at(10, open("in.txt", O_RDONLY));
    CHECK(lseek(10, 6, SEEK_SET) == 6);
    CHECK(dup2(10, 11) == 11); /* shares the offset */
    at(12, open("in.txt", O_RDONLY | O_CLOEXEC)); /* doesn't share it */
    fcntl(12, F_SETFD, FD_CLOEXEC);
    at(13, open("log.txt", O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0600));
    CHECK(write(13, "one\n", 4) == 4);
    at(14, open("sync.txt", O_WRONLY | O_CREAT | O_DSYNC, 0600));
    at(15, open(".", O_RDONLY | O_DIRECTORY));
    at(16, open("/proc/self/status", O_RDONLY));
    at(17, open("in.txt", O_PATH));
    at(600, open("in.txt", O_RDONLY)); /* above the lower half's base */
    at(18, open("blank name\nx (deleted)", O_RDWR | O_CREAT, 0644));
    close(20);
}

static void files_verify(void) {
    char name[16];
    struct stat st;
    CHECK(closed(20));
    expect_read(10, "world");
    CHECK(lseek(11, 0, SEEK_CUR) == 11 && lseek(12, 0, SEEK_CUR) == 0);
    CHECK(fcntl(10, F_GETFD) == 0 && fcntl(12, F_GETFD) == FD_CLOEXEC);
    CHECK(status(13) == (O_WRONLY | O_APPEND | O_NONBLOCK) && status(14) == (O_WRONLY | O_DSYNC));
    CHECK(write(13, "two\n", 4) == 4 && probed_size("log.txt") == 8);
    CHECK(fstatat(15, "in.txt", &st, 0) == 0);
    CHECK(read(16, name, 5) == 5 && !memcmp(name, "Name:", 5));
    CHECK(fcntl(17, F_GETFL) & O_PATH);
    expect_read(600, "hello world");
    CHECK(fstat(18, &st) == 0 && st.st_nlink == 1);
    if (restored)
        CHECK(truncate("log.txt", 4) == 0);
}

/* The file grows after the checkpoint, and is truncated at the restart. */
static void grown_setup(void) {
    at(10, open("out.txt", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    CHECK(write(10, "step 1\n", 7) == 7);
}

static void grown_verify(void) {
    CHECK(write(10, restored ? "STEP 2\n" : "step 2 and more\n", restored ? 7 : 16) > 0);
    CHECK(probed_size("out.txt") == (restored ? 14 : 23));
}

static void deleted_setup(void) {
    at(10, open("gone", O_RDWR | O_CREAT, 0600));
    CHECK(write(10, "contents", 8) == 8);
    at(11, open("gone", O_RDONLY));
    at(12, open("gone", O_WRONLY | O_APPEND));
    CHECK(unlink("gone") == 0);
    at(13, open(".", O_TMPFILE | O_RDWR, 0400));
    CHECK(write(13, "tmp", 3) == 3);
    at(14, memfd_create("mem", MFD_ALLOW_SEALING));
    CHECK(write(14, "memory", 6) == 6 && lseek(14, 2, SEEK_SET) == 2);
    CHECK(fcntl(14, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    at(15, open("only", O_WRONLY | O_CREAT, 0600)); /* it can be read only through /proc */
    CHECK(write(15, "secret", 6) == 6 && unlink("only") == 0);
}

static void deleted_verify(void) {
    struct stat a, b;
    char buffer[16] = "";
    CHECK(fstat(10, &a) == 0 && fstat(11, &b) == 0 && a.st_nlink == 0 && a.st_ino == b.st_ino);
    CHECK(lseek(10, 0, SEEK_CUR) == 8 && lseek(11, 0, SEEK_CUR) == 0);
    expect_read(11, "contents");
    CHECK(write(12, "+", 1) == 1);
    expect_read(11, "+");
    CHECK(pread(13, buffer, 9, 0) == 3 && !strcmp(buffer, "tmp") && lseek(13, 0, SEEK_CUR) == 3);
    CHECK(fstat(13, &a) == 0 && (a.st_mode & 0777) == 0400);
    expect_read(14, "mory");
    CHECK(fcntl(14, F_GET_SEALS) == F_SEAL_SHRINK);
    CHECK(fstat(15, &a) == 0 && a.st_size == 6 && lseek(15, 0, SEEK_CUR) == 6);
}

static void locks_setup(void) {
    at(10, open("a.lock", O_RDWR | O_CREAT, 0600));
    CHECK(flock(10, LOCK_EX) == 0);
    /* all are opened first, because at() closes, and closing drops fcntl locks */
    at(11, open("b.lock", O_RDWR | O_CREAT, 0600));
    at(12, open("b.lock", O_RDWR));
    struct flock range = {.l_type = F_WRLCK, .l_start = 10, .l_len = 5};
    CHECK(fcntl(11, F_SETLK, &range) == 0);
    range = (struct flock){.l_type = F_RDLCK, .l_start = 100};
    CHECK(fcntl(12, F_OFD_SETLK, &range) == 0);
}

static void locks_verify(void) {
    int fd = open("a.lock", O_RDWR);
    CHECK(flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK);
    pid_t child = fork();
    if (child == 0) { /* fcntl locks can be seen only from another process */
        struct flock range = {.l_type = F_WRLCK, .l_start = 0, .l_len = 50};
        int other = open("b.lock", O_RDWR);
        if (fcntl(other, F_GETLK, &range) || range.l_type != F_WRLCK || range.l_start != 10 || range.l_len != 5)
            _exit(1);
        range = (struct flock){.l_type = F_WRLCK, .l_start = 200, .l_len = 1};
        if (fcntl(other, F_GETLK, &range) || range.l_type != F_RDLCK || range.l_start != 100 || range.l_len != 0)
            _exit(2);
        _exit(0);
    }
    int result;
    CHECK(waitpid(child, &result, 0) == child && result == 0);
}

static void devices_setup(void) {
    at(10, open("/dev/null", O_WRONLY));
    at(11, open("/dev/urandom", O_RDONLY));
    at(12, open("/dev/zero", O_RDWR | O_CLOEXEC));
    at(13, open("/dev/full", O_RDWR));
}

static void devices_verify(void) {
    char byte = 1;
    CHECK(write(10, "x", 1) == 1 && read(11, &byte, 1) == 1);
    CHECK(read(12, &byte, 1) == 1 && byte == 0);
    CHECK(write(13, "x", 1) < 0 && errno == ENOSPC);
}

/* ---- stdio: 10 is a dup of standard output, 2 is a file of the program's, standard input is closed ---- */

static void stdio_setup(void) {
    CHECK(dup2(1, 10) == 10);
    at(11, open("err.txt", O_WRONLY | O_CREAT, 0600));
    fflush(stderr);
    CHECK(dup2(11, 2) == 2);
    close(0);
}

static void stdio_verify(void) {
    CHECK(closed(0));
    CHECK(write(10, "through ten\n", 12) == 12);
    CHECK(write(2, "E", 1) == 1);
    CHECK(lseek(11, 0, SEEK_CUR) == lseek(2, 0, SEEK_CUR));
}

/* The process that starts this one leaves descriptor 8 open: a pipe to another process. */
static void inherited_setup(void) {
    CHECK(fcntl(8, F_GETFD) >= 0);
}

static void inherited_verify(void) {
    CHECK(fcntl(8, F_GETFD) >= 0);
    CHECK(closed(9));
}

const test_case_t file_cases[] = {
    {"files", files_setup, files_verify},
    {"grown", grown_setup, grown_verify},
    {"deleted", deleted_setup, deleted_verify},
    {"locks", locks_setup, locks_verify},
    {"devices", devices_setup, devices_verify},
    {"stdio", stdio_setup, stdio_verify},
    {"inherited", inherited_setup, inherited_verify},
    {NULL, NULL, NULL},
};
