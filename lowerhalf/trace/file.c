/* file.c - the file in which one process records: creates and maps it, takes its clock samples, ends it; and removes
 * old files. See file.h.
 *
 * libc may be called. Knows neither MPI nor the split process: it is used in manapy-launch and in recorders that are
 * preloaded.
 *
 * Invariants
 *  1. Shared memory is never filled up, because others need some (the MPI library, for example): a file is created only
 *     if a quarter of the file system stays free, or a gigabyte.
 *  2. The process that creates a job's folder on a host removes old folders. Of the folders whose processes have all
 *     ended, the newest remain for a day, if they take no more than a 32nd of the file system (one always remains). If
 *     there is no space, all of them are removed. Removing the file of a running process would only cost its records;
 *     but then nobody could see what it does.
 *  3. `magic` is stored last: to a reader, a file without it is still being created.
 */
#include "file.h"
#include "base/io/host.h"
#include "base/now.h"
#include "base/reason.h"
#include <cpuid.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <manapy/fnv.h>
#include <manapy/lock.h>
#include <manapy/proc_stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { KEEP_PART = 32, KEEP_SECONDS = 24 * 3600, JOBS_MAX = 1024, SAMPLE_TRIES = 5, FIRST_SPAN_NS = 300000 };

#define SECOND_NS 1000000000l
#define FOR_OTHERS_MAX (1ul << 30) /* bytes */

/* ---- names ---- */

void mpy_trace_job_name(const char *dir, char *out, size_t n) {
    const char *slash = strrchr(dir, '/');
    snprintf(out, n, "%.40s-%08x", slash ? slash + 1 : dir, (unsigned)(mpy_fnv1a(dir, strlen(dir)) & 0xffffffffu));
}

static const char *root(void) {
    const char *given = getenv("MANAPY_TRACE_ROOT");
    return given && *given ? given : "/dev/shm";
}

/* "rank-00003.g1.trace" */
static bool is_trace_name(const char *name, long *rank, long *generation) {
    int end = 0;
    return sscanf(name, "rank-%ld.g%ld.trace%n", rank, generation, &end) == 2 && end > 0 && name[end] == 0;
}

/* Creates a folder of ours that other users cannot read, or checks an existing one. */
static bool own_folder(const char *path, bool *made, char *error, size_t n) {
    struct stat st;
    *made = mkdir(path, 0700) == 0;
    if (!*made && errno != EEXIST) return mpy_refuse(error, n, "cannot make %s: %s", path, strerror(errno));
    if (lstat(path, &st) || !S_ISDIR(st.st_mode) || st.st_uid != getuid() || st.st_mode & 077)
        return mpy_refuse(error, n, "%s is not a folder of this user only", path);
    return true;
}

/* ---- old jobs ---- */

typedef struct old_job { char name[256]; time_t changed; uint64_t bytes; } old_job_t;

static uint64_t start_of(long pid) {
    mpy_proc_stat_t stat;
    return mpy_proc_stat(pid, &stat) == 0 ? stat.started : 0;
}

/* The PID namespace of this process; 0: not known. */
static uint64_t pid_space(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

/* Processes of other hosts (which may share the folder) and of other PID namespaces can't be looked at. Of these the
 * former live until they say that they have ended, the latter also until nothing has changed for a day. */
static bool is_dead(int folder, const char *name) {
    mpy_trace_file_t head = {0};
    struct stat st = {0};
    char own[sizeof head.host];
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t got = fd < 0 || fstat(fd, &st) ? -1 : read(fd, &head, sizeof head);
    if (fd >= 0) close(fd);
    /* the file may be being created now; but then its folder is new */
    if (got != (ssize_t)sizeof head || head.magic != MPY_TRACE_MAGIC) return got >= 0;
    mpy_hostname(own, sizeof own);
    if (strncmp(head.host, own, sizeof own)) return head.end != MPY_TRACE_RUNNING;
    if (head.pid_space != 0 && head.pid_space != pid_space())
        return head.end != MPY_TRACE_RUNNING || st.st_mtime < time(NULL) - KEEP_SECONDS;
    return start_of(head.pid) != head.pid_start;
}

/* Have all its processes ended? `bytes`: size of its files. */
static bool folder_dead(const char *path, uint64_t *bytes) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = folder < 0 ? NULL : fdopendir(folder);
    bool dead = dir != NULL;
    *bytes = 0;
    for (struct dirent *e; dead && (e = readdir(dir));) {
        struct stat st;
        if (e->d_name[0] == '.') continue;
        dead = is_dead(folder, e->d_name);
        if (fstatat(folder, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) *bytes += (uint64_t)st.st_blocks * 512;
    }
    if (dir) closedir(dir);
    else if (folder >= 0) close(folder);
    return dead;
}

static void remove_folder(const char *path) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = folder < 0 ? NULL : fdopendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.') unlinkat(folder, e->d_name, 0);
    if (dir) closedir(dir);
    else if (folder >= 0) close(folder);
    rmdir(path);
}

