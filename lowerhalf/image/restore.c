/* restore.c - restores a running upper half from an image, above a new lower half.
 *
 * Half: lower, on the process's first thread, which at the end becomes the program's main thread. Thread bodies
 * (thread_main) run on the upper TLS: no libc.
 *
 * Invariants
 *  1. The order is that of restore.h. The real MPI is initialized before the program's memory is restored, while the
 *     process is still an ordinary one. MPI objects are rebuilt afterwards, because that code and its data belong to
 *     the program.
 *  2. A thread continues from the signal frame in which it was halted: rt_sigreturn restores registers, mask, alternate
 *     stack and extended state. Everything below the frame on its stack is unused and serves as scratch stack until
 *     then.
 *  3. The program keeps its process and thread ids. Traps translate them to the kernel's ids.
 *  4. Before mpy_restore_commit nothing outside this process is changed.
 */
#include "restore.h"
#include "base/proc/fds.h"
#include "base/rank.h"
#include "base/reason.h"
#include "base/sys.h"
#include "image/file/chain.h"
#include "image/lazy/lazy.h"
#include "isolate/fdguard.h"
#include "isolate/threads.h"
#include "isolate/trap/clock.h"
#include "isolate/jump.h"
#include "isolate/trap/trap.h"
#include "isolate/trap/vdso.h"
#include "join/chain.h"
#include "join/rendezvous.h"
#include "maps.h"
#include "mpi/load.h"
#include "process/memory/advice.h"
#include "process/children.h"
#include "process/cpu.h"
#include "process/fds/fds.h"
#include "process/memory/files.h"
#include "process/process.h"
#include "stop.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "functions.h"

static volatile uint32_t gate;
static uint64_t lower_main_fs;
static const mpy_pending_t *pending; /* signals */
static uint32_t npending;

static int fail(char *error, size_t n, const char *what) {
    return mpy_reason(error, n, "%s: %s", what, strerror(errno));
}

/* ---- memory ---- */

/* Opens the file that a region maps, or fails with -1 and a line. */
static int open_file(const mpy_image_t *image, const mpy_image_region_t *r, char *error, size_t n) {
    const char *path = mpy_image_file_path(image, r->file);
    const mpy_image_file_t *file = &image->files[r->file];
    if (!(r->flags & MPY_REGION_MEMORY_FILE)) {
        const int shared = r->flags & MPY_REGION_SHARED, writes = shared && (r->prot & PROT_WRITE);
        int fd = writes || (shared && r->flags & MPY_REGION_MAY_WRITE) ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (fd < 0 && !writes) fd = open(path, O_RDONLY | O_CLOEXEC);
        return fd < 0 ? fail(error, n, path) : fd;
    }
    if (path[0]) return mpy_memory_file_open_posix(path, file->bytes, error, n);
    mpy_sharing_t sharing = r->flags & MPY_REGION_OF_RANKS ? MPY_SHARED_BY_RANKS : MPY_SHARED_IN_RANK;
    return mpy_memory_file_open(file->device, file->inode, r->file_offset + (r->hi - r->lo), sharing, error, n);
}

static int map_region(const mpy_image_t *image, const mpy_image_region_t *r, char *error, size_t n) {
    int flags = MAP_FIXED_NOREPLACE | (r->flags & MPY_REGION_SHARED ? MAP_SHARED : MAP_PRIVATE) | MAP_NORESERVE |
                (r->flags & MPY_REGION_GROWSDOWN ? MAP_GROWSDOWN : 0),
        prot = PROT_READ | PROT_WRITE;
    void *p;
    if (r->flags & MPY_REGION_FILE) {
        if ((r->flags & MPY_REGION_SHARED) && !(r->flags & MPY_REGION_MEMORY_FILE)) prot = (int)r->prot;
        int fd = open_file(image, r, error, n);
        if (fd < 0) return -1;
        p = mmap((void *)r->lo, r->hi - r->lo, prot, flags, fd, (off_t)r->file_offset);
        int saved = errno;
        mpy_fd_close(fd);
        errno = saved;
    } else {
        p = mmap((void *)r->lo, r->hi - r->lo, prot, flags | MAP_ANONYMOUS, -1, 0);
    }
    if (p == (void *)r->lo) return 0;
    return mpy_reason(error, n, "cannot map memory at %#lx: %s",
                      (unsigned long)r->lo, p == MAP_FAILED ? strerror(errno) : "address taken");
}

