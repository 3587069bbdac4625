/* rdma.c - backup RNICs for the real MPI: puts libmanapy_shift.so (rdma/) in front of the libibverbs that its
 * transports load.
 *
 * Half: lower. mpy_rdma_prepare runs while there is only one thread; but in a member of a tree the program runs
 * already. mpy_rdma_load runs on the lower TLS. A restart has a new lower half, so SHIFT starts again, too.
 *
 * Invariants
 *  1. The program does not notice: its environment was copied before, its dynamic linker doesn't know our libraries,
 *     and it has no child that it did not start (invariant 2 of command.c).
 *  2. With `auto`, a host with fewer than two RNICs only pays for reading a directory.
 *  3. A rank with backup RNICs waits until an agent serves this host: a part of the coordinator or of the node's agent.
 *  4. The library is in the global scope before any library that needs libibverbs is loaded. (A library that looks up
 *     its verbs by dlsym bypasses it.)
 */
#include "rdma.h"
#include "base/rank.h"
#include "join/command.h"
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char library[PATH_MAX];

/* The request of --shift can't be fulfilled. Usually this concerns all ranks: then rank 0 prints it, and the process
 * manager ends the others. */
static void cannot(const mpy_job_t *job, int quiet, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void cannot(const mpy_job_t *job, int quiet, const char *format, ...) {
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (!strcmp(mpy_options.shift, "require")) {
        mpy_pmi_let_rank0_speak(job->manager, job->rank);
        mpy_fail(1, "--shift require: %s", why);
    }
    if (!quiet && job->rank == 0) mpy_say("RDMA traffic is not protected: %s", why);
}

/* Counts the RNICs; `name` gets the name of one. */
static int count_rnics(char name[256]) {
    int count = 0;
    DIR *dir = opendir("/sys/class/infiniband");
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.') snprintf(name, 256, "%s", entry->d_name), count++;
    if (dir) closedir(dir);
    return count;
}

/* The answer of `manapy _shift`: OK, the agent's socket, its job, the backups; or NONE or ERROR, and the reason.
 * Separated by tabs. */
void mpy_rdma_prepare(const mpy_job_t *job) {
    char error[1024], name[256] = "", command[PATH_MAX], pid[16], port[16];
    char answer[PATH_MAX + 2048];
    /* MANAPY_SHIFT_AGENT: `manapy rdma run` has set it already */
    if (!strcmp(mpy_options.shift, "off") || getenv("MANAPY_SHIFT_AGENT")) return;
    int rnics = count_rnics(name);
    if (rnics == 0) return cannot(job, 1, "this host has no RNIC");
    if (rnics == 1) return cannot(job, 1, "this host has only one RNIC, %s: there is no backup for it", name);
    snprintf(library, sizeof library, "%s/../libmanapy_shift.so", mpy_upper_dir());
    if (access(library, R_OK)) {
        library[0] = 0;
        return cannot(job, 0,
                      "this manapy was built without libmanapy_shift.so; the build needs the headers of libibverbs "
                      "(Debian: libibverbs-dev)");
    }
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    snprintf(port, sizeof port, "%d", job->port);
    char *argv[] = {command,
                    "_shift",
                    "--dir",
                    (char *)job->dir,
                    "--host",
                    (char *)job->host,
                    "--port",
                    port,
                    "--pid",
                    pid,
                    strcmp(mpy_options.on_failover, "checkpoint") ? NULL : "--guard",
                    NULL};
    char *fields[4] = {0}, *rest = answer;
    if (!mpy_command_path(command, error, sizeof error) ||
        !mpy_command_ask(argv, answer, sizeof answer, error, sizeof error)) {
        fields[0] = "ERROR", fields[1] = error;
    } else {
        for (int i = 0; i < 4; i++) fields[i] = strsep(&rest, "\t");
    }
    if (!strcmp(fields[0], "OK") && fields[3]) {
        setenv("MANAPY_SHIFT_AGENT", fields[1], 1);
        setenv("MANAPY_SHIFT_JOB", fields[2], 1);
        setenv("MANAPY_SHIFT_BACKUP", fields[3], 1);
        /* not requested explicitly: only one rank reports what can't be protected */
        if (!strcmp(mpy_options.shift, "auto") && job->rank) setenv("MANAPY_SHIFT_QUIET", "1", 1);
        return;
    }
    library[0] = 0;
    cannot(job, !strcmp(fields[0], "NONE"), "%s", fields[1] ? fields[1] : "`manapy _shift` gave an unknown answer");
}

void mpy_rdma_load(void) {
    if (!library[0] || dlopen(library, RTLD_NOW | RTLD_GLOBAL)) return;
    char line[PATH_MAX + 256];
    snprintf(line, sizeof line, "RDMA traffic is not protected: cannot load %s", dlerror());
    if (!strcmp(mpy_options.shift, "require")) MPY_LOWER->svc->die(line, 1);
    MPY_LOWER->svc->say(line);
}
