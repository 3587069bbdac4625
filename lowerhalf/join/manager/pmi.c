/* pmi.c - client of the process manager's PMI-1 service, used before the MPI library is loaded. Where the process
 * manager speaks PMIx, a process of our own offers that service (pmix.c). Lower half; libc.
 *
 * Invariants
 *  1. MPI_Init later opens its own dialogue on the same descriptor (cmd=init again). Hydra answers as if it were the
 *     first. For other process managers pmi_again.c answers. We send cmd=finalize only at the end of a program that has
 *     not initialized MPI (notify.c).
 *  2. Not one byte beyond our own answers is read (line.c). The dialogue is strictly request and answer, so no data
 *     that the library waits for can be buffered here.
 *  3. PMI_FD is moved to a number that the program does not use (isolate/fdguard.h), and the environment is updated.
 */
#define _GNU_SOURCE
#include "pmi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io/whole.h"
#include "base/reason.h"
#include "isolate/fdguard.h"
#include "line.h"
#include "pmix.h"

#define LINE_MAX_BYTES 1024 /* hydra's own limit (PMIU_MAXLINE) */

/* Open MPI 4's mpirun takes 1.6 s to end the ranks of a job, hydra much less. */
enum { SPEAKER_MS = 500, PMIX_SPEAKER_MS = 3000 };

static bool talk(mpy_pmi_t *p, char line[LINE_MAX_BYTES * 4], const char *expect, char *error, size_t n) {
    if (mpy_write_whole(p->fd, line, strlen(line), MPY_AT_POSITION)) goto lost;
    if (mpy_line_read(p->fd, line, LINE_MAX_BYTES * 4, MPY_LINE_NO_DEADLINE) != MPY_LINE_READ) goto lost;
    char want[64];
    snprintf(want, sizeof want, "cmd=%s", expect);
    size_t wanted = strlen(want);
    if (strncmp(line, want, wanted) != 0 || (line[wanted] != ' ' && line[wanted] != '\0'))
        return mpy_refuse(error, n, "the process manager answered \"%.200s\" instead of \"%s\" (is it PMI-1?)",
                          line, want);
    const char *rc = strstr(line, " rc=");
    if (rc != NULL && atoi(rc + 4) != 0) return mpy_refuse(error, n, "the process manager refused: %.200s", line);
    return true;
lost:
    return mpy_refuse(error, n, "the process manager's connection is lost: %s", strerror(errno));
}

/* The value of `key=` in an answer, up to the next blank. */
static bool value_of(const char *line, const char *key, char *out, size_t size) {
    char want[64];
    int wanted = snprintf(want, sizeof want, " %s=", key);
    const char *at = strstr(line, want);
    if (at == NULL) return false;
    at += wanted;
    size_t length = strcspn(at, " \n");
    if (length >= size) return false;
    memcpy(out, at, length);
    out[length] = '\0';
    return true;
}

static int env_number(const char *name, int fallback) {
    const char *s = getenv(name);
    char *end;
    long v = s == NULL ? fallback : strtol(s, &end, 10);
    return s != NULL && (*s == '\0' || *end != '\0') ? fallback : (int)v;
}

bool mpy_pmi_is_hydra(void) { return getenv("MPI_LOCALNRANKS") != NULL; }

/* A launcher sets PMI_FD for its own ranks. So it counts, unless its descriptor is closed: then it was set by another
 * one, around the launcher of this rank. */
bool mpy_pmi_uses_pmix(void) {
    const bool is_open = getenv("PMI_FD") != NULL && (fcntl(env_number("PMI_FD", -1), F_GETFD) >= 0 || errno != EBADF);
    return mpy_pmix_is_there() && !is_open;
}

