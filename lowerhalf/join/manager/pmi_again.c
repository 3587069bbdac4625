/* pmi_again.c - lets the MPI library open its dialogue with a process manager that accepts cmd=init only once.
 *
 * Lower half only: write() and read() of the executable, so that the real MPI calls ours (isolate/interpose.c explains
 * how that works).
 *
 * We use PMI first, to find the job. Then the library starts again on the same descriptor. Hydra accepts this. Slurm's
 * plugin (srun --mpi=pmi2, seen with 22.05) does not answer a second cmd=init, and the library waits for ever. This one
 * line is intercepted here, and gets the same answer as the first one. Everything after it goes to the process manager
 * itself.
 *
 * Alternatives: a thread between the two, with a connection to each, would have to forward the last lines before an
 * exit in time (finalize, abort), and would have to be started again after an exec. Finding the job by files would
 * require a known directory before there is a job directory, and some file systems cache for seconds that a file is
 * missing. With this solution the library keeps the descriptor, nothing runs beside it, and with hydra the only cost is
 * a comparison.
 *
 * Invariants
 *  1. Everything except the first cmd=init on that descriptor passes unchanged and in order: PMI is request and answer
 *     on one thread, and no request is made before the answer to init has been read.
 *  2. The answer is what the process manager has told us: it speaks PMI 1.1. A library that insists on PMI 2 gets
 *     rc=-1, as from a process manager without PMI 2.
 */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE
#include "pmi_again.h"

#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* The definitions that our functions hide, by glibc's other names for them. */
ssize_t __write(int fd, const void *from, size_t bytes);
ssize_t __read(int fd, void *into, size_t bytes);

static int greeted = -1;       /* the descriptor, until its second cmd=init; then -1 */
static int answering = -1;     /* the descriptor, until the answer has been read; then -1 */
static const char *answer;     /* the part that has not been read */

void mpy_pmi_greet_again(int fd) {
    greeted = fd;
}

static int starts_with(const char *text, size_t bytes, const char *start) {
    size_t n = strlen(start);
    return bytes >= n && memcmp(text, start, n) == 0;
}

EXPORT ssize_t write(int fd, const void *from, size_t bytes) {
    if (fd < 0 || fd != greeted || !starts_with(from, bytes, "cmd=init ")) return __write(fd, from, bytes);
    int same = memmem(from, bytes, "pmi_version=1", 13) != NULL;
    answer = same ? "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n"
                  : "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1\n";
    answering = greeted;
    greeted = -1;
    return (ssize_t)bytes;
}

EXPORT ssize_t read(int fd, void *into, size_t bytes) {
    if (fd < 0 || fd != answering) return __read(fd, into, bytes);
    size_t left = strlen(answer), n = bytes < left ? bytes : left;
    memcpy(into, answer, n);
    answer += n;
    if (n == left) answering = -1;
    return (ssize_t)n;
}