static int newest_first(const void *a, const void *b) {
    time_t x = ((const old_job_t *)a)->changed, y = ((const old_job_t *)b)->changed;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Invariant 2. With `all` no folder of ended processes stays. */
static void clear_up(const char *base, const char *but, bool all) {
    /* only the process that creates the first folder runs this, so not twice at the same time */
    static old_job_t jobs[JOBS_MAX];
    int count = 0;
    uint64_t used = 0;
    struct statvfs fs;
    if (statvfs(base, &fs)) return;
    DIR *dir = opendir(base);
    for (struct dirent *e; dir && count < JOBS_MAX && (e = readdir(dir));) {
        char path[PATH_MAX];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", base, e->d_name);
        if (e->d_name[0] == '.' || !strcmp(e->d_name, but) || lstat(path, &st) || !S_ISDIR(st.st_mode) ||
            !folder_dead(path, &jobs[count].bytes))
            continue;
        snprintf(jobs[count].name, sizeof jobs[count].name, "%s", e->d_name);
        jobs[count++].changed = st.st_mtime;
    }
    if (dir) closedir(dir);
    qsort(jobs, (size_t)count, sizeof *jobs, newest_first);
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%.255s", base, jobs[i].name);
        used += jobs[i].bytes;
        bool much = i > 0 && used > fs.f_blocks / KEEP_PART * fs.f_frsize;
        if (all || much || jobs[i].changed < time(NULL) - KEEP_SECONDS) remove_folder(path);
    }
}

/* This rank begins a generation: its existing files of this and later generations belong to a past that was taken back.
 * Files of ranks that the job does not have belong to a larger job that was recorded under the same name before. */
static void remove_replaced(const char *folder, const mpy_trace_identity_t *who) {
    long rank, generation;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (is_trace_name(e->d_name, &rank, &generation) &&
            (rank >= who->size || (rank == who->rank && generation >= (long)who->generation)))
            unlinkat(dirfd(dir), e->d_name, 0);
    if (dir) closedir(dir);
}

/* ---- clocks ---- */

/* Reads the three clocks together: the try that took the fewest ticks. */
mpy_trace_sample_t mpy_trace_clocks(void) {
    mpy_trace_sample_t best = {0};
    uint64_t width = UINT64_MAX;
    for (int i = 0; i < SAMPLE_TRIES; i++) {
        uint64_t before = mpy_trace_ticks();
        int64_t monotonic = mpy_now_ns(CLOCK_MONOTONIC), realtime = mpy_now_ns(CLOCK_REALTIME);
        uint64_t after = mpy_trace_ticks();
        if (after - before >= width) continue;
        width = after - before;
        best = (mpy_trace_sample_t){
            .ticks = before + width / 2, .realtime = realtime, .monotonic = monotonic, .uncertainty = UINT64_MAX};
    }
    return best;
}

static uint64_t rate(const mpy_trace_sample_t *from, const mpy_trace_sample_t *to) {
    int64_t span = to->monotonic - from->monotonic;
    return span > 0 ? (uint64_t)((double)(to->ticks - from->ticks) * (double)SECOND_NS / (double)span) : 0;
}

void mpy_trace_sample(mpy_trace_t *trace) {
    mpy_trace_file_t *file = trace->file;
    if (file == NULL) return;
    mpy_trace_sample_t sample = mpy_trace_clocks();
    mpy_lock_acquire(&trace->lock);
    file->sample[file->samples % MPY_TRACE_SAMPLES] = sample;
    file->ticks_per_second = rate(&trace->first_sample, &sample);
    __atomic_store_n(&file->samples, file->samples + 1, __ATOMIC_RELEASE);
    mpy_lock_release(&trace->lock);
}

static uint32_t ticks_are_invariant(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1;
}

static void start_clock(mpy_trace_t *trace) {
    trace->first_sample = trace->file->sample[0] = mpy_trace_clocks();
    trace->file->samples = 1;
    trace->file->invariant_ticks = ticks_are_invariant();
    while (mpy_now_ns(CLOCK_MONOTONIC) - trace->first_sample.monotonic < FIRST_SPAN_NS) {}
    mpy_trace_sample(trace); /* a first estimate of the rate; later samples make it exact */
}