/* Shared memory that the program cannot make writable: F_SEAL_WRITE does not allow more of its file. */
static int is_only_read(const mpy_image_region_t *r) {
    const uint32_t kind = MPY_REGION_SHARED | MPY_REGION_MEMORY_FILE;
    return (r->flags & kind) == kind && !(r->flags & MPY_REGION_MAY_WRITE) && !(r->prot & PROT_WRITE);
}

/* Maps such memory so, once it has its content. */
static int map_to_read(const mpy_image_t *image, const mpy_image_region_t *r, char *error, size_t n) {
    char path[MPY_FD_PATH];
    int fd = open_file(image, r, error, n);
    if (fd < 0) return -1;
    int reads = open(mpy_fd_path(path, 0, fd), O_RDONLY | O_CLOEXEC);
    const int flags = MAP_FIXED | MAP_SHARED | MAP_NORESERVE;
    void *p = reads < 0 ? MAP_FAILED
                        : mmap((void *)r->lo, r->hi - r->lo, (int)r->prot, flags, reads, (off_t)r->file_offset);
    int saved = errno;
    mpy_fd_close(fd);
    if (reads >= 0) mpy_fd_close(reads);
    errno = saved;
    if (p == MAP_FAILED) return fail(error, n, "cannot map memory that is only read");
    mpy_advice_place(r);
    return 0;
}

typedef struct placing {
    const mpy_image_t *image;
    int late; /* memory may come later */
    char *room;
} placing_t;

static int place_part(void *context, const mpy_image_part_t *part, char *error, size_t n) {
    const placing_t *p = context;
    int noted = p->late ? mpy_lazy_note(p->image, part) : 0;
    if (noted < 0) return mpy_reason(error, n, "no memory for the list of pages that are to be read");
    return noted ? 0 : mpy_image_place_part(part, 0, p->room, error, n);
}

static int place_pages(const mpy_image_t *image, char *error, size_t n) {
    char why_not[128] = "the program uses a GPU"; /* its driver pins memory; whether that waits for us was not tested */
    const bool can_be_late = mpy_options.lazy && !image->header.gpu && mpy_lazy_begin(why_not, sizeof why_not) == 0;
    placing_t p = {image, can_be_late, malloc(MPY_RUN_MAX)};
    if (!p.room) return mpy_reason(error, n, "no memory for a restart");
    if (mpy_options.lazy && !p.late && MPY_LOWER->rank == 0)
        fprintf(stderr, "manapy: --lazy is not possible: %s; the memory is read before the program runs\n", why_not);
    int bad = mpy_image_each_part(image, place_part, &p, error, n);
    free(p.room);
    return bad || !p.late ? bad : mpy_lazy_start(image, error, n);
}

int mpy_restore_memory(const mpy_image_t *image, char *error, size_t n) {
    mpy_memory_files_begin(mpy_lower_attempt(), image->header.host);
    for (uint64_t i = 0; i < image->nregions; i++) {
        if (map_region(image, &image->regions[i], error, n)) return -1;
        mpy_advice_place(&image->regions[i]);
    }
    if (place_pages(image, error, n)) return -1;
    for (uint64_t i = 0; i < image->nregions; i++) {
        const mpy_image_region_t *r = &image->regions[i];
        if (is_only_read(r) && map_to_read(image, r, error, n)) return -1;
        if (r->prot != (PROT_READ | PROT_WRITE) && mprotect((void *)r->lo, r->hi - r->lo, (int)r->prot))
            return fail(error, n, "cannot protect memory");
        mpy_advice_apply(r);
    }
    /* the old lower half, which lent these, no longer exists */
    for (uint32_t i = 0; i < MPY_THREADS_MAX; i++)
        MPY_UPPER->threads[i].lower_fs = 0, MPY_UPPER->threads[i].trace = MPY_UPPER->threads[i].ring = NULL;
    mpy_advice_future();
    MPY_LOWER->protocol = MPY_UPPER->clock.protocol;
    MPY_LOWER->has_program = 1;
    return 0;
}

/* ---- the process ---- */

