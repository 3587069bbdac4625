/* process.c - see process.h. A setting that can't be restored for lack of privilege stays as the new process inherited
 * it. Only the working directory must exist.
 */
#define _GNU_SOURCE
#include "process.h"
#include "base/proc/text.h"
#include "base/reason.h"
#include "children.h"
#include "signals.h"
#include "timers.h"

#include <asm/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x33435250u /* "PRC3" */
#define LIMITS 16         /* RLIM_NLIMITS of the kernel */

/* The limit on CPU time counts from the start of the process, and the process is new. */
static int kept_limit(int resource) {
    return resource != RLIMIT_CPU;
}

/* ---- the main thread's name, which ps(1) shows as the name of the process ---- */

static void comm_path(char path[64]) {
    int pid = getpid();
    snprintf(path, 64, "/proc/%d/task/%d/comm", pid, pid);
}

static void name_save(mpy_blob_t *b) {
    char path[64], name[32] = "";
    comm_path(path);
    FILE *file = fopen(path, "re");
    if (file && fgets(name, sizeof name, file))
        name[strcspn(name, "\n")] = 0;
    if (file)
        fclose(file);
    mpy_blob_put_string(b, name);
}

static void name_restore(const char *name) {
    char path[64];
    comm_path(path);
    FILE *file = name[0] ? fopen(path, "we") : NULL;
    if (file) {
        fputs(name, file);
        fclose(file);
    }
}

/* ---- components of the extended state that a process may use only after it has asked (arch_prctl(2)): tiles of AMX.
 * Without them the restored program would get SIGILL, and the kernel would not accept its signal frames. ---- */

#ifndef ARCH_GET_XCOMP_PERM /* since Linux 5.16; older kernels have no such components */
#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
enum { COMPONENTS = 64 };

static uint64_t permissions(void) {
    uint64_t mask = 0;
    return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &mask) ? 0 : mask;
}

static int permissions_restore(uint64_t want, char *err, size_t n) {
    const uint64_t missing = want & ~permissions();
    for (long i = 0; i < COMPONENTS; i++)
        if (missing >> i & 1 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, i))
            return mpy_reason(err, n,
                              "the program uses component %ld of the processor's extended state (18: tiles of AMX), "
                              "which this kernel refuses: %s",
                              i, strerror(errno));
    return 0;
}

/* Read from /proc, because umask(2) can return the mask only by changing it. */
static mode_t current_umask(void) {
    uint64_t mask = 0;
    if (!mpy_proc_number("/proc/thread-self/status", "Umask:", 8, &mask)) {
        mask = umask(0);
        umask((mode_t)mask);
    }
    return (mode_t)mask;
}

int mpy_process_check(char *err, size_t n) {
    char cwd[PATH_MAX];
    if (!getcwd(cwd, sizeof cwd) || cwd[0] != '/')
        return mpy_reason(err, n, "the working directory has been deleted or can't be reached: %s", strerror(errno));
    return mpy_timers_check(err, n);
}

