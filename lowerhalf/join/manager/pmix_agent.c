/* pmix_agent.c - the process that speaks PMIx in place of a rank, which speaks PMI-1 with it. Lower half; libc.
 *
 *   rank                            agent                                    mpirun or slurmstepd
 *        <- library PATH            opens libpmix
 *        <- rank R size S local L   PMIx_Init, PMIx_Get of the sizes      <->
 *        put, barrier_in, get <->   PMIx_Put, PMIx_Commit, PMIx_Fence, PMIx_Get <->
 *        abort ->                   PMIx_Abort, under Slurm               ->
 *        finalize, or the end <->   PMIx_Finalize                         <->
 *
 * An error before the second line is `error TEXT`.
 *
 * Why a process: libpmix leaves a thread and descriptors in its process until PMIx_Finalize, and a server treats a rank
 * that ends without PMIx_Finalize as crashed. And an MPI library that later initializes PMIx in the same process fails
 * (Open MPI 5.0.11, whether or not we have finalized it before). Here a library that crashes or waits for ever does so
 * beside the rank, and the rank stays one thread.
 *
 * Why until the end of the rank, not only for the rendezvous: PMIx's server treats a lost connection as the loss of its
 * rank, finalized or not. If other ranks wait in the fence of their MPI_Init at that moment, they go on without this
 * rank, whose own fence then never ends (OpenPMIx, lost_connection() in ptl_base_sendrecv.c). And files that the MPI
 * library asks the server to remove at the end of its rank are removed at the end of the first connection.
 *
 * Invariants
 *  1. The agent ends with its rank. Where pidfds are not allowed (seccomp), it ends when the last process has closed
 *     the conversation.
 *  2. It writes nothing to the rank's standard streams: libpmix's own messages would appear in addition to our one
 *     line.
 *  3. PMIx has a key-value space for each rank. So kvsname in a `get` is the number of the rank that has put the key.
 *  4. It is no child of the rank: the program's wait(2) never sees it. Its parent, a child of the rank, ends as it ends
 *     while the rank waits for its first lines; the rank then kills the parent.
 *  5. Signals that schedulers send to all processes of a job as a warning do not end it.
 */
#define _GNU_SOURCE
#include "pmix_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/proc/wait.h"
#include "base/warnings.h"
#include "line.h"
#include "pmix_library.h"

enum { LINE_MAX_BYTES = 4096 };
/* The agent has no other descriptors of its rank: mpirun waits until those are closed. FD: the conversation.
 * RANK_PROCESS: pidfd of the rank, if there is one. */
enum { FD = 3, RANK_PROCESS = 4, AFTER = 5 };

static mpy_pmix_library_t pmix;
static char nspace[256];
static int rank_process = -1; /* RANK_PROCESS, or -1: there is none, and poll(2) leaves it out */

__attribute__((format(printf, 1, 2))) static _Noreturn void fail(const char *format, ...) {
    char text[1200];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    dprintf(FD, "error %s\n", text);
    _exit(1);
}

static pmix_proc_t process(pmix_rank_t rank) {
    pmix_proc_t proc = {.rank = rank};
    memcpy(proc.nspace, nspace, sizeof nspace);
    return proc;
}

/* A number that the server gives for the whole job; 0: it does not. */
static uint32_t number_of_job(const char *key) {
    const pmix_proc_t all = process(PMIX_RANK_WILDCARD);
    pmix_value_t *value = NULL;
    uint32_t number = 0;
    if (pmix.get(&all, key, NULL, 0, &value) != PMIX_SUCCESS || value == NULL) return 0;
    if (value->type == PMIX_UINT32) number = value->data.uint32;
    free(value);
    return number;
}

static pmix_status_t put(const char *key, char *text) {
    pmix_value_t value = {.type = PMIX_STRING, .data.string = text};
    return pmix.put(PMIX_GLOBAL, key, &value);
}

/* After this all ranks have all keys. */
static pmix_status_t fence(void) {
    pmix_info_t collect = {.key = PMIX_COLLECT_DATA, .value = {.type = PMIX_BOOL, .data.flag = true}};
    pmix_status_t status = pmix.commit();
    return status == PMIX_SUCCESS ? pmix.fence(NULL, 0, &collect, 1) : status;
}

static void get(pmix_rank_t from, const char *key) {
    const pmix_proc_t owner = process(from);
    pmix_value_t *value = NULL;
    pmix_status_t status = pmix.get(&owner, key, NULL, 0, &value);
    if (status != PMIX_SUCCESS) dprintf(FD, "cmd=get_result rc=-1 msg=%s\n", pmix.error_string(status));
    else if (value->type != PMIX_STRING) dprintf(FD, "cmd=get_result rc=-1 msg=no_text\n");
    else dprintf(FD, "cmd=get_result rc=0 value=%s\n", value->data.string);
}

