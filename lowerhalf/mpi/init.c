/* init.c - initializes the real MPI, with precautions.
 *
 * Half: lower; runs on the lower TLS.
 *
 * Invariant
 *  1. Init runs with low descriptor numbers occupied and all signals blocked, so that descriptors and threads of the
 *     library do not interfere with the program. What occupies the numbers serves one call at a time: several threads
 *     may begin sessions.
 *  2. The control thread learns that an Init has begun: it tells the coordinator if that takes long.
 *  3. The library and manapy have the same number of ranks. They learn it in different ways (join/manager/pmi.c).
 */
#include "base/now.h"
#include "isolate/fdguard.h"
#include "load.h"
#include "parts.h"
#include <manapy/boundary.h>
#include <manapy/lock.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>

#include "functions.h"

static int (*real_init)(int *, char ***);
static int (*real_init_thread)(int *, char ***, int, int *);
static int (*real_session_init)(MPI_Info, MPI_Errhandler, MPI_Session *);

static volatile int64_t since; /* invariant 2 */

int64_t mpy_mpi_init_since(void) { return since; }

static uint32_t busy; /* invariant 1 */

static sigset_t begin(void) {
    mpy_lock_acquire(&busy);
    since = mpy_now_ms();
    MPY_LOWER->svc->notify();
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGSYS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    mpy_fds_scan_begin();
    mpy_fds_occupy_low();
    return old;
}

static int end(sigset_t old, int rc) {
    mpy_fds_release_low();
    mpy_fds_scan_end();
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) since = 0;
    mpy_lock_release(&busy);
    return rc;
}

/* Invariant 3 */
static int check_ranks(int rc) {
    char line[256];
    int size;
    if (rc || ((mpy_fn_Comm_size_t)MPY_LOWER->mpi[MPY_FN_Comm_size])(MPI_COMM_WORLD, &size) || size == MPY_LOWER->size)
        return rc;
    snprintf(line, sizeof line, "the MPI library (%s) finds %d ranks, but the launcher has told manapy of %d: they do "
             "not belong together", mpy_mpi_path(), size, MPY_LOWER->size);
    MPY_LOWER->svc->die(line, 1);
    return rc;
}

static int init(int *argc, char ***argv) {
    sigset_t old = begin();
    return check_ranks(end(old, real_init(argc, argv)));
}

static int init_thread(int *argc, char ***argv, int required, int *provided) {
    sigset_t old = begin();
    return check_ranks(end(old, real_init_thread(argc, argv, required, provided)));
}

static int session_init(MPI_Info info, MPI_Errhandler errhandler, MPI_Session *session) {
    sigset_t old = begin();
    return end(old, real_session_init(info, errhandler, session));
}

static void guard(int slot, void **real, void *ours) {
    *real = MPY_LOWER->mpi[slot];
    MPY_LOWER->mpi[slot] = ours;
}

void mpy_mpi_guard_init(void) {
    guard(MPY_FN_Init, (void **)&real_init, (void *)init);
    guard(MPY_FN_Init_thread, (void **)&real_init_thread, (void *)init_thread);
    guard(MPY_FN_Session_init, (void **)&real_session_init, (void *)session_init);
}