int mpy_process_save(mpy_blob_t *b, mpy_tid_map_t *virtual_tid, const mpy_halted_t *halted, char *err, size_t n) {
    char cwd[PATH_MAX];
    if (!getcwd(cwd, sizeof cwd) || cwd[0] != '/')
        return mpy_reason(err, n, "the working directory has been deleted or can't be reached: %s", strerror(errno));
    mpy_blob_put_u32(b, MAGIC);
    mpy_blob_put_string(b, cwd);
    mpy_blob_put_u32(b, current_umask());
    mpy_blob_put_u32(b, LIMITS);
    for (int i = 0; i < LIMITS; i++) {
        struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
        getrlimit(i, &limit);
        mpy_blob_put_u64(b, limit.rlim_cur);
        mpy_blob_put_u64(b, limit.rlim_max);
    }
    name_save(b);
    int pid = getpid(), reaper = 0;
    errno = 0;
    int nice = getpriority(PRIO_PROCESS, (id_t)pid);
    prctl(PR_GET_CHILD_SUBREAPER, &reaper);
    mpy_blob_put_i64(b, errno ? 0 : nice);
    mpy_blob_put_u32(b, (uint32_t)personality(0xffffffff));
    mpy_blob_put_u32(b, (uint32_t)prctl(PR_GET_DUMPABLE));
    mpy_blob_put_u32(b, (uint32_t)reaper);
    mpy_blob_put_u32(b, (uint32_t)prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    mpy_blob_put_u64(b, permissions());
    mpy_zombies_save(b, virtual_tid);
    if (mpy_timers_save(b, virtual_tid, err, n) || mpy_signals_save(b, virtual_tid, halted, err, n))
        return -1;
    return b->failed ? mpy_reason(err, n, "out of memory while saving the state of the process") : 0;
}

/* Restores the soft limit, and the hard limit where that is allowed. If the host's hard limit is lower, the soft limit
 * becomes equal to it. */
static void limit_restore(int resource, struct rlimit want) {
    struct rlimit now;
    if (!kept_limit(resource) || setrlimit(resource, &want) == 0 || getrlimit(resource, &now))
        return;
    now.rlim_cur = want.rlim_cur < now.rlim_max ? want.rlim_cur : now.rlim_max;
    setrlimit(resource, &now);
}

int mpy_process_restore(mpy_reader_t *r, char *err, size_t n) {
    struct rlimit limits[LIMITS];
    uint32_t magic = mpy_reader_u32(r);
    const char *cwd = mpy_reader_string(r);
    mode_t mask = mpy_reader_u32(r);
    uint32_t nlimits = mpy_reader_count(r, 16);
    for (uint32_t i = 0; i < nlimits && i < LIMITS; i++) {
        limits[i].rlim_cur = mpy_reader_u64(r);
        limits[i].rlim_max = mpy_reader_u64(r);
    }
    const char *name = mpy_reader_string(r);
    int nice = (int)mpy_reader_i64(r);
    uint32_t persona = mpy_reader_u32(r), dumpable = mpy_reader_u32(r), reaper = mpy_reader_u32(r),
             no_thp = mpy_reader_u32(r);
    uint64_t components = mpy_reader_u64(r);
    if (r->failed || magic != MAGIC || nlimits != LIMITS)
        return mpy_reason(err, n, "the image's record of the process is damaged");
    if (permissions_restore(components, err, n) || mpy_zombies_restore(r, err, n) || mpy_timers_load(r, err, n) ||
        mpy_signals_load(r, err, n))
        return -1;

    if (chdir(cwd))
        return mpy_reason(err, n, "the program's working directory %s can't be entered: %s", cwd, strerror(errno));
    umask(mask & 0777);
    for (int i = 0; i < LIMITS; i++)
        limit_restore(i, limits[i]);
    name_restore(name);
    setpriority(PRIO_PROCESS, (id_t)getpid(), nice);
    setpriority(PRIO_PROCESS, 0, nice); /* for the calling thread, which creates the other threads */
    personality(persona);
    prctl(PR_SET_CHILD_SUBREAPER, (unsigned long)reaper, 0, 0, 0);
    /* bit 0: disabled; bit 1 (since Linux 6.18): except where madvised, which is a separate argument */
    if (no_thp <= 3)
        prctl(PR_SET_THP_DISABLE, no_thp & 1ul, no_thp & 2ul, 0, 0);
    if (dumpable <= 1)
        prctl(PR_SET_DUMPABLE, (unsigned long)dumpable, 0, 0, 0);
    return 0;
}

int mpy_process_start_timers(mpy_tid_map_t *real_tid, char *err, size_t n) {
    return mpy_timers_start(real_tid, err, n) || mpy_signals_start(real_tid, err, n) ? -1 : 0;
}
