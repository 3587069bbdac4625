/* jobdir.c - rank 0 creates the job directory: its name, its lock, the secret, the first job.json. Lower half; libc.
 *
 * Invariants
 *  1. A new job's directory is created by one mkdir that fails if the name is taken. So jobs that start at the same
 *     time never share one.
 *  2. A directory that is used again (--dir, restart) is locked (flock on DIR/lock, held by the coordinator as long as
 *     it runs). If the file system has no locks, the job is live if a coordinator at job.json's address proves that it
 *     knows the secret. A lock without a coordinator that answers counts, too: nobody knows here whether its holder is
 *     stopped, or was on a host that has crashed (NFS keeps the locks of that one for some time, or for ever).
 *  3. DIR/secret is created with the directory, mode 0600 from the beginning, and stays: later runs of the job prove
 *     with it that its checkpoints are its own. A secret that another user may have written is replaced.
 *  4. job.json is replaced by rename: a reader sees the old one or the new one.
 *  5. A directory in which another user could place something (for example a link to a file of ours) is refused.
 */
#define _GNU_SOURCE
#include "jobdir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <manapy/own.h>

#include "base/io/host.h"
#include "base/rank.h"
#include "base/reason.h"
#include "wire/wire.h"

/* The coordinator of ranks that were just killed needs a moment to notice. If it still answers after this time, its
 * ranks were not killed. If it does not answer, it may be ending on a busy host: it gets more time, and the user
 * is told. */
#define ANSWER_WAIT_MS 3000
#define LOCK_WAIT_MS 20000

static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz"; /* ascending in ASCII, so names sort by time */

/* Six digits of seconds since 2024 and four random digits. */
static bool make_id(char id[16]) {
    uint32_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return false;
    uint64_t v = ((uint64_t)(time(NULL) - 1704067200) << 20) | (random & 0xfffff);
    for (int i = 9; i >= 0; i--, v >>= 5) id[i] = digits[v & 31];
    id[10] = '\0';
    return true;
}

static void pause_ms(int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};
    nanosleep(&t, NULL);
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return NULL;
    mpy_text_t t = {0};
    char part[4096];
    size_t got;
    mpy_text_clear(&t);
    while ((got = fread(part, 1, sizeof part - 1, f)) > 0 && t.length < (1u << 20)) {
        part[got] = '\0';
        mpy_text_add(&t, "%s", part);
    }
    fclose(f);
    return t.data;
}

/* Where job.json says that the coordinator runs. Texts are empty and numbers 0 if it does not say so. */
typedef struct coordinator {
    char host[256], hostname[256]; /* its address, and the name of its host */
    int port, pid;
} coordinator_t;

static coordinator_t coordinator_of(const char *dir) {
    coordinator_t c = {0};
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/job.json", dir);
    char *json = read_file(path);
    if (json == NULL) return c;
    const char *at = strstr(json, "\"host\":");
    if (at != NULL) sscanf(at, "\"host\": \"%255[^\"]\"", c.host);
    at = strstr(json, "\"port\":");
    if (at != NULL) sscanf(at, "\"port\": %d", &c.port);
    at = strstr(json, "\"pid\":");
    if (at != NULL) sscanf(at, "\"pid\": %d", &c.pid);
    at = strstr(json, "\"hostname\":");
    if (at != NULL) sscanf(at, "\"hostname\": \"%255[^\"]\"", c.hostname);
    free(json);
    return c;
}

/* Does a coordinator that knows the secret answer there? */
static bool is_live(const char *dir, const coordinator_t *c) {
    char error[256];
    uint8_t secret[MPY_SECRET_BYTES];
    if (c->host[0] == '\0' || c->port == 0 || !mpy_secret_read(dir, secret, error, sizeof error)) return false;
    mpy_wire_t w;
    mpy_wire_open(&w, mpy_wire_connect(c->host, c->port, 1000));
    bool live = !w.closed && mpy_wire_authenticate(&w, "command", secret, 2000, error, sizeof error);
    mpy_wire_close(&w);
    return live;
}

