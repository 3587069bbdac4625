/* slow_init.c - tells the user when the MPI_Init of a restart takes long. Restarted ranks connect to the coordinator
 * after it, so the coordinator cannot tell (as manapy/ckpt/coordinator/mpi_init.py does at a start).
 *
 * Half: lower; a thread of its own, on which all signals are blocked.
 *
 * Invariants
 *  1. Only rank 0 speaks: MPI_Init is collective.
 *  2. The thread has ended when mpy_mpi_watch_end returns.
 */
#include "base/rank.h"
#include "load.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { SAY_SECONDS = 10, SAY_FACTOR = 3 }; /* as in mpi_init.py */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended;
static pthread_t watcher;
static bool watching, over;

static void *watch(void *unused) {
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    const time_t begin = due.tv_sec;
    long seconds = SAY_SECONDS;
    pthread_mutex_lock(&lock);
    for (; !over; seconds *= SAY_FACTOR) {
        due.tv_sec = begin + seconds;
        while (!over && pthread_cond_timedwait(&ended, &lock, &due) == 0) {}
        char host[256] = "";
        gethostname(host, sizeof host - 1);
        if (!over)
            dprintf(2, "%s: rank 0 (on %s) has been in MPI_Init for %ld s: it waits for other ranks, for mpirun (its "
                    "process manager) or for the network between the ranks; look at mpirun's messages, at the network "
                    "interface that MPI uses, or at pid %d\n", mpy_options.command, host, seconds, (int)getpid());
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

void mpy_mpi_watch_begin(void) {
    if (MPY_LOWER->rank != 0) return;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ended, &attributes);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watching = pthread_create(&watcher, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void mpy_mpi_watch_end(void) {
    if (!watching) return;
    pthread_mutex_lock(&lock);
    over = true;
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&lock);
    pthread_join(watcher, NULL);
    watching = false;
}
