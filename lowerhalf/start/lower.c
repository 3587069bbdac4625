/* lower.c - the lower block and the services behind it.
 *
 * Half: lower. Services run in upper threads on the upper TLS (libc-free: sys.h only) unless boundary.h marks them [L].
 *
 * Invariants
 *  1. The blocks are mapped once, at start. Nothing else can be there: the kernel chooses addresses far from the arena.
 *  2. In a tree of processes (tree/tree.h) only one of them is the rank: the first one, until a member is about to
 *     load the MPI library. A member does not speak to the coordinator or the process manager before that.
 *  3. say and die compose a line on the stack and write it in one system call, so lines of ranks don't mix.
 */
#include "lower.h"
#include "base/sys.h"
#include "base/zstd.h"
#include "control/control.h"
#include "image/checkpoint.h"
#include "image/stop.h"
#include "isolate/arena.h"
#include "isolate/fdguard.h"
#include "isolate/threads.h"
#include "isolate/trap/trap.h"
#include "join/jobdir.h"
#include "join/manager/pmi.h"
#include "join/manager/pmi_again.h"
#include "mpi/load.h"
#include "mpi/rdma.h"
#include "mpi/tcp_bytes.h"
#include "process/children.h"
#include "process/fds/fds.h"
#include "trace/recorder.h"
#include "tree/tree.h"
#include <limits.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "functions.h" /* MPY_TABLE_HASH */

enum { DRAIN_SECONDS = 120 };

void mpy_fixed_map(uint64_t address, uint64_t bytes) {
    void *p = mmap((void *)address, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p != (void *)address) mpy_fail(1, "address %#lx, which manapy needs, is in use", (unsigned long)address);
}

void mpy_blocks_map(void) {
    mpy_fixed_map(MPY_LOWER_ADDR, MPY_UPPER_ADDR - MPY_LOWER_ADDR);
    mpy_fixed_map(MPY_SERVICE_STACK_ADDR, MPY_SERVICE_STACK_SIZE);
    mpy_code_install();
    int r = mpy_arena_attach();
    if (r)
        mpy_fail(1, "cannot map memory that children do not inherit (%s): manapy needs Linux 5.9 or newer",
                 strerror(-r));
}

void mpy_blocks_map_saved(void) {
    mpy_fixed_map(MPY_UPPER_ADDR, MPY_TRAP_ADDR - MPY_UPPER_ADDR);
    mpy_fixed_map(MPY_TRAP_ADDR, MPY_CODE_ADDR - MPY_TRAP_ADDR);
    MPY_LOWER->has_program = 1;
    MPY_UPPER->magic = MPY_BOUNDARY_MAGIC;
    MPY_UPPER->version = MPY_BOUNDARY_VERSION;
}

static const char *launcher_path(void) { /* for a rank that calls exec; manapy-restart needs it, too */
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", mpy_self_path());
    char *slash = strrchr(path, '/');
    snprintf(slash, sizeof path - (size_t)(slash - path), "/manapy-launch");
    return path;
}

/* ---- services ---- */

static void say(const char *line) {
    char text[1024] = "manapy: rank ";
    size_t n = 13;
    char digits[12];
    int k = 0;
    int rank = MPY_LOWER->rank;
    do { digits[k++] = (char)('0' + rank % 10); rank /= 10; } while (rank);
    while (k) text[n++] = digits[--k];
    text[n++] = ':';
    text[n++] = ' ';
    while (*line && n < sizeof text - 1) text[n++] = *line++;
    text[n++] = '\n';
    mpy_sys(SYS_write, 2, text, n);
}

static void die(const char *line, int code) {
    say(line);
    mpy_control_abort(code);
    mpy_sys(SYS_exit_group, code);
}

static void load_mpi(char **env);

static const mpy_services_t services = {
    .thread_bind = mpy_thread_bind,
    .thread_unbind = mpy_thread_unbind,
    .mpi_load = load_mpi,
    .notify = mpy_control_notify,
    .say = say,
    .die = die,
    .request_checkpoint = mpy_control_request,
    .checkpoint_done = mpy_control_request_done,
    .set_checkpoint_dir = mpy_control_set_place,
    .trace_comm = mpy_recorder_comm,
    .trace_mark = mpy_recorder_mark,
    .trace_end = mpy_recorder_end,
    .tcp_bytes = mpy_tcp_bytes,
    .meet = mpy_checkpoint_meet,
};

static mpy_job_t job;

int mpy_lower_local_size(void) { return job.local_size; }

static const char *resumed;

