/* first_calls.c - several threads make the process's first call of MPI at the same time.
 *
 *     first_calls WHICH      info: MPI_Info_create
 *                            session: MPI_Session_init; a library without sessions fails, and is then asked for an info
 *                            mixed: half of the threads call one, half the other
 *
 * MPI 4.1 (11.6.1) allows these calls from any thread, also before MPI is initialized.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8 };

static const char *which;
static pthread_barrier_t all;
static int failures;

static int info(void) {
    MPI_Info info;
    char value[8] = "";
    int found = 0;
    if (MPI_Info_create(&info) != MPI_SUCCESS) return 0;
    MPI_Info_set(info, "key", "value");
    MPI_Info_get(info, "key", 7, value, &found);
    MPI_Info_free(&info);
    return found && strcmp(value, "value") == 0;
}

static int session(MPI_Session *session) {
    int sets = 0;
    if (MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, session) != MPI_SUCCESS) return info();
    MPI_Session_get_num_psets(*session, MPI_INFO_NULL, &sets);
    return sets >= 2;
}

static void *work(void *at) {
    int sessions = strcmp(which, "session") == 0 || (strcmp(which, "mixed") == 0 && (long)at % 2);
    MPI_Session own = MPI_SESSION_NULL;
    pthread_barrier_wait(&all);
    int failed = !(sessions ? session(&own) : info());
    pthread_barrier_wait(&all); /* MPICH 5.0 may hang if it begins again while its last session ends */
    if (own != MPI_SESSION_NULL) failed |= MPI_Session_finalize(&own) != MPI_SUCCESS;
    if (failed) __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    which = argc > 1 ? argv[1] : "session";
    pthread_barrier_init(&all, NULL, THREADS);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    puts(failures ? "failed" : "ok");
    return failures != 0;
}
