/* handler_above.c - the first thread of the last rank is in a handler that has interrupted the kernel's clock, where no
 * thread can be halted. It stays there until the file argv[1] exists. Then all ranks print "outside", and continue
 * until the file argv[2] exists. */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t above;
static const char *leave;

static void wait_for(const char *path) {
    while (access(path, F_OK)) usleep(10000);
}

static void on_prof(int sig, siginfo_t *info, void *context) {
    uint64_t rip = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)sig, (void)info;
    if (above || (rip >= 0x200000000000 && rip < 0x210000000000)) return; /* in code that a restart restores */
    above = 1;
    write(1, "inside\n", 7);
    wait_for(leave);
}

static void *interrupt(void *first) {
    while (!above) pthread_kill(*(pthread_t *)first, SIGPROF), usleep(1000);
    return NULL;
}

int main(int argc, char **argv) {
    int rank, size;
    struct timespec now;
    pthread_t first = pthread_self(), other;
    leave = argv[1];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == size - 1) {
        struct sigaction a = {.sa_sigaction = on_prof, .sa_flags = SA_SIGINFO | SA_RESTART};
        sigaction(SIGPROF, &a, NULL);
        if (pthread_create(&other, NULL, interrupt, &first)) return 1;
        while (!above) clock_gettime(CLOCK_MONOTONIC, &now);
        pthread_join(other, NULL);
    }
    wait_for(leave);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("outside\n");
    fflush(stdout);
    wait_for(argv[2]);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("ok\n");
    MPI_Finalize();
    return 0;
}
