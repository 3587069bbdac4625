/* pmix_agent.c - the process that speaks PMIx in place of a rank, which speaks PMI-1 with it. Lower half; libc.
 *
 *   rank                            agent                                    mpirun or slurmstepd
 *        <- library PATH            opens libpmix
 *        <- rank R size S local L   PMIx_Init, PMIx_Get of the sizes      <->
 *        put, barrier_in, get <->   PMIx_Put, PMIx_Commit, PMIx_Fence, PMIx_Get <->
 *        finalize <->               PMIx_Finalize                         <->
 *
 * An error before the second line is `error TEXT`.
 *
 * Why a process: libpmix leaves a thread and descriptors in its process until PMIx_Finalize, and a server takes a rank
 * that ends without PMIx_Finalize for a crash. And an MPI library that later initializes PMIx in the same process fails
 * (Open MPI 5.0.11, whether or not we have finalized it before). Here all of it ends with the rendezvous, a library
 * that crashes or waits for ever does so beside the rank, and the rank stays one thread.
 *
 * Invariants
 *  1. The agent ends with its rank.
 *  2. It writes nothing to the rank's standard streams: libpmix's own messages would stand beside our one line.
 *  3. Only rank 0 puts keys.
 */
#define _GNU_SOURCE
#include "pmix_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "pmix_library.h"

enum { LINE_MAX_BYTES = 4096 };

static mpy_pmix_library_t pmix;
static char nspace[256];

__attribute__((format(printf, 2, 3))) static _Noreturn void fail(int fd, const char *format, ...) {
    char text[1200];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    dprintf(fd, "error %s\n", text);
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

static void get(int fd, const char *key) {
    const pmix_proc_t first = process(0);
    pmix_value_t *value = NULL;
    pmix_status_t status = pmix.get(&first, key, NULL, 0, &value);
    if (status != PMIX_SUCCESS) dprintf(fd, "cmd=get_result rc=-1 msg=%s\n", pmix.error_string(status));
    else if (value->type != PMIX_STRING) dprintf(fd, "cmd=get_result rc=-1 msg=no_text\n");
    else dprintf(fd, "cmd=get_result rc=0 value=%s\n", value->data.string);
}

static void answer_status(int fd, const char *command, pmix_status_t status) {
    if (status == PMIX_SUCCESS) dprintf(fd, "cmd=%s rc=0\n", command);
    else dprintf(fd, "cmd=%s rc=-1 msg=%s\n", command, pmix.error_string(status));
}

/* PMI-1 as pmi.c speaks it, until the rank is gone. */
static void serve(int fd) {
    char line[LINE_MAX_BYTES], key[64], value[LINE_MAX_BYTES];
    FILE *stream = fdopen(fd, "r");
    while (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        if (sscanf(line, "cmd=put kvsname=%*s key=%63s value=%4095s", key, value) == 2)
            answer_status(fd, "put_result", put(key, value));
        else if (sscanf(line, "cmd=get kvsname=%*s key=%63s", key) == 1) get(fd, key);
        else if (strcmp(line, "cmd=barrier_in\n") == 0) answer_status(fd, "barrier_out", fence());
        else if (strcmp(line, "cmd=finalize\n") == 0)
            answer_status(fd, "finalize_ack", pmix.finalize(NULL, 0));
    }
}

/* Invariant 2. */
static void silence(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3 && null >= 0; fd++) dup2(null, fd);
}

_Noreturn void mpy_pmix_agent(int fd, int rank) {
    char error[1024];
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* invariant 1; one that has died before leaves an end of file */
    silence();
    if (!mpy_pmix_library_open(&pmix, error, sizeof error)) fail(fd, "%s", error);
    dprintf(fd, "library %s\n", pmix.path);

    pmix_proc_t self;
    pmix_status_t status = pmix.init(&self, NULL, 0);
    if (status != PMIX_SUCCESS) fail(fd, "PMIx_Init of %s fails: %s", pmix.path, pmix.error_string(status));
    memcpy(nspace, self.nspace, sizeof nspace);
    uint32_t size = number_of_job(PMIX_JOB_SIZE);
    if (self.rank != (pmix_rank_t)rank || self.rank >= size)
        fail(fd, "the PMIx server and PMIX_RANK contradict each other: rank %u of %u, PMIX_RANK %d", self.rank,
             size, rank);
    dprintf(fd, "rank %u size %u local %u\n", self.rank, size, number_of_job(PMIX_LOCAL_SIZE));
    serve(fd);
    _exit(0);
}
