/* check.h - if a check fails, ends a driver and prints the place and errno. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK(x)                                                                                          \
    do {                                                                                                  \
        if (!(x)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s (errno %d %s)\n", __func__, __LINE__, #x, errno, strerror(errno)); \
            fflush(stdout);                                                                               \
            _exit(1); /* other threads may go on */                                                       \
        }                                                                                                 \
    } while (0)

#endif
