/* rank.c - one rank for tests. It joins the job as manapy-launch does (rendezvous, control thread) over a stub engine,
 * and plays a program: it carries out orders from stdin. Every order and every engine step prints one line.
 *
 *   rank [--dir D] [--resume C] [--expect N] [--generation G] [--here HOST PORT DIR RANK SIZE]
 *        [--trouble RANK WHAT]
 *
 * --here skips the rendezvous: the job exists already. --trouble: what happens to a rank just before it checks its
 * first image in a chain: its image is removed (gone) or cut off (short), the kernel fails with EIO when it is read
 * (eio), or the rank waits for ever (stuck).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <manapy/boundary.h>
#include <manapy/image_path.h>
#include <manapy/lock.h>

#include "control/control.h"
#include "control/notify.h"
#include "image/file/reader.h"
#include "wire/wire.h"

static char fail_step[32];        /* the engine step that fails, with this reason */
static char fail_reason[256];
static char hold_step[32] = "0";  /* this engine step waits (1: all), until SIGUSR1 ... */
static volatile int hold;         /* ... or until this is 0 */

static void on_release(int sig) { (void)sig, hold = 0; }

static void event(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void event(const char *format, ...) {
    char line[4096];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';
    if (write(1, line, (size_t)n) < 0) _exit(3);
}

static int step(const char *name, char *error, size_t n) {
    event("engine %s phase %u", name, MPY_LOWER->phase);
    int all = strcmp(hold_step, "1") == 0;
    while (hold && (all || strcmp(name, hold_step) == 0) && !mpy_control_cancelled()) usleep(1000);
    if (mpy_control_cancelled()) event("cancelled %s", name);
    if (strcmp(name, fail_step) != 0) return 0;
    snprintf(error, n, "%s", fail_reason);
    return -1;
}
static int check(int grace_ms, char *error, size_t n) {
    event("grace %d", grace_ms);
    return step("check", error, n);
}
static int call(char *error, size_t n) { return step("call", error, n); }
static int stop(char *error, size_t n) { return step("stop", error, n); }
static int drain(char *error, size_t n) { return step("drain", error, n); }
static int put_image(const char *directory, mpy_image_result_t *result, char *error, size_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-%05d.img", directory, MPY_LOWER->rank);
    FILE *f = fopen(path, "we");
    if (f == NULL) return snprintf(error, n, "%s: %s", path, strerror(errno)), -1;
    fprintf(f, "image of rank %d", MPY_LOWER->rank);
    long size = ftell(f);
    fclose(f);
    *result = (mpy_image_result_t){.bytes = 4096, .file_bytes = (uint64_t)size, .crc = 7, .seconds = 0.25};
    return 0;
}
static const char *tell(const mpy_image_order_t *order) {
    if (order->way[0]) event("tracks since %" PRIu64 " %s", order->base_epoch, order->base_epoch ? order->base : "-");
    return order->directory;
}
static int write_image(const mpy_image_order_t *order, mpy_image_result_t *result, char *error, size_t n) {
    return step("write", error, n) != 0 ? -1 : put_image(tell(order), result, error, n);
}
static char captured[4096];
static int capture(const mpy_image_order_t *order, char *why_not, size_t m, char *error, size_t n) {
    snprintf(captured, sizeof captured, "%s", tell(order));
    snprintf(why_not, m, "%s", "");
    return step("capture", error, n);
}
static int persist(mpy_image_result_t *result, char *error, size_t n) {
    if (step("persist", error, n) != 0 || mpy_control_cancelled()) return -1;
    return put_image(captured, result, error, n);
}
static int resume(int exit_after, char *error, size_t n) {
    int rc = step(exit_after ? "exit" : "resume", error, n);
    if (exit_after) _exit(0);
    return rc;
}
static void abort_job(int code, const char *reason) {
    event("abort %d %s", code, reason);
    _exit(code);
}
static const mpy_engine_ops_t ops = {.check = check,
                                     .call = call,
                                     .stop = stop,
                                     .drain = drain,
                                     .write = write_image,
                                     .capture = capture,
                                     .persist = persist,
                                     .resume = resume,
                                     .abort_job = abort_job};

static void *map(uint64_t address, uint64_t bytes) {
    void *p =
        mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (p != (void *)address) exit(4);
    return p;
}

static void fail(const char *why) {
    fprintf(stderr, "rank: %s\n", why);
    exit(1);
}

static int trouble_rank = -1;
static const char *trouble = "";

/* Reading page data fails from now on; only that is read in pieces of more than a page. */
static void fail_reads(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, MPY_IMAGE_PAGE, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(5);
}

static void trouble_image(const char *path) {
    if (strcmp(trouble, "gone") == 0 && unlink(path)) _exit(5);
    if (strcmp(trouble, "short") == 0 && truncate(path, 2 * MPY_IMAGE_PAGE)) _exit(5);
    if (strcmp(trouble, "eio") == 0) fail_reads();
    while (strcmp(trouble, "stuck") == 0) pause();
    trouble_rank = -1;
}

/* The secret of images.py. */
static bool check_image(const char *checkpoint, int rank, int size, char *damage, size_t n) {
    static const uint8_t secret[MPY_SECRET_BYTES];
    char path[4096];
    mpy_image_path(path, sizeof path, checkpoint, rank);
    event("checks %s", path);
    if (rank == trouble_rank) trouble_image(path);
    return mpy_image_verify(path, rank, size, secret, NULL, damage, n) == 0;
}

static int32_t members[64];
static const int32_t scattered[] = {0, 4, 8, 9, 10, 11, 13, 15, 2, 1};

static void order(char *line) {
    mpy_clock_t *clock = &MPY_UPPER->clock;
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    char word[32] = "", text[256] = "";
    uint64_t a = 0, b = 0;
    sscanf(line, "%31s", word);
    const char *rest = line + strlen(word);
    if (strcmp(word, "row") == 0) { /* row CID SEQ NAME: make or change; the SEQ counts as changed by the program.
                                      Its members are all ranks, or those above if it is called "scattered" */
        sscanf(rest, "%" SCNx64 " %" SCNu64 " %255s", &a, &b, text);
        mpy_lock_acquire(&clock->lock);
        uint32_t i = 0;
        while (i < clock->nrows && clock->rows[i].cid != a) i++;
        if (i == clock->nrows) {
            clock->rows[i] = (mpy_clock_row_t){.cid = a,
                                               .ggid = 0xabc,
                                               .nmembers = strcmp(text, "scattered") == 0 ? 10 : MPY_LOWER->size,
                                               .members = strcmp(text, "scattered") == 0 ? scattered : members,
                                               .handle = 1,
                                               .name = text[0] ? strdup(text) : NULL};
            clock->nrows++;
        }
        clock->rows[i].seq = b;
        if (MPY_LOWER->phase != MPY_PHASE_NONE) clock->version++;
        mpy_lock_release(&clock->lock);
        mpy_control_notify();
    } else if (strcmp(word, "state") == 0) { /* state N CID PEER: of thread 0 */
        int peer = -1;
        sscanf(rest, "%" SCNu64 " %" SCNx64 " %d", &a, &b, &peer);
        mpy_lock_acquire(&clock->lock);
        if ((t->state == MPY_STATE_IN_COLLECTIVE || a == MPY_STATE_IN_COLLECTIVE) && MPY_LOWER->phase != MPY_PHASE_NONE)
            clock->version++;
        t->used = 1, t->state = (uint32_t)a, t->state_cid = b, t->nblock = peer >= 0, t->block_peers[0] = peer,
        t->block_mode = MPY_WAIT_ALL;
        mpy_lock_release(&clock->lock);
        mpy_control_notify();
    } else if (strcmp(word, "retract") == 0) { /* retract CID: the last call on the row has failed on its arguments */
        sscanf(rest, "%" SCNx64, &a);
        mpy_lock_acquire(&clock->lock);
        for (uint32_t i = 0; i < clock->nrows; i++)
            if (clock->rows[i].cid == a) clock->rows[i].seq--;
        clock->version++, clock->retracted = 1;
        mpy_lock_release(&clock->lock);
        mpy_control_notify();
    } else if (strcmp(word, "lower") == 0) {
        t->used = 1, t->in_lower = (uint32_t)atoi(rest);
    } else if (strcmp(word, "callbacks") == 0) { /* callbacks N: so many are registered */
        MPY_UPPER->callbacks.registered = (uint32_t)atoi(rest);
    } else if (strcmp(word, "disable") == 0) { /* disable N: so many threads have checkpoints disabled */
        __atomic_store_n(&MPY_UPPER->disabled, (uint32_t)atoi(rest), __ATOMIC_SEQ_CST);
        if (MPY_LOWER->phase != MPY_PHASE_NONE || MPY_LOWER->allow_awaited) mpy_control_notify();
    } else if (strcmp(word, "init") == 0) {
        MPY_UPPER->mpi_initialized = 1;
        mpy_control_notify();
    } else if (strcmp(word, "fail") == 0) {
        sscanf(rest, "%31s %255[^\n]", fail_step, fail_reason);
    } else if (strcmp(word, "hold") == 0) {
        sscanf(rest, "%31s", hold_step);
        hold = strcmp(hold_step, "0") != 0;
    } else if (strcmp(word, "request") == 0) {
        event("ticket %" PRId64, mpy_control_request());
    } else if (strcmp(word, "tickets") == 0) {
        event("done %" PRId64, mpy_control_request_done());
    } else if (strcmp(word, "finished") == 0) {
        mpy_control_finished(0);
    } else if (strcmp(word, "hand_over") == 0) {
        mpy_control_hand_over();
    } else if (strcmp(word, "take_back") == 0) {
        mpy_control_take_back();
    } else if (strcmp(word, "leave") == 0) {
        mpy_control_leave_process_manager();
    } else if (strcmp(word, "patience") == 0) {
        /* patience SECONDS: how long the end of the program waits for the coordinator at most */
        mpy_control_words.finish_wait_s = (uint32_t)atoi(rest);
    } else if (strcmp(word, "ready") == 0) {
        char error[512];
        event("%s", mpy_control_ready_and_wait_go(error, sizeof error) ? "go" : error);
    } else if (strcmp(word, "look") == 0) {
        event("phase %u needed %u version %u state %u", MPY_LOWER->phase, clock->needed, clock->version, t->state);
        for (uint32_t i = 0; i < clock->nrows; i++)
            event("row %016" PRIx64 " seq %" PRIu64 " target %" PRIu64, clock->rows[i].cid, clock->rows[i].seq,
                  clock->rows[i].target);
    } else if (strcmp(word, "count") == 0) { /* the checkpoints that the program knows of */
        event("checkpoints %u", MPY_UPPER->checkpoints);
    } else if (strcmp(word, "exit") == 0) {
        _exit(atoi(rest));
    }
    event("ok %s", word);
}

int main(int argc, char **argv) {
    static mpy_job_t job;
    char error[1024];
    const mpy_checkpoint_options_t checkpoints = {.dirty = NULL};
    mpy_rendezvous_options_t options = {.argv = argv, .check = check_image, .checkpoints = &checkpoints};
    mpy_control_config_t config = {.job = &job, .engine = &ops, .program = "a program"};
    int here = 0, join_only = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dir") == 0) options.dir = argv[++i];
        else if (strcmp(argv[i], "--resume") == 0) options.resume = config.checkpoint = argv[++i];
        else if (strcmp(argv[i], "--expect") == 0) options.expected_ranks = atoi(argv[++i]);
        else if (strcmp(argv[i], "--generation") == 0) config.generation = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--join-only") == 0) join_only = 1;
        else if (strcmp(argv[i], "--trouble") == 0) trouble_rank = atoi(argv[++i]), trouble = argv[++i];
        else if (strcmp(argv[i], "--here") == 0) {
            here = 1;
            snprintf(job.host, sizeof job.host, "%s", argv[++i]);
            job.port = atoi(argv[++i]);
            snprintf(job.dir, sizeof job.dir, "%s", argv[++i]);
            job.rank = atoi(argv[++i]), job.size = atoi(argv[++i]);
            if (!mpy_secret_read(job.dir, job.secret, error, sizeof error)) fail(error);
        }
    }
    signal(SIGUSR1, on_release);
    bool say;
    if (!here && !mpy_rendezvous(&options, &job, &say, error, sizeof error)) {
        if (say) fprintf(stderr, "rank: %s\n", error);
        mpy_rendezvous_part(&job);
        exit(1);
    }
    if (!here) mpy_control_note_process_manager(job.pmi_fd);
    if (job.step.verdict == MPY_CHAIN_RESUME) event("resumes %s", config.checkpoint = job.step.path);
    map(MPY_LOWER_ADDR, MPY_UPPER_ADDR - MPY_LOWER_ADDR);
    map(MPY_UPPER_ADDR, MPY_TRAP_ADDR - MPY_UPPER_ADDR);
    MPY_LOWER->rank = job.rank, MPY_LOWER->size = job.size;
    MPY_UPPER->clock.rows = calloc(64, sizeof(mpy_clock_row_t));
    for (int i = 0; i < 64; i++) members[i] = i;
    event("joined %d %d %d %s %d %s pmi %s", job.rank, job.size, job.local_size, job.host, job.port, job.dir,
          getenv("PMI_FD") != NULL ? getenv("PMI_FD") : "-");
    if (join_only) return 0;
    if (!mpy_control_start(&config, error, sizeof error)) fail(error);
    char line[512];
    while (fgets(line, sizeof line, stdin) != NULL) order(line);
    mpy_control_finished(0);
    return 0;
}
