/* state_driver.c - plays a program whose state lowerhalf/process saves in one process and restores in another: one of
 * the cases of state_cases.h.
 *
 *   state_driver save CASE FILE      set the case up, check, save to FILE, then verify: saving must have changed
 *                                    nothing
 *   state_driver restore CASE FILE   restore from FILE, then verify; MPY_BUSY=HOW: while a thread of the lower half
 *                                    opens and closes descriptors
 *   state_driver refuse CASE         set the case up; prints the reason for which check refuses it
 *   state_driver corrupt CASE FILE   restore damaged versions of FILE, each in a child process: none may crash
 *
 * Exit status 0, 1 (a line on stderr gives the reason) or, for restore, 3 with the reason on stdout. MPY_NO_KCMP=1 in
 * the environment denies kcmp(2), as some container runtimes do.
 */
#define _GNU_SOURCE
#include "process/children.h"
#include "process/cpu.h"
#include "isolate/fdguard.h"
#include "isolate/trapstate.h"
#include "process/fds/fds.h"
#include "process/process.h"
#include "state_cases.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

int restored;

static void deny_kcmp(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static bool not_given_up(void) {
    return false;
}

static int allowed(char *err, size_t n) {
    int grace_ms = 1500;
    return mpy_children_wait(MPY_CHILDREN_ALL, &grace_ms, not_given_up, err, n) || mpy_fds_check(err, n) ||
                   mpy_process_check(err, n)
               ? -1
               : 0;
}

static void write_file(const char *path, const mpy_blob_t *b) {
    FILE *file = fopen(path, "w");
    CHECK(file && fwrite(b->data, 1, b->bytes, file) == b->bytes && fclose(file) == 0);
}

static mpy_blob_t read_file(const char *path) {
    mpy_blob_t b;
    FILE *file = fopen(path, "r");
    CHECK(file);
    mpy_blob_init(&b);
    char buffer[4096];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;)
        memcpy(mpy_blob_extend(&b, got), buffer, got);
    fclose(file);
    return b;
}

static int plus_thousand(int tid) {
    return tid + 1000;
}

static int minus_thousand(int tid) {
    return tid - 1000;
}

static int save(const test_case_t *c, const char *path) {
    char err[512] = "", fds_path[600];
    char *full = realpath(".", NULL);
    snprintf(fds_path, sizeof fds_path, "%s/%s", full, path);
    c->setup();
    if (allowed(err, sizeof err)) {
        printf("%s\n", err);
        return 1;
    }
    mpy_blob_t b, process;
    mpy_blob_init(&b);
    mpy_blob_init(&process);
    if (mpy_process_save(&process, plus_thousand, NULL, err, sizeof err) ||
        mpy_fds_save(&b, plus_thousand, err, sizeof err)) {
        printf("%s\n", err);
        return 1;
    }
    CHECK(!err[0]);
    write_file(fds_path, &b);
    strcat(fds_path, ".process");
    write_file(fds_path, &process);
    c->verify();
    printf("saved\n");
    return 0;
}

/* The cases have numbers from here on. */
enum { FIRST = 10 };

/* These get descriptors and close them until *enough, by calls that are interposed. */
static void *opens(void *enough) {
    while (!*(_Atomic bool *)enough)
        close(open("/dev/null", O_RDONLY));
    return NULL;
}

static void *receives(void *enough) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    char byte = 0;
    struct iovec part = {&byte, 1};
    int ends[2], sent, received;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0 && (sent = open("/dev/null", O_RDONLY)) >= 0);
    while (!*(_Atomic bool *)enough) {
        struct msghdr m = {NULL, 0, &part, 1, &control, sizeof control, 0};
        control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &sent, sizeof sent);
        CHECK(sendmsg(ends[0], &m, 0) == 1 && recvmsg(ends[1], &m, 0) == 1);
        memcpy(&received, CMSG_DATA(&control.header), sizeof received);
        CHECK(mpy_fd_is_lower(received) && fcntl(received, F_GETFD) >= 0);
        close(received);
    }
    return close(ends[0]), close(ends[1]), close(sent), NULL;
}

static void *accepts(void *enough) {
    struct sockaddr_un any = {.sun_family = AF_UNIX}, address;
    socklen_t bytes = sizeof address;
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&any, sizeof any.sun_family) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &bytes) == 0);
    while (!*(_Atomic bool *)enough) {
        int there = socket(AF_UNIX, SOCK_STREAM, 0), here;
        CHECK(connect(there, (struct sockaddr *)&address, bytes) == 0 && (here = accept(listener, NULL, NULL)) >= 0);
        CHECK(mpy_fd_is_lower(here) && fcntl(here, F_GETFD) >= 0);
        close(here), close(there);
    }
    return close(listener), NULL;
}

static int restore_fds(mpy_reader_t *r, char *err, size_t n) {
    _Atomic bool enough = false;
    pthread_t thread;
    const char *how = getenv("MPY_BUSY");
    if (!how)
        return mpy_fds_restore(r, err, n);
    void *(*busy)(void *) = !strcmp(how, "opens") ? opens : !strcmp(how, "receives") ? receives : accepts;
    int low[FIRST], nlow = 0; /* so that the thread gets numbers of the case */
    for (int fd; (fd = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY)) < FIRST; nlow++)
        mpy_fd_lower_add(low[nlow] = fd);
    syscall(SYS_close, FIRST);
    CHECK(pthread_create(&thread, NULL, busy, (void *)&enough) == 0);
    int rc = mpy_fds_restore(r, err, n);
    enough = true;
    CHECK(pthread_join(thread, NULL) == 0);
    while (nlow > 0)
        mpy_fd_close(low[--nlow]);
    return rc;
}