/* Without a process manager that we can ask: is this one rank alone? */
static bool is_alone(char *error, size_t n) {
    if (getenv("PMI_PORT") != NULL || env_number("PMI_SIZE", 1) > 1)
        return mpy_refuse(error, n, "the launcher gives this rank no PMI_FD, which manapy needs (mpiexec -pmi-port "
                          "does not); use MPICH's mpirun without that option");
    if (env_number("SLURM_STEP_NUM_TASKS", 1) > 1)
        return mpy_refuse(error, n, "srun has started this job without PMI: use srun --mpi=pmi2 (or mpiexec)");
    if (getenv("PMIX_RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL)
        return mpy_refuse(error, n, "Open MPI's launcher has started this job without PMIx (PMIX_NAMESPACE and "
                          "PMIX_RANK), which is not supported; use MPICH's mpirun");
    return true;
}

void mpy_pmi_let_rank0_speak(mpy_manager_t manager, int rank) {
    if (rank != 0) usleep((manager == MPY_MANAGER_PMIX ? PMIX_SPEAKER_MS : SPEAKER_MS) * 1000);
}

static bool open_pmix(mpy_pmi_t *p, char *error, size_t n) {
    if (mpy_pmix_open(p, error, n)) return true;
    mpy_pmi_let_rank0_speak(MPY_MANAGER_PMIX, p->rank);
    return false;
}

bool mpy_pmi_open(mpy_pmi_t *p, char *error, size_t n) {
    *p = (mpy_pmi_t){.fd = -1, .rank = 0, .size = 1, .local_size = 1, .value_max = 700};
    if (mpy_pmi_uses_pmix()) return open_pmix(p, error, n);
    if (getenv("PMI_FD") == NULL) return is_alone(error, n);
    p->manager = MPY_MANAGER_PMI;
    int fd = env_number("PMI_FD", -1);
    p->rank = env_number("PMI_RANK", -1), p->size = env_number("PMI_SIZE", -1);
    if (fd < 0 || p->rank < 0 || p->size < 1 || p->rank >= p->size)
        return mpy_refuse(error, n, "PMI_FD, PMI_RANK and PMI_SIZE in the environment contradict each other");
    p->fd = mpy_fd_high(fd);
    if (p->fd < 0 && errno == EBADF)
        return mpy_refuse(error, n, "the process manager's descriptor PMI_FD=%d is closed", fd);
    if (p->fd < 0)
        return mpy_refuse(error, n, "cannot move the process manager's descriptor PMI_FD=%d to %d or above: %s (ulimit "
                          "-n is too low)", fd, mpy_fd_base(), strerror(errno));
    char line[LINE_MAX_BYTES * 4];
    mpy_pmi_note_fd(p->manager, p->fd);
    p->local_size = env_number("MPI_LOCALNRANKS", env_number("SLURM_STEP_NUM_NODES", 0) == 1 ? p->size : 0);

    snprintf(line, sizeof line, "cmd=init pmi_version=1 pmi_subversion=1\n");
    if (!talk(p, line, "response_to_init", error, n)) return false;
    snprintf(line, sizeof line, "cmd=get_maxes\n");
    if (!talk(p, line, "maxes", error, n)) return false;
    char value[32];
    if (value_of(line, "vallen_max", value, sizeof value) && (size_t)atoi(value) < p->value_max + 1)
        p->value_max = (size_t)atoi(value) - 1;
    snprintf(line, sizeof line, "cmd=get_my_kvsname\n");
    if (!talk(p, line, "my_kvsname", error, n)) return false;
    if (value_of(line, "kvsname", p->kvsname, sizeof p->kvsname)) return true;
    return mpy_refuse(error, n, "the process manager did not name its key-value space: %.200s", line);
}

bool mpy_pmi_put(mpy_pmi_t *p, const char *key, const char *value, char *error, size_t n) {
    char line[LINE_MAX_BYTES * 4];
    snprintf(line, sizeof line, "cmd=put kvsname=%s key=%s value=%s\n", p->kvsname, key, value);
    return talk(p, line, "put_result", error, n);
}

bool mpy_pmi_get(mpy_pmi_t *p, int from, const char *key, char *value, size_t size, char *error, size_t n) {
    char line[LINE_MAX_BYTES * 4];
    if (p->manager == MPY_MANAGER_PMIX) snprintf(line, sizeof line, "cmd=get kvsname=%d key=%s\n", from, key);
    else snprintf(line, sizeof line, "cmd=get kvsname=%s key=%s\n", p->kvsname, key);
    if (!talk(p, line, "get_result", error, n)) return false;
    if (value_of(line, "value", value, size)) return true;
    return mpy_refuse(error, n, "the process manager does not know the key %s that rank %d has put", key, from);
}

bool mpy_pmi_barrier(mpy_pmi_t *p, char *error, size_t n) {
    char line[LINE_MAX_BYTES * 4];
    snprintf(line, sizeof line, "cmd=barrier_in\n");
    return talk(p, line, "barrier_out", error, n);
}

void mpy_pmi_note_fd(mpy_manager_t manager, int fd) {
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    if (manager == MPY_MANAGER_PMI) setenv("PMI_FD", text, 1);
}
