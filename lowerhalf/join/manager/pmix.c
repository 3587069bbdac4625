/* pmix.c - a rank whose process manager speaks PMIx: Open MPI's mpirun, `srun --mpi=pmix`. Lower half; libc; still one
 * thread.
 *
 * A child of the rank speaks PMIx (pmix_agent.c says why), and the rank speaks PMI-1 with it, as with hydra (pmi.c).
 *
 * Invariants
 *  1. A library that crashes and a server that does not answer cost ANSWER_MS at most, then one line.
 *  2. Ranks that fail alike say so once. Open MPI 4's mpirun takes 1.6 s to end the others.
 *  3. After mpy_pmix_close there is no child, no descriptor and no thread of this conversation.
 */
#define _GNU_SOURCE
#include "pmix.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/now.h"
#include "base/reason.h"
#include "isolate/fdguard.h"
#include "pmix_agent.h"

enum { ANSWER_MS = 8000, SPEAKER_S = 3, LINE_MAX_BYTES = PATH_MAX + 2048 };

bool mpy_pmix_is_there(void) { return getenv("PMIX_NAMESPACE") != NULL && getenv("PMIX_RANK") != NULL; }

const char *mpy_pmix_launcher(void) {
    const char *space = getenv("PMIX_NAMESPACE");
    return space != NULL && strncmp(space, "slurm.", 6) == 0 ? "srun --mpi=pmix" : "Open MPI's mpirun";
}

void mpy_pmix_let_rank0_speak(int rank) {
    if (rank != 0) sleep(SPEAKER_S);
}

typedef enum { LINE, ENDED, LATE } got_t;

static got_t read_line(int fd, char line[LINE_MAX_BYTES], int64_t deadline) {
    for (size_t at = 0; at < LINE_MAX_BYTES; at++) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t left = deadline - mpy_now_ms();
        if (left <= 0 || poll(&ready, 1, (int)left) == 0) return LATE;
        if (read(fd, line + at, 1) != 1) return ENDED;
        if (line[at] == '\n') return line[at] = '\0', LINE;
    }
    return ENDED;
}

static int end_agent(mpy_pmi_t *p, bool kill_it) {
    int status = 0;
    if (kill_it) kill(p->agent, SIGKILL);
    while (waitpid(p->agent, &status, 0) < 0 && errno == EINTR) {}
    mpy_fd_close(p->fd);
    p->fd = -1;
    return status;
}

static bool explain(got_t got, int status, const char *library, char *error, size_t n) {
    if (got == LATE)
        return mpy_refuse(error, n, "%s has started this rank, but its PMIx server does not answer within %d s (%s)",
                          mpy_pmix_launcher(), ANSWER_MS / 1000, library);
    if (WIFSIGNALED(status))
        return mpy_refuse(error, n, "%s has started this rank, but %s crashes: %s (name another libpmix with "
                          "MANAPY_LIBPMIX)", mpy_pmix_launcher(), library, strsignal(WTERMSIG(status)));
    return mpy_refuse(error, n, "%s has started this rank, but %s ends the process that speaks PMIx (name another "
                      "libpmix with MANAPY_LIBPMIX)", mpy_pmix_launcher(), library);
}

/* The lines with which an agent begins. */
static bool greet(mpy_pmi_t *p, char *error, size_t n) {
    char line[LINE_MAX_BYTES], library[LINE_MAX_BYTES] = "libpmix";
    int64_t deadline = mpy_now_ms() + ANSWER_MS;
    got_t got = read_line(p->fd, line, deadline);
    if (got == LINE && strncmp(line, "library ", 8) == 0) {
        snprintf(library, sizeof library, "%s", line + 8);
        got = read_line(p->fd, line, deadline);
    }
    if (got == LINE && sscanf(line, "rank %d size %d local %d", &p->rank, &p->size, &p->local_size) == 3) return true;
    int status = end_agent(p, got != ENDED);
    if (got == LINE) return mpy_refuse(error, n, "%s has started this rank, but %s", mpy_pmix_launcher(), line + 6);
    return explain(got, status, library, error, n);
}

static bool start_agent(mpy_pmi_t *p, int rank, char *error, size_t n) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return mpy_refuse(error, n, "socketpair: %s", strerror(errno));
    p->agent = fork();
    if (p->agent == 0) {
        close(ends[0]);
        mpy_pmix_agent(ends[1], rank);
    }
    int cause = errno;
    close(ends[1]);
    p->fd = mpy_fd_high(ends[0]);
    if (p->agent > 0) return true;
    mpy_fd_close(p->fd);
    p->fd = -1;
    return mpy_refuse(error, n, "cannot start the process that speaks PMIx: fork: %s", strerror(cause));
}

bool mpy_pmix_open(mpy_pmi_t *p, char *error, size_t n) {
    char *end, *text = getenv("PMIX_RANK");
    long rank = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || rank < 0 || rank > INT_MAX)
        return mpy_refuse(error, n, "PMIX_RANK=%s is no rank", text);
    p->manager = MPY_MANAGER_PMIX;
    strcpy(p->kvsname, "pmix");
    if (start_agent(p, (int)rank, error, n) && greet(p, error, n)) return true;
    mpy_pmix_let_rank0_speak((int)rank);
    return false;
}

void mpy_pmix_close(mpy_pmi_t *p) {
    static const char request[] = "cmd=finalize\n";
    char line[LINE_MAX_BYTES];
    bool asked = send(p->fd, request, sizeof request - 1, MSG_NOSIGNAL) == sizeof request - 1;
    bool done = asked && read_line(p->fd, line, mpy_now_ms() + ANSWER_MS) == LINE;
    if (done) shutdown(p->fd, SHUT_RDWR);
    end_agent(p, !done);
}

/* A second PMIx_Init with the id of a rank that has finalized finds the shared memory of the first one gone: Open MPI
 * 4.1 and Slurm then wait for ever, or fail. Without shared memory (component "hash") it succeeds. */
void mpy_pmix_make_way(void) {
    if (mpy_pmix_is_there()) setenv("PMIX_MCA_gds", "hash", 0);
}
