/* command.h - see command.c. */
#ifndef MANAPY_COMMAND_H
#define MANAPY_COMMAND_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Path of the command `manapy` of this installation. False with one line in `error`. */
bool mpy_command_path(char out[PATH_MAX], char *error, size_t n);

/* In a forked child: becomes the command argv[0], with `count` descriptors as 0, 1, 2 ... and no others. */
_Noreturn void mpy_command_become(char *const argv[], const int *descriptors, int count);

/* Starts the command `argv` in a session of its own, as no child of ours. It ignores schedulers' warnings
 * (base/warnings.h). Its output goes to `log_path`; `descriptors` become 3, 4 ... False with one line in `error`. */
bool mpy_command_detach(char *const argv[], const char *log_path, const int *descriptors, int count, char *error,
                       size_t n);

/* Runs the command `argv` to its end. answer: the first line of its output, at most size - 1 characters. Its standard
 * error is ours. */
bool mpy_command_ask(char *const argv[], char *answer, size_t size, char *error, size_t n);

#endif