/* As in DMTCP: new checkpoints go to the directory of the checkpoint from which this job was restarted. */
static void note_checkpoint_dir(mpy_lower_t *b) {
    char owner[PATH_MAX], directory[PATH_MAX];
    bool ours =
        b->checkpoint[0] && mpy_jobdir_of_checkpoint(b->checkpoint, owner, directory) && strcmp(owner, b->job_dir) == 0;
    strcpy(b->checkpoint_dir, ours && strlen(directory) < sizeof b->checkpoint_dir ? directory : b->job_dir);
}

static uint32_t drain_seconds(void) {
    const char *given = getenv("MANAPY_DRAIN_SECONDS");
    int seconds = given ? atoi(given) : 0;
    return seconds > 0 ? (uint32_t)seconds : DRAIN_SECONDS;
}

/* The values that MPICH takes for true. */
static bool heavy_yield(void) {
    static const char *const yes[] = {"1", "true", "yes", "on"};
    const char *given = getenv("MPIR_CVAR_ENABLE_HEAVY_YIELD");
    for (size_t i = 0; given && i < sizeof yes / sizeof *yes; i++)
        if (strcasecmp(given, yes[i]) == 0) return true;
    return false;
}

static void greet_again(void) {
    if (job.manager != MPY_MANAGER_PMIX && !mpy_pmi_is_hydra()) mpy_pmi_greet_again(job.pmi_fd);
}

bool mpy_lower_rejoin(char *error, size_t n) { return mpy_rejoin(mpy_options.rejoin, &job, error, n); }

