/* recorder.c - beginning and end of the recording of one process, and its threads. See preload.h.
 *
 * Invariants
 *  1. The file is created when MPI_Init has returned (the rank isn't known before), and only for a program's own world:
 *     processes that MPI_Comm_spawn has started aren't recorded.
 *  2. A child of fork records nothing: the rings belong to its parent.
 */
#include "preload.h"
#include "recorder_calls.h"

#include "base/proc/text.h"

#include <manapy/lock.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__thread mpy_tls_t mpy_tls;
static pthread_key_t thread_end;

static void leave_thread(void *ring) {
    mpy_tls.busy = true; /* this thread records nothing more */
    if (mpy_trace.file == NULL) return;
    mpy_trace_resume(ring); /* if it was paused */
    mpy_trace_ring_drop(&mpy_trace, ring);
}

static void in_child(void) {
    mpy_trace.file = NULL;
    mpy_tls.ring = mpy_tls.own = NULL;
}

mpy_trace_ring_t *mpy_begin_slow(void) {
    if (mpy_trace.file == NULL) return NULL;
    if (!mpy_tls.asked) {
        mpy_tls.asked = true;
        mpy_trace_ring_t *ring = mpy_trace_ring_take(&mpy_trace, (int32_t)syscall(SYS_gettid), -1);
        if (ring != NULL) {
            pthread_setspecific(thread_end, ring);
            return mpy_tls.ring = mpy_tls.own = ring;
        }
    }
    __atomic_add_fetch(&mpy_trace.file->unrecorded, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* ---- Init ---- */

static void command(char *out, size_t n) {
    size_t got;
    char *words = mpy_proc_text("/proc/self/cmdline", &got);
    for (size_t i = 0; i + 1 < got; i++)
        if (words[i] == 0) words[i] = ' ';
    snprintf(out, n, "%s", words != NULL ? words : "");
    free(words);
}

static bool is_spawned(void) {
    int (*get_parent)(void *) = mpy_library_function("PMPI_Comm_get_parent");
    uint64_t parent = 0;
    return get_parent != NULL && get_parent(&parent) == 0 && mpy_handle(parent) != mpy_abi.comm_null;
}

static void start(uint64_t enter) {
    const char *job = getenv("MANAPY_TRACE_JOB"), *why_not;
    if (job == NULL || *job == 0 || strchr(job, '/') != NULL || mpy_trace.file != NULL) return;
    if (!mpy_abi_find(&why_not)) {
        if (why_not != NULL) fprintf(stderr, "manapy trace: not recorded: %s\n", why_not);
        return;
    }
    if (is_spawned()) return;
    char program[256], error[512];
    command(program, sizeof program);
    mpy_trace_identity_t who = {.job = job, .producer = "preload", .program = program};
    int (*rank_of)(mpy_word_t, int *) = mpy_library_function("PMPI_Comm_rank"),
                                   (*size_of)(mpy_word_t, int *) = mpy_library_function("PMPI_Comm_size");
    int (*query)(int *) = mpy_library_function("PMPI_Query_thread"), level = 3;
    rank_of(mpy_abi.comm_world, &who.rank);
    size_of(mpy_abi.comm_world, &who.size);
    query(&level);
    mpy_multiple = level == 3;
    if (pthread_key_create(&thread_end, leave_thread) != 0 ||
        !mpy_trace_create(&mpy_trace, &who, error, sizeof error)) {
        fprintf(stderr, "manapy trace: rank %d is not recorded: %s\n", who.rank, error);
        return;
    }
    pthread_atfork(NULL, NULL, in_child);
    mpy_objects_start();
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return;
    mpy_object_t *world = mpy_comm_of(mpy_abi.comm_world);
    mpy_trace_call_t call = {.op = MPY_OP_INIT,
                             .comm = world ? world->index : MPY_TRACE_NO_COMM,
                             .peer = MPY_TRACE_NO_PEER,
                             .context = mpy_count(world)};
    mpy_trace_put(ring, enter, mpy_trace_ticks(), call);
    mpy_tls.busy = false;
}

/* Inside the library's MPI_Init nothing is recorded. */
int mpy_record_Init(mpy_fn_Init_t real, void *argc, void *argv) {
    uint64_t enter = mpy_trace_ticks();
    int rc = real(argc, argv);
    if (rc == 0) start(enter);
    return rc;
}

int mpy_record_Init_thread(mpy_fn_Init_thread_t real, void *argc, void *argv, int required, void *provided) {
    uint64_t enter = mpy_trace_ticks();
    int rc = real(argc, argv, required, provided);
    if (rc == 0) start(enter);
    return rc;
}

int mpy_record_Finalize(mpy_fn_Finalize_t real) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real();
    uint64_t count,
        seq = mpy_enter_collective(ring, mpy_comm_of(mpy_abi.comm_world),
                                   (mpy_trace_call_t){.op = MPY_OP_FINALIZE, .peer = MPY_TRACE_NO_PEER}, &count);
    int rc = real();
    mpy_exit(ring, seq, rc);
    mpy_trace_end(&mpy_trace, MPY_TRACE_FINALIZED);
    return rc;
}

/* ---- MPI_Pcontrol (MPI 4.1, 15.2.4): 0 pauses the recording of this thread's calls, 1 (the default) and 2 resume it;
 * other levels have no effect here ---- */

static void pause_or_resume(bool on) {
    mpy_tls_t *t = &mpy_tls;
    if (on == (t->ring == t->own)) return;
    if (on) {
        mpy_trace_resume(t->own);
        t->ring = t->own;
    } else {
        mpy_trace_pause(t->own);
        t->off.serials = t->own->serials + MPY_TRACE_PAUSED_SERIALS;
        t->ring = &t->off;
    }
}

int mpy_record_Pcontrol(mpy_fn_Pcontrol_t real, int level, MPY_VARARGS) {
    if (level >= 0 && level <= 2 && mpy_begin() != NULL) {
        pause_or_resume(level != 0);
        mpy_tls.busy = false;
    }
    return real(level, MPY_VARARGS_NAMES);
}

/* ---- RDMA traffic: libmanapy_shift.so records in the same file (rdma/journal/traffic.c) ---- */

__attribute__((visibility("default"))) mpy_trace_t *manapy_trace_of_process(void) { return &mpy_trace; }

/* ---- for manapy/trace/capture/tsc_clock.py, because Python can't read the counter ---- */

__attribute__((visibility("default"))) void manapy_trace_clocks(mpy_trace_sample_t *out) { *out = mpy_trace_clocks(); }

/* ---- phases that the program announces: manapy.trace.mark ---- */

__attribute__((visibility("default"))) int manapy_trace_mark(uint64_t mark) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return 0;
    bool on = mpy_is_on(ring);
    if (on)
        mpy_trace_mark(ring, mark);
    else
        mpy_tls.own->mark = mark; /* later records contain it */
    mpy_tls.busy = false;
    return on;
}
