/* Threads that only ask MPI for their rank, so that they are in the wrappers' own code most of the time.
 *
 *     busy_threads FILE        prints "in loop", ends with "ok" when FILE exists
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { THREADS = 3 };

static volatile int over;

static void *ask(void *unused) {
    int rank = 0;
    while (!over && rank == 0) MPI_Comm_rank(MPI_COMM_SELF, &rank);
    return unused;
}

int main(int argc, char **argv) {
    int level;
    pthread_t threads[THREADS];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, ask, NULL);
    printf("in loop\n");
    fflush(stdout);
    while (access(argv[1], F_OK) != 0) usleep(1000);
    over = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("ok\n");
    return MPI_Finalize();
}