static int restore(const test_case_t *c, const char *path) {
    char err[512] = "", process_path[600];
    snprintf(process_path, sizeof process_path, "%s.process", path);
    mpy_blob_t b = read_file(path), process = read_file(process_path);
    mpy_reader_t r, rp;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    mpy_reader_init(&r, b.data, b.bytes);
    mpy_reader_init(&rp, process.data, process.bytes);
    mpy_reader_t terminals = r;
    restored = 1;
    if (mpy_fds_make_terminals(&terminals, err, sizeof err) || mpy_process_restore(&rp, err, sizeof err) ||
        restore_fds(&r, err, sizeof err)) {
        printf("%s\n", err);
        return 3;
    }
    CHECK(terminals.at == terminals.bytes && rp.at == rp.bytes);
    for (int fd = 0; fd < 2048; fd++) /* none of our own descriptors is left */
        CHECK(!mpy_fd_is_lower(fd) || !closed(fd));
    if (mpy_fds_commit(err, sizeof err) || mpy_process_start_timers(minus_thousand, err, sizeof err)) {
        printf("%s\n", err);
        return 3;
    }
    CHECK(!err[0]);
    c->verify();
    printf("restored\n");
    return 0;
}

static void damaged(mpy_reader_t r, int process) {
    pid_t child = fork();
    if (child == 0) {
        char err[512] = "";
        int rc = process ? mpy_process_restore(&r, err, sizeof err) : mpy_fds_restore(&r, err, sizeof err);
        _exit(rc == 0 || err[0] ? 0 : 1);
    }
    int result;
    CHECK(waitpid(child, &result, 0) == child);
    CHECK(result == 0);
}

static int corrupt(const char *path) {
    char process_path[600];
    snprintf(process_path, sizeof process_path, "%s.process", path);
    int tested = 0;
    for (int process = 0; process < 2; process++) {
        mpy_blob_t b = read_file(process ? process_path : path);
        mpy_reader_t r;
        size_t step = b.bytes > 400 ? b.bytes / 200 : 1;
        for (size_t i = 0; i < b.bytes; i += step, tested++) {
            mpy_reader_init(&r, b.data, i);
            damaged(r, process);
            uint8_t kept = b.data[i];
            b.data[i] ^= 0xff;
            mpy_reader_init(&r, b.data, b.bytes);
            damaged(r, process);
            b.data[i] = kept;
        }
    }
    printf("%d\n", tested);
    return 0;
}

/* The record of this CPU, and one with one more feature. */
static int cpu(void) {
    uint64_t saved[8], none[8] = {0};
    char err[512] = "";
    mpy_cpu_features(saved);
    CHECK(mpy_cpu_check(saved, mpy_cpu_xsave_bytes(), err, sizeof err) == 0);
    CHECK(mpy_cpu_check(saved, mpy_cpu_xsave_bytes() + 64, err, sizeof err) == -1 && strstr(err, "XSAVE"));
    CHECK(mpy_cpu_check(none, 0, err, sizeof err) == 0);
    saved[0] |= 1ul << 31 | 1ul << 21; /* hypervisor, x2APIC: programs don't depend on them */
    CHECK(mpy_cpu_check(saved, mpy_cpu_xsave_bytes(), err, sizeof err) == 0);
    uint64_t here[8];
    memcpy(here, saved, sizeof here);
    saved[1] |= 1ul << 16;
    here[1] &= ~(1ul << 16);
    CHECK(mpy_cpu_compare(saved, 0, here, 0, err, sizeof err) == -1 &&
          !strcmp(err, "this CPU lacks avx512f, which the checkpoint's host has"));
    printf("ok\n");
    return 0;
}

static const test_case_t *find(const char *name) {
    const test_case_t *const tables[] = {file_cases, channel_cases, process_cases, refused_cases};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const test_case_t *c = tables[i]; c->name; c++)
            if (!strcmp(c->name, name))
                return c;
    return NULL;
}

int main(int argc, char **argv) {
    mpy_fds_note_inherited();
    mmap(MPY_TRAP, sizeof *MPY_TRAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (getenv("MPY_NO_KCMP"))
        deny_kcmp();
    if (argc == 2 && !strcmp(argv[1], "cpu"))
        return cpu();
    const test_case_t *c = argc > 2 ? find(argv[2]) : NULL;
    if (!c)
        return 2;
    if (!strcmp(argv[1], "save") && argc == 4)
        return save(c, argv[3]);
    if (!strcmp(argv[1], "restore") && argc == 4)
        return restore(c, argv[3]);
    if (!strcmp(argv[1], "corrupt") && argc == 4)
        return corrupt(argv[3]);
    if (!strcmp(argv[1], "refuse")) {
        char err[512] = "";
        c->setup();
        int outside = strstr(c->name, "_outside") != NULL; /* there the child is only a means */
        int rc = outside ? mpy_fds_check(err, sizeof err) : allowed(err, sizeof err);
        printf("%s\n", rc ? err : "allowed");
        return 0;
    }
    return 2;
}
