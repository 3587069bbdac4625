/* slow_init.c - watches the MPI_Init of a restart: tells the user when it takes long, and ends the job if it cannot
 * return, because a host is lost. Restarted ranks connect to the coordinator after their MPI_Init. So the coordinator
 * cannot tell that it takes long (as manapy/ckpt/coordinator/mpi_init.py does at a start), and it ends the job through
 * a pipe to rank 0 (join/rendezvous.h, last_words).
 *
 * Half: lower; a thread of its own, on which all signals are blocked.
 *
 * Invariants
 *  1. Only rank 0 speaks and ends the job: MPI_Init is collective, and the process manager ends the other ranks.
 *  2. The thread has ended when mpy_mpi_watch_end returns.
 */
#include "base/io/host.h"
#include "base/now.h"
#include "base/rank.h"
#include "isolate/fdguard.h"
#include "load.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { SAY_MS = 10000, SAY_FACTOR = 3 }; /* as in mpi_init.py */

static pthread_t watcher;
static bool watching;
static int last_words = -1, ended = -1;

static void say(int64_t seconds) {
    char host[MPY_HOST_NAME];
    mpy_hostname(host, sizeof host);
    mpy_say("rank 0 (on %s) has been in MPI_Init for %ld s: it waits for other ranks, for mpirun (its process manager) "
            "or for the network between the ranks; look at mpirun's messages, at the network interface that MPI uses, "
            "or at pid %d", host, (long)seconds, (int)getpid());
}

/* False if the coordinator has ended without a word: MPI_Init goes on. */
static bool hear(void) {
    char words[1024];
    ssize_t length = read(last_words, words, sizeof words);
    if (length <= 0) return false;
    mpy_say("%.*s", (int)length, words);
    _exit(1); /* not exit(): the real MPI is in the middle of its start */
}

static void *watch(void *unused) {
    struct pollfd events[] = {{.fd = ended, .events = POLLIN}, {.fd = last_words, .events = POLLIN}};
    const int64_t begin = mpy_now_ms();
    int64_t due = SAY_MS;
    while (events[0].revents == 0) {
        int64_t left = begin + due - mpy_now_ms();
        if (left <= 0) {
            say(due / 1000);
            due *= SAY_FACTOR;
        } else if (poll(events, 2, (int)left) > 0 && events[1].revents != 0 && !hear()) {
            events[1].fd = -1;
        }
    }
    return unused;
}

void mpy_mpi_watch_words(int words) { last_words = words; }

void mpy_mpi_watch_begin(void) {
    if (MPY_LOWER->rank != 0) return;
    ended = mpy_fd_high(eventfd(0, EFD_CLOEXEC));
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watching = ended >= 0 && pthread_create(&watcher, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void mpy_mpi_watch_end(void) {
    if (watching && eventfd_write(ended, 1) == 0) pthread_join(watcher, NULL);
    if (ended >= 0) mpy_fd_close(ended);
    watching = false;
    ended = -1;
}