static void answer_status(const char *command, pmix_status_t status) {
    if (status == PMIX_SUCCESS) dprintf(FD, "cmd=%s rc=0\n", command);
    else dprintf(FD, "cmd=%s rc=-1 msg=%s\n", command, pmix.error_string(status));
}

/* Open MPI's mpirun ends the other ranks by itself and would add a message of its own. srun does not. */
static void abort_job(int code) {
    if (mpy_pmix_is_slurms(nspace)) pmix.abort(code, "", NULL, 0);
}

/* The next line. Programs that the rank has started may hold the connection open, so it is not enough to wait for its
 * end. */
static bool next_line(char line[LINE_MAX_BYTES]) {
    struct pollfd ready[] = {{.fd = FD, .events = POLLIN}, {.fd = rank_process, .events = POLLIN}};
    while (poll(ready, 2, -1) < 0 && errno == EINTR) {}
    return ready[0].revents != 0 && mpy_line_read(FD, line, LINE_MAX_BYTES, MPY_LINE_NO_DEADLINE) == MPY_LINE_READ;
}

/* PMI-1 as pmi.c speaks it, until the rank ends it or is gone. */
static void serve(int patience_s) {
    char line[LINE_MAX_BYTES], key[64], value[LINE_MAX_BYTES];
    pmix_rank_t from;
    int code;
    while (next_line(line) && strcmp(line, "cmd=finalize") != 0) {
        if (sscanf(line, "cmd=put kvsname=%*s key=%63s value=%4095s", key, value) == 2)
            answer_status("put_result", put(key, value));
        else if (sscanf(line, "cmd=get kvsname=%u key=%63s", &from, key) == 2) get(from, key);
        else if (strcmp(line, "cmd=barrier_in") == 0) answer_status("barrier_out", fence());
        else if (sscanf(line, "cmd=abort exitcode=%d", &code) == 1) abort_job(code);
    }
    alarm((unsigned)patience_s); /* the rank waits for the answer */
    answer_status("finalize_ack", pmix.finalize(NULL, 0));
}

/* Comes before `silence`: the rank may have been started with closed standard streams, and then `fd` and `pidfd` have
 * the numbers of these. */
static void keep_only(int fd, int pidfd) {
    int a = fcntl(fd, F_DUPFD_CLOEXEC, AFTER), b = fcntl(pidfd, F_DUPFD_CLOEXEC, AFTER);
    dup2(a, FD);
    if (b >= 0) rank_process = dup2(b, RANK_PROCESS);
    else close(RANK_PROCESS);
    syscall(SYS_close_range, AFTER, ~0u, 0); /* libc has it from glibc 2.34 on */
}

/* Invariant 2. */
static void silence(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3 && null >= 0; fd++) dup2(null, fd);
    if (null > 2) close(null);
}

/* Invariant 4. */
static _Noreturn void end_as(pid_t agent) {
    const int status = mpy_proc_wait(agent);
    if (WIFSIGNALED(status)) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        raise(WTERMSIG(status));
    }
    _exit(WEXITSTATUS(status));
}

static _Noreturn void speak(int rank, int patience_s) {
    char error[1024];
    if (!mpy_pmix_library_open(&pmix, error, sizeof error)) fail("%s", error);
    dprintf(FD, "library %s\n", pmix.path);

    pmix_proc_t self;
    pmix_status_t status = pmix.init(&self, NULL, 0);
    if (status != PMIX_SUCCESS) fail("PMIx_Init of %s fails: %s", pmix.path, pmix.error_string(status));
    memcpy(nspace, self.nspace, sizeof nspace);
    uint32_t size = number_of_job(PMIX_JOB_SIZE);
    if (self.rank != (pmix_rank_t)rank || self.rank >= size)
        fail("the PMIx server and PMIX_RANK contradict each other: rank %u of %u, PMIX_RANK %d", self.rank, size,
             rank);
    prctl(PR_SET_PDEATHSIG, 0); /* the rank kills the parent now */
    dprintf(FD, "rank %u size %u local %u\n", self.rank, size, number_of_job(PMIX_LOCAL_SIZE));
    serve(patience_s);
    _exit(0);
}

_Noreturn void mpy_pmix_agent(int fd, int rank, int patience_s) {
    int pidfd = (int)syscall(SYS_pidfd_open, getppid(), 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mpy_ignore_warnings();
    signal(SIGPIPE, SIG_IGN);
    keep_only(fd, pidfd);
    silence();
    pid_t agent = fork();
    if (agent == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setsid();
        speak(rank, patience_s);
    }
    if (agent < 0) fail("fork for it fails: %s", strerror(errno));
    syscall(SYS_close_range, FD, ~0u, 0);
    end_as(agent);
}
