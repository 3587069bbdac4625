/* pmix.c - a rank whose process manager speaks PMIx: Open MPI's mpirun, `srun --mpi=pmix`. Lower half; libc; still one
 * thread.
 *
 * A process beside the rank speaks PMIx (pmix_agent.c says why), and the rank speaks PMI-1 with it, as with hydra
 * (pmi.c). It stays until the rank ends.
 *
 * Invariants
 *  1. A library that crashes and a server that does not answer cost ANSWER_SECONDS at most, then one line.
 *  2. If ranks fail in the same way, only one line says so. Open MPI 4's mpirun takes 1.6 s to end the others.
 *  3. This conversation leaves one descriptor in the rank, but no child and no thread.
 *
 * For tests MANAPY_PMIX_SECONDS, a whole number, replaces ANSWER_SECONDS.
 */
#define _GNU_SOURCE
#include "pmix.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/now.h"
#include "base/proc/wait.h"
#include "base/reason.h"
#include "isolate/fdguard.h"
#include "line.h"
#include "pmix_agent.h"

enum { ANSWER_SECONDS = 8, LINE_MAX_BYTES = PATH_MAX + 2048 };

bool mpy_pmix_is_there(void) { return getenv("PMIX_NAMESPACE") != NULL && getenv("PMIX_RANK") != NULL; }

const char *mpy_pmix_launcher(void) {
    const char *space = getenv("PMIX_NAMESPACE");
    return space != NULL && mpy_pmix_is_slurms(space) ? "srun --mpi=pmix" : "Open MPI's mpirun";
}

static int answer_seconds(void) {
    const char *given = getenv("MANAPY_PMIX_SECONDS");
    int seconds = given != NULL ? atoi(given) : 0;
    return seconds > 0 ? seconds : ANSWER_SECONDS;
}

static int64_t answer_deadline(void) { return mpy_now_ms() + answer_seconds() * INT64_C(1000); }

static int end_child(pid_t child, bool kill_it) {
    if (kill_it) kill(child, SIGKILL);
    return mpy_proc_wait(child);
}

static bool explain(mpy_line_result_t got, int status, const char *library, char *error, size_t n) {
    if (got == MPY_LINE_LATE)
        return mpy_refuse(error, n, "%s has started this rank, but its PMIx server does not answer within %d s (%s)",
                          mpy_pmix_launcher(), answer_seconds(), library);
    if (WIFSIGNALED(status))
        return mpy_refuse(error, n, "%s has started this rank, but %s crashes: %s (name another libpmix with "
                          "MANAPY_LIBPMIX)", mpy_pmix_launcher(), library, strsignal(WTERMSIG(status)));
    return mpy_refuse(error, n, "%s has started this rank, but %s ends the process that speaks PMIx (name another "
                      "libpmix with MANAPY_LIBPMIX)", mpy_pmix_launcher(), library);
}

/* The lines with which an agent begins. child: its parent. */
static bool greet(mpy_pmi_t *p, pid_t child, char *error, size_t n) {
    char line[LINE_MAX_BYTES], library[LINE_MAX_BYTES] = "libpmix";
    int64_t deadline = answer_deadline();
    mpy_line_result_t got = mpy_line_read(p->fd, line, sizeof line, deadline);
    if (got == MPY_LINE_READ && strncmp(line, "library ", 8) == 0) {
        snprintf(library, sizeof library, "%s", line + 8);
        got = mpy_line_read(p->fd, line, sizeof line, deadline);
    }
    bool is_read = got == MPY_LINE_READ;
    if (is_read && sscanf(line, "rank %d size %d local %d", &p->rank, &p->size, &p->local_size) == 3) {
        end_child(child, true);
        return true;
    }
    int status = end_child(child, got != MPY_LINE_ENDED);
    if (is_read) return mpy_refuse(error, n, "%s has started this rank, but %s", mpy_pmix_launcher(), line + 6);
    return explain(got, status, library, error, n);
}

static bool start_agent(mpy_pmi_t *p, int rank, char *error, size_t n) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return mpy_refuse(error, n, "socketpair: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) mpy_pmix_agent(ends[1], rank, answer_seconds());
    int cause = errno;
    close(ends[1]);
    p->fd = mpy_fd_high(ends[0]);
    if (child > 0 ? greet(p, child, error, n)
                  : mpy_refuse(error, n, "cannot start the process that speaks PMIx: fork: %s", strerror(cause)))
        return true;
    mpy_fd_close(p->fd);
    p->fd = -1;
    return false;
}

bool mpy_pmix_open(mpy_pmi_t *p, char *error, size_t n) {
    char *end, *text = getenv("PMIX_RANK");
    long rank = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || rank < 0 || rank > INT_MAX)
        return mpy_refuse(error, n, "PMIX_RANK=%s is no rank", text);
    p->manager = MPY_MANAGER_PMIX;
    strcpy(p->kvsname, "pmix");
    p->rank = (int)rank;
    return start_agent(p, p->rank, error, n);
}

/* A second client of one rank does not get the job's data by shared memory: Open MPI 4.1 and Slurm then fail, or wait
 * for ever. Without shared memory (component "hash") it gets them. */
void mpy_pmix_make_way(void) {
    if (mpy_pmix_is_there()) setenv("PMIX_MCA_gds", "hash", 0);
}