const char *mpy_lower_join(char *const *argv, const char *resume, bool exact, int ranks, uint32_t generation) {
    char error[1024];
    bool say_it = true;
    mpy_rank_on_failure = mpy_control_abort;
    if (strcmp(mpy_options.compress, "off") && !mpy_zstd_open() && !strcmp(mpy_options.compress, "on"))
        mpy_fail(1, "--compress on: " MPY_ZSTD_MISSING);
    mpy_children_ignore(mpy_options.ignore_child);
    mpy_fds_drop_sockets(mpy_options.drop_sockets);
    /* Registers early, for mpy_clockside_init, which checks the result. Once there are threads, the kernel would wait
     * for all processors here, for 10 ms. */
    mpy_sys(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    const mpy_rendezvous_options_t options = {
        .dir = mpy_options.dir,
        .resume = resume,
        .exact = exact,
        .expected_ranks = ranks,
        .argv = argv,
        .mpi = mpy_mpi_path(),
        .checkpoints = &mpy_options.checkpoints,
        .check = mpy_continue_check,
        .protocol = mpy_options.protocol};
    if (!mpy_options.rejoin && !mpy_rendezvous(&options, &job, &say_it, error, sizeof error)) {
        if (say_it) mpy_say("%s", error);
        mpy_rendezvous_part(&job);
        if (!say_it) mpy_pmi_let_rank0_speak(job.manager, job.rank); /* only rank 0 prints this error */
        else if (mpy_pmi_is_hydra()) mpy_control_note_process_manager(job.pmi_fd), mpy_control_abort(1);
        _exit(1);
    }
    mpy_rank_found(job.secret, job.host, job.port);
    if (!mpy_options.tree) mpy_control_note_process_manager(job.pmi_fd);
    if (job.step.verdict == MPY_CHAIN_DONE) { /* the step was done in an earlier allocation */
        mpy_control_leave_process_manager();
        _exit(job.step.code);
    }
    if (job.step.verdict == MPY_CHAIN_RESUME) resume = job.step.path, generation = 1;
    if (resume) resume = mpy_locate(&job, resume);
    mpy_mpi_started_by(job.manager);
    if (!mpy_options.tree) greet_again();
    if (!mpy_options.rejoin) job.protocol = mpy_options.protocol;
    mpy_lower_t *b = MPY_LOWER;
    b->generation = generation;
    b->rank = job.rank;
    b->size = job.size;
    b->protocol = job.protocol;
    b->singleton = job.manager == MPY_MANAGER_NONE;
    b->drain_seconds = drain_seconds();
    b->heavy_yield = heavy_yield();
    b->table_hash = MPY_TABLE_HASH;
    b->svc = &services;
    b->tls_upper_fs = mpy_thread_tls_offset();
    b->signal_above = mpy_stop_signal_above;
    snprintf(b->job_dir, sizeof b->job_dir, "%s", job.dir);
    snprintf(b->checkpoint, sizeof b->checkpoint, "%s", resume ? resume : "");
    note_checkpoint_dir(b);
    resumed = resume;
    b->version = MPY_BOUNDARY_VERSION;
    b->magic = MPY_BOUNDARY_MAGIC;
    if (!mpy_options.tree) mpy_rdma_prepare(&job);
    return resume;
}

void mpy_lower_make_way(void) {
    mpy_tree_make_way();
    job.last_words = mpy_fd_high(job.last_words);
    mpy_mpi_watch_words(job.last_words);
    if (job.pmi_fd < 0) return;
    job.pmi_fd = mpy_fd_high(job.pmi_fd);
    mpy_pmi_note_fd(job.manager, job.pmi_fd);
    mpy_control_note_process_manager(job.pmi_fd);
    greet_again(); /* under the new number */
}

static int on_exit_group(int code) {
    if (code == 0 && mpy_stop_misled && !MPY_UPPER->mpi_initialized) code = 1; /* the child has printed the reason */
    mpy_control_finished(code);
    return code;
}

static const char *program_name;

static bool is_member(void) { return mpy_tree_role() >= MPY_TREE_MEMBER; }

static void note_exec(void) {
    static char rejoin[2048];
    job.protocol = MPY_LOWER->protocol; /* a restart has read it from the image */
    mpy_rejoin_text(&job, rejoin, sizeof rejoin);
    const char *mpi = mpy_options.mpi && mpy_mpi_path() ? mpy_mpi_path() : mpy_options.mpi; /* an absolute path */
    mpy_exec_note(
        &(mpy_exec_t){launcher_path(), rejoin, mpy_tree_text(), mpy_tree_door_text(), mpi, is_member(),
                      {job.pmi_fd, mpy_tree_kept(), mpy_tree_door()}},
        &mpy_options);
}

static void start_control(bool away) {
    char error[1024];
    mpy_control_config_t config = {.job = &job,
                                   .engine = mpy_tree_engine(),
                                   .generation = MPY_LOWER->generation,
                                   .checkpoint = resumed,
                                   .program = program_name,
                                   .hand_back = is_member() ? mpy_tree_hand_back : NULL,
                                   .door = mpy_tree_door(),
                                   .door_opened = is_member() || away ? NULL : mpy_tree_serve,
                                   .look = mpy_tree_look,
                                   .away = away};
    if (!mpy_control_start(&config, error, sizeof error)) mpy_fail(1, "%s", error);
}

/* This member is the rank from now on. The coordinator hears of it at once, because it waits for the rank. The calling
 * thread has been bound without a ring. */
static void become_rank(void) {
    mpy_control_note_process_manager(job.pmi_fd);
    start_control(false);
    greet_again();
    mpy_rdma_prepare(&job);
    mpy_recorder_start(program_name);
    int32_t tid = mpy_id_shown((int32_t)mpy_sys(SYS_gettid));
    for (uint32_t i = 0; i < MPY_THREADS_MAX; i++)
        if (MPY_UPPER->threads[i].used && MPY_UPPER->threads[i].tid == tid) mpy_recorder_bind(&MPY_UPPER->threads[i]);
}

static void load_mpi(char **env) {
    char error[512];
    int leads = mpy_tree_lead(error, sizeof error);
    if (leads < 0) die(error, 1);
    if (leads > 0) become_rank();
    mpy_mpi_load(env);
}

void mpy_lower_start(const char *program) {
    char error[1024];
    program_name = program;
    if (job.last_words >= 0) mpy_fd_close(job.last_words); /* from now on the control thread hears the coordinator */
    job.last_words = -1;
    mpy_tree_role_t role = mpy_tree_role();
    bool speaks = role == MPY_TREE_FIRST || role == MPY_TREE_MEMBER_LEADS;
    if (role == MPY_TREE_FIRST && !mpy_tree_found(error, sizeof error)) mpy_fail(1, "%s", error);
    if (speaks) mpy_recorder_start(program); /* must run while there is only one thread */
    mpy_threads_init();
    mpy_stop_install();
    mpy_trap_on_exit = on_exit_group;
    mpy_trap_fork = mpy_tree_fork;
    mpy_stop_on_invitation = mpy_tree_invited;
    note_exec();
    if (is_member() && !mpy_tree_join(error, sizeof error)) mpy_fail(1, "%s", error);
    if (role == MPY_TREE_FIRST_AWAY) mpy_tree_serve();
    if (speaks || role == MPY_TREE_FIRST_AWAY)
        start_control(role == MPY_TREE_FIRST_AWAY);
}