/* ---- the file ---- */

static void fill(mpy_trace_file_t *file, const mpy_trace_identity_t *who) {
    file->version = MPY_TRACE_VERSION;
    file->record_size = sizeof(mpy_trace_record_t);
    file->capacity = MPY_TRACE_CAPACITY;
    file->rings_capacity = MPY_TRACE_RINGS;
    file->comms_capacity = MPY_TRACE_COMMS;
    file->members_capacity = MPY_TRACE_MEMBERS;
    file->comms_offset = MPY_TRACE_PAGE;
    file->members_offset = file->comms_offset + MPY_TRACE_COMMS * sizeof(mpy_trace_comm_t);
    file->rings_offset = file->members_offset + MPY_TRACE_MEMBERS * sizeof(int32_t);
    file->ring_stride = MPY_TRACE_STRIDE;
    file->rank = who->rank;
    file->size = who->size;
    file->generation = who->generation;
    file->pid = getpid();
    file->pid_start = start_of(getpid());
    file->pid_space = pid_space();
    if (who->past) memcpy(file->past, who->past, sizeof file->past);
    mpy_hostname(file->host, sizeof file->host);
    snprintf(file->job, sizeof file->job, "%s", who->job);
    snprintf(file->producer, sizeof file->producer, "%s", who->producer);
    snprintf(file->program, sizeof file->program, "%s", who->program);
}

static const uint64_t file_bytes = MPY_TRACE_PAGE + MPY_TRACE_COMMS * sizeof(mpy_trace_comm_t) +
                                   MPY_TRACE_MEMBERS * sizeof(int32_t) + MPY_TRACE_RINGS * MPY_TRACE_STRIDE;

/* Invariant 1; for the head, the first parts of the tables and one ring. */
static bool has_room(const char *folder) {
    struct statvfs fs;
    uint64_t needed = MPY_TRACE_STRIDE + (1 << 18);
    if (statvfs(folder, &fs) != 0) return false;
    uint64_t for_others = fs.f_blocks / 4 * fs.f_frsize;
    if (for_others > FOR_OTHERS_MAX) for_others = FOR_OTHERS_MAX;
    return fs.f_bavail * fs.f_frsize >= for_others + needed;
}

static bool make_file(mpy_trace_t *trace, const mpy_trace_identity_t *who, char *error, size_t n) {
    int fd = open(trace->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return mpy_refuse(error, n, "cannot make %s: %s", trace->path, strerror(errno));
    int failed = ftruncate(fd, (off_t)file_bytes) || posix_fallocate(fd, 0, MPY_TRACE_PAGE) ? ENOSPC : 0;
    void *p = failed ? MAP_FAILED : mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
        failed = failed ? failed : errno;
        close(fd);
        unlink(trace->path);
        return mpy_refuse(error, n, "cannot map %s: %s", trace->path, strerror(failed));
    }
    close(fd);
    trace->file = p;
    fill(trace->file, who);
    trace->comms_end = trace->file->comms_offset;
    trace->members_end = trace->file->members_offset;
    start_clock(trace);
    __atomic_store_n(&trace->file->magic, MPY_TRACE_MAGIC, __ATOMIC_RELEASE);
    return true;
}

bool mpy_trace_create(mpy_trace_t *trace, const mpy_trace_identity_t *who, char *error, size_t n) {
    char base[PATH_MAX - 512], folder[PATH_MAX - 64];
    bool made;
    snprintf(base, sizeof base, "%s/manapy-trace-%u", root(), (unsigned)getuid());
    if (!own_folder(base, &made, error, n)) return false;
    snprintf(folder, sizeof folder, "%s/%s", base, who->job);
    if (!own_folder(folder, &made, error, n)) return false;
    if (made) clear_up(base, who->job, false);
    remove_replaced(folder, who);
    if (!has_room(folder)) clear_up(base, who->job, true);
    snprintf(trace->path, sizeof trace->path, "%s/rank-%05d.g%u.trace", folder, who->rank, who->generation);
    if (has_room(folder) && make_file(trace, who, error, n)) return true;
    if (!has_room(folder)) mpy_reason(error, n, "no space in %s", root());
    rmdir(folder); /* succeeds if no other process has created a file there */
    return false;
}

void mpy_trace_end(mpy_trace_t *trace, mpy_trace_end_t end) {
    if (trace->file == NULL) return;
    mpy_trace_sample(trace);
    __atomic_store_n(&trace->file->end, (uint32_t)end, __ATOMIC_RELEASE);
}
