/* snapshot.h - see snapshot.c. */
#ifndef MANAPY_SNAPSHOT_H
#define MANAPY_SNAPSHOT_H
#include "control/engine.h"

/* Write DIRECTORY/rank-NNNNN.img and fsync it. Every upper thread must be halted. Returns 0, or -1 with one line in
 * `error`; then no file remains. */
int mpy_snapshot_write(const char *directory, mpy_image_result_t *result, char *error, size_t n);
#endif