int mpy_restore_mpi(const mpy_image_t *image, char *error, size_t n) {
    static mpy_upper_t upper; /* only its head is filled, before memory is restored */
    if (mpy_image_peek(image, MPY_UPPER_ADDR, &upper, offsetof(mpy_upper_t, hooks), error, n)) return -1;
    if (upper.magic != MPY_BOUNDARY_MAGIC)
        return mpy_reason(error, n, "%s: it contains no upper block", image->path);
    mpy_fds_ranks(NULL, mpy_job_address);
    if (!mpy_mpi_is_up(&upper)) return 0;
    mpy_mpi_load(NULL);
    int provided, required = upper.mpi_thread_required;
    int (*init)(int *, char ***, int, int *) = (int (*)(int *, char ***, int, int *))MPY_LOWER->mpi[MPY_FN_Init_thread];
    int (*set_errhandler)(int, int) = (int (*)(int, int))MPY_LOWER->mpi[MPY_FN_Comm_set_errhandler];
    mpy_mpi_watch_begin();
    int rc = init(NULL, NULL, required, &provided);
    mpy_mpi_watch_end();
    if (!rc) rc = set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (!rc) rc = set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (rc) return mpy_reason(error, n, "%s: MPI_Init_thread failed with code %d", mpy_mpi_path(), rc);
    if (provided < required)
        return mpy_reason(error, n, "%s gives thread level %d, the program needs %d",
                          mpy_mpi_path(), provided, required);
    mpy_fds_ranks(mpy_mpi_exchange(MPI_COMM_WORLD), mpy_job_address);
    return 0;
}

void mpy_restore_progress(void) {
    int found;
    if (mpy_mpi_is_up(MPY_UPPER))
        ((mpy_fn_Iprobe_t)MPY_LOWER->mpi[MPY_FN_Iprobe])(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found,
                                                         MPI_STATUS_IGNORE);
}

void mpy_restore_note_id(int32_t shown, int32_t real) {
    if (shown == real || MPY_TRAP->nids == MPY_IDS_MAX) return;
    MPY_TRAP->ids[MPY_TRAP->nids++] = (mpy_idpair_t){shown, real};
}

int mpy_restore_process(const mpy_image_t *image, char *error, size_t n) {
    mpy_reader_t reader;
    /* Each thread's signal frame restores the thread's own mask. sigprocmask(3) would leave out 32 and 33, which may be
     * pending: a timer of the C library sends 32. The rebuild hook may map memory, so SIGSYS is left out. */
    const uint64_t all = ~(1ul << (SIGSYS - 1));
    mpy_sys(SYS_rt_sigprocmask, SIG_SETMASK, &all, 0, 8);
    mpy_reader_init(&reader, image->fds, image->fds_bytes);
    if (mpy_fds_restore(&reader, error, n)) return -1;
    mpy_reader_init(&reader, image->process, image->process_bytes);
    if (mpy_process_restore(&reader, error, n)) return -1;
    MPY_TRAP->nids = 0;
    MPY_TRAP->real_pid = getpid();
    mpy_restore_note_id(MPY_TRAP->pid, MPY_TRAP->real_pid);
    mpy_zombies_each(mpy_restore_note_id);
    mpy_clocks_continue();
    for (uint64_t i = 0; i < image->nthreads; i++) mpy_clocks_correct((ucontext_t *)image->threads[i].ucontext);
    mpy_vdso_install();
    mpy_trap_install();
    mpy_stop_install();
    mpy_signals_reinstall();
    if (mpy_chain_active()) mpy_signals_shield();
    static mpy_low_calls_t low;
    if (mpy_maps_low_calls(&low, error, n)) return -1;
    int r = mpy_trap_filter(&low, MPY_TRAP_ALWAYS);
    if (!r) r = mpy_trap_filter(&low, MPY_TRAP_IDS);
    if (!r && mpy_clocks_shifted()) r = mpy_trap_filter(&low, MPY_TRAP_CLOCKS);
    if (r) { errno = -r; return fail(error, n, "the kernel refuses the seccomp filter"); }
    return 0;
}

/* ---- threads ---- */

