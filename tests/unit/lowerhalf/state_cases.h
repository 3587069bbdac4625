/* state_cases.h - state that a program may have and that lowerhalf/process saves. Each case of state_driver.c sets up
 * one kind of state and verifies it.
 *
 * 1. verify holds twice: after saving, when nothing may have changed, and in a new process after restoring.
 * 2. A case without verify only tests check: the state is refused, or the test contains the reason why it isn't.
 * 3. Descriptors have fixed numbers, 10 and up: at(). */
#pragma once
#include "check.h"

#include <fcntl.h>
#include <unistd.h>

typedef struct test_case {
    const char *name; /* NULL: the end of this table */
    void (*setup)(void);
    void (*verify)(void);
} test_case_t;

extern const test_case_t file_cases[], channel_cases[], process_cases[], refused_cases[];
extern int restored; /* verify runs after a restart */

static inline void at(int number, int fd) {
    CHECK(fd >= 0);
    CHECK(dup2(fd, number) == number);
    close(fd);
}

static inline void expect_read(int fd, const char *text) {
    char buffer[256] = "";
    ssize_t got = read(fd, buffer, sizeof buffer - 1);
    if (got != (ssize_t)strlen(text) || strcmp(buffer, text))
        fprintf(stderr, "read \"%s\" (%zd), expected \"%s\"\n", buffer, got, text);
    CHECK(got == (ssize_t)strlen(text) && !strcmp(buffer, text));
}

static inline int closed(int fd) {
    return fcntl(fd, F_GETFD) < 0 && errno == EBADF;
}

static inline int status(int fd) {
    return fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC);
}
