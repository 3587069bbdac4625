/* state_cases.h - what a program may have that lowerhalf/process saves: each case sets it up and verifies it, and is
 * one of state_driver.c's.
 *
 * 1. verify holds twice: after saving, when nothing may have changed, and in a new process after restoring.
 * 2. A case without verify is for check alone: it is refused, or the reason why not is in the test.
 * 3. Descriptors lie at fixed numbers, 10 and up: at(). */
#pragma once
#include "check.h"

#include <fcntl.h>
#include <unistd.h>

typedef struct test_case {
    const char *name; /* NULL: no more of this table */
    void (*setup)(void);
    void (*verify)(void);
} test_case_t;

extern const test_case_t file_cases[], channel_cases[], process_cases[], refused_cases[];
extern int restored; /* verify runs after a restart */

static inline void at(int number, int fd)
{
    CHECK(fd >= 0);
    CHECK(dup2(fd, number) == number);
    close(fd);
}

static inline void expect_read(int fd, const char *text)
{
    char buffer[256] = "";
    ssize_t got = read(fd, buffer, sizeof buffer - 1);
    if (got != (ssize_t)strlen(text) || strcmp(buffer, text))
        fprintf(stderr, "read \"%s\" (%zd), expected \"%s\"\n", buffer, got, text);
    CHECK(got == (ssize_t)strlen(text) && !strcmp(buffer, text));
}

static inline int closed(int fd)
{
    return fcntl(fd, F_GETFD) < 0 && errno == EBADF;
}

static inline int status(int fd)
{
    return fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC);
}