static void enter_thread(const mpy_image_thread_t *t) {
    mpy_cpu_expect_frame((const ucontext_t *)t->ucontext);
    __asm__ volatile("wrgsbase %0" ::"r"(t->gs_base));
    if (t->robust_list) mpy_sys(SYS_set_robust_list, t->robust_list, t->robust_bytes);
    mpy_sys(SYS_prctl, PR_SET_NAME, t->name, 0, 0, 0);
    for (uint32_t i = 0; i < npending; i++) /* the signal is still blocked here, so it becomes pending again */
        if (pending[i].tid == t->tid)
            mpy_sys(SYS_rt_tgsigqueueinfo, mpy_sys(SYS_getpid), mpy_sys(SYS_gettid), pending[i].info.si_signo,
                    &pending[i].info);
}

static void thread_main(void *record) {
    const mpy_image_thread_t *t = record;
    enter_thread(t);
    while (!gate) mpy_futex_wait(&gate, 0);
    mpy_sigreturn(t->ucontext);
}

int mpy_restore_threads(const mpy_image_t *image, char *error, size_t n) {
    const uint64_t flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SYSVSEM | CLONE_SIGHAND | CLONE_THREAD |
                           CLONE_SETTLS | CLONE_CHILD_CLEARTID;
    pending = mpy_process_pending(mpy_id_real, &npending);
    for (uint64_t i = 1; i < image->nthreads; i++) {
        const mpy_image_thread_t *t = &image->threads[i];
        /* invariant 2; 256 bytes below the signal frame stay free, then align */
        uint64_t stack = (t->ucontext - 256) & ~15ul;
        const long args[5] = {(long)flags, (long)stack, 0, (long)t->clear_tid, (long)t->fs_base};
        long tid = mpy_clone(args, thread_main, (void *)t);
        if (tid < 0) { errno = (int)-tid; return fail(error, n, "cannot create a thread"); }
        mpy_restore_note_id(t->tid, (int32_t)tid);
    }
    return 0;
}

typedef struct { uint64_t upper_fs; char *error; size_t n; } rebuild_t;

static int rebuild_on_service_stack(void *argument) {
    rebuild_t *r = argument;
    mpy_fs_set(r->upper_fs);
    int result = MPY_UPPER->hooks.rebuild(r->error, r->n);
    mpy_fs_set(lower_main_fs);
    return result;
}

/* Hooks enter the lower half as the thread that called MPI_Init, or is in it. This thread need not be the process's
 * first, and it does not run yet. */
int mpy_restore_rebuild(const mpy_image_t *image, char *error, size_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    if (!t->used || !MPY_UPPER->hooks.rebuild) return 0; /* the program has not called MPI */
    lower_main_fs = mpy_fs_get();
    mpy_thread_bind(t);
    rebuild_t r = {t->upper_fs, error, n};
    int result = mpy_on_stack(rebuild_on_service_stack, &r, MPY_SERVICE_STACK_ADDR + MPY_SERVICE_STACK_SIZE);
    /* If it used our TLS, it gets its own when it calls MPI. If MPI isn't up, it loads the real library then. */
    if (image->threads[0].mpi_slot != 0 || !mpy_mpi_is_up(MPY_UPPER)) t->lower_fs = 0;
    return result;
}

int mpy_restore_commit(char *error, size_t n) {
    if (mpy_fds_commit(error, n) || mpy_memory_files_commit(error, n)) return -1;
    if (mpy_mpi_is_up(MPY_UPPER)) { /* no rank may write to a shared file before every rank has truncated it */
        int (*barrier)(int) = (int (*)(int))MPY_LOWER->mpi[MPY_FN_Barrier];
        if (barrier(MPI_COMM_WORLD))
            return mpy_reason(error, n, "the ranks cannot reach each other (MPI_Barrier failed)");
    }
    return mpy_process_start_timers(mpy_id_real, error, n);
}

void mpy_restore_run(const mpy_image_t *image) {
    for (uint64_t i = 0; i < image->nthreads; i++) mpy_wait_correct((ucontext_t *)image->threads[i].ucontext);
    const mpy_image_thread_t *t = &image->threads[0];
    mpy_sys(SYS_set_tid_address, t->clear_tid);
    enter_thread(t);
    gate = 1;
    mpy_futex_wake(&gate);
    mpy_fs_set(t->fs_base);
    mpy_sigreturn(t->ucontext);
}