static bool lock_directory(const char *dir, bool can_be_named, int *lock_fd, char *error, size_t n) {
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/lock", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return mpy_refuse(error, n, "%s: %s", path, strerror(errno));
    const char *other = can_be_named ? ", or name another directory with --dir" : "";
    coordinator_t c = {0};
    bool live = false, held = true;
    for (int waited = 0; held && !live && waited <= LOCK_WAIT_MS; waited += 20) {
        held = flock(fd, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR);
        /* also not held if the file system has no locks, or only has locks per node */
        if (!held || waited == ANSWER_WAIT_MS) {
            c = coordinator_of(dir);
            live = is_live(dir, &c);
            if (held && !live)
                mpy_say("the job in %s does not answer, but its lock is held; waiting up to %d s", dir,
                        (LOCK_WAIT_MS - ANSWER_WAIT_MS) / 1000);
        }
        if (held && !live) pause_ms(20);
    }
    if (!held && !live) {
        *lock_fd = fd;
        return true;
    }
    if (live)
        mpy_reason(error, n, "the job in %s is still running; stop it first (manapy stop %s)%s", dir, dir, other);
    else
        mpy_reason(error, n, "the job in %s does not answer, but its lock is held: end its coordinator (process %d on "
                   "%s), or remove %s if that host has crashed%s", dir, c.pid, c.hostname[0] ? c.hostname : "its host",
                   path, other);
    close(fd);
    return false;
}

static bool is_job(const char *dir) {
    char record[PATH_MAX + 16];
    snprintf(record, sizeof record, "%s/job.json", dir);
    return access(record, R_OK) == 0;
}

/* Recognises what manapy/ckpt/store/publish.py creates: JOB/ckpt-000007, or DIRECTORY/manapy-<hash>/ckpt-000007 with a
 * link to JOB beside it. */
bool mpy_jobdir_of_checkpoint(const char *checkpoint, char job_dir[PATH_MAX], char directory[PATH_MAX]) {
    char link[PATH_MAX + 16];
    if (realpath(checkpoint, directory) == NULL) return false;
    char *slash = strrchr(directory, '/');
    if (slash == directory) return false;
    *slash = '\0';
    strcpy(job_dir, directory);
    if (is_job(directory)) return true;
    snprintf(link, sizeof link, "%s/manapy-job", directory);
    slash = strrchr(directory, '/');
    slash[slash == directory] = '\0';
    return readlink(link, job_dir, PATH_MAX) > 0 && realpath(link, job_dir) != NULL && is_job(job_dir);
}

static bool make_new(char out[PATH_MAX], char *error, size_t n) {
    char cwd[PATH_MAX - 32], id[16];
    if (getcwd(cwd, sizeof cwd) == NULL) return mpy_refuse(error, n, "the working directory: %s", strerror(errno));
    for (;;) {
        if (!make_id(id)) return mpy_refuse(error, n, "getrandom: %s", strerror(errno));
        snprintf(out, PATH_MAX, "%s/manapy-%s", strcmp(cwd, "/") == 0 ? "" : cwd, id);
        if (mkdir(out, 0755) == 0) return true;
        if (errno == EEXIST) continue; /* invariant 1 */
        return mpy_refuse(error, n, "cannot make the job directory %s: %s; name a writable one with --dir",
                          out, strerror(errno));
    }
}

bool mpy_jobdir_create(const mpy_rendezvous_options_t *options, mpy_job_t *job, int *lock_fd, char *error, size_t n) {
    char path[PATH_MAX], unused[PATH_MAX];
    if (options->dir != NULL) {
        if ((mkdir(options->dir, 0755) < 0 && errno != EEXIST) || realpath(options->dir, path) == NULL)
            return mpy_refuse(error, n, "cannot make the job directory %s: %s", options->dir, strerror(errno));
        struct stat st;
        if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
            return mpy_refuse(error, n, "cannot use %s as job directory: %s", options->dir, strerror(ENOTDIR));
    } else if (options->resume == NULL || !mpy_jobdir_of_checkpoint(options->resume, path, unused)) {
        if (!make_new(path, error, n)) return false;
    }
    if (strlen(path) >= sizeof job->dir)
        return mpy_refuse(error, n, "the job directory's path is longer than %zu bytes: %s", sizeof job->dir - 1, path);
    struct stat st;
    if (stat(path, &st) == 0 && mpy_own_check(path, &st, S_IWOTH, error, n) != 0) return false;
    strcpy(job->dir, path);
    return lock_directory(path, options->resume == NULL, lock_fd, error, n);
}

