/* check.h - ends a driver, with the place and errno, when something isn't as it must be. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(x)                                                                                       \
    do {                                                                                               \
        if (!(x)) {                                                                                    \
            fprintf(stderr, "%s:%d: %s (errno %d %s)\n", __func__, __LINE__, #x, errno, strerror(errno)); \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)
