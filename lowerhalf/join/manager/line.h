/* line.h - see line.c. */
#ifndef MANAPY_LINE_H
#define MANAPY_LINE_H

#include <stddef.h>
#include <stdint.h>

/* ENDED: the connection is lost, or the line does not fit; see errno. */
typedef enum { MPY_LINE_READ, MPY_LINE_ENDED, MPY_LINE_LATE } mpy_line_result_t;

enum { MPY_LINE_NO_DEADLINE = -1 };

/* Read one line, without its newline. deadline: in ms (mpy_now_ms). */
mpy_line_result_t mpy_line_read(int fd, char *line, size_t size, int64_t deadline);

#endif