bool mpy_jobdir_write_secret(mpy_job_t *job, char *error, size_t n) {
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/secret", job->dir);
    if (mpy_secret_read(job->dir, job->secret, error, n)) {
        if (chmod(path, 0600) == 0) return true;
        return mpy_refuse(error, n, "%s: %s", path, strerror(errno));
    }
    /* All checkpoints are signed with it: a new one comes only in place of none, or of one that is no secret. */
    if (errno != 0 && errno != ENOENT && errno != ELOOP) return false;
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && getrandom(job->secret, MPY_SECRET_BYTES, 0) == MPY_SECRET_BYTES &&
              write(fd, job->secret, MPY_SECRET_BYTES) == MPY_SECRET_BYTES;
    if (!ok) mpy_reason(error, n, "%s: %s", path, strerror(errno));
    if (fd >= 0 && close(fd) < 0 && ok) {
        mpy_reason(error, n, "%s: %s", path, strerror(errno));
        ok = false;
    }
    return ok;
}

/* The coordinator adds its pid, version and state as soon as it runs. */
bool mpy_jobdir_write_record(const mpy_rendezvous_options_t *options, const mpy_job_t *job, char *error, size_t n) {
    char path[PATH_MAX], temporary[PATH_MAX + 16], host[MPY_HOST_NAME], cwd[PATH_MAX] = "";
    mpy_hostname(host, sizeof host);
    if (getcwd(cwd, sizeof cwd) == NULL) cwd[0] = '\0';
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const char *name = strrchr(job->dir, '/') + 1;
    mpy_text_t t = {0};
    mpy_text_add(&t, "{\n \"format\": 1,\n \"id\": ");
    mpy_text_add_json(&t, strncmp(name, "manapy-", 7) == 0 ? name + 7 : name);
    mpy_text_add(&t, ",\n \"state\": \"starting\",\n \"host\": ");
    mpy_text_add_json(&t, job->host);
    mpy_text_add(&t, ",\n \"port\": %d,\n \"pid\": 0,\n \"hostname\": ", job->port);
    mpy_text_add_json(&t, host);
    mpy_text_add(&t, ",\n \"rank0_pid\": %d,\n \"ranks\": %d,\n \"started\": %lld.%06ld,\n \"cwd\": ", (int)getpid(),
                 job->size, (long long)now.tv_sec, now.tv_nsec / 1000);
    mpy_text_add_json(&t, cwd);
    mpy_text_add(&t, ",\n \"argv\": [");
    for (char *const *a = options->argv; a != NULL && *a != NULL; a++) {
        if (a != options->argv) mpy_text_add(&t, ", ");
        mpy_text_add_json(&t, *a);
    }
    mpy_text_add(&t, "],\n \"protocol\": \"%s\",\n \"mpi\": ", options->protocol == MPY_PROTOCOL_2PC ? "2pc" : "cc");
    if (options->mpi != NULL) mpy_text_add_json(&t, options->mpi);
    else mpy_text_add(&t, "null");
    mpy_text_add(&t, ",\n \"resumed_from\": ");
    if (options->resume != NULL) mpy_text_add_json(&t, options->resume);
    else mpy_text_add(&t, "null");
    mpy_text_add(&t, "\n}\n");

    snprintf(path, sizeof path, "%s/job.json", job->dir);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    bool ok = fd >= 0 && write(fd, t.data, t.length) == (ssize_t)t.length;
    int cause = errno;
    if (fd >= 0 && close(fd) < 0) cause = errno, ok = false;
    if (ok && rename(temporary, path) < 0) cause = errno, ok = false;
    if (!ok) mpy_reason(error, n, "%s: %s", path, strerror(cause));
    mpy_text_free(&t);
    return ok;
}
