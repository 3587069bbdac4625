/* own_children.c - the program's own fork(2) and wait(2): it must find exactly its own children, and the ends of its
 * pipes must not stay open elsewhere. It goes on until there is a file `end`; rank 0 counts its rounds. */
#define _GNU_SOURCE
#include <errno.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 30 << 20 }; /* the writer of the image needs a while */

static volatile char memory[BYTES];
static volatile int signals;
static void on_child(int sig) { (void)sig, signals++; }

static void fail(const char *what) {
    printf("FAILED %s (errno %d)\n", what, errno);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The pipe was opened before this round, perhaps before a checkpoint. */
static void round_trip(int to[2], int next[2]) {
    siginfo_t info = {0};
    char c;
    int status, before = signals;
    errno = 0;
    if (waitpid(-1, &status, 0) != -1 || errno != ECHILD) fail("waitpid found a child of somebody else");
    errno = 0;
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != -1 || errno != ECHILD) fail("waitid found one");
    if (signals != before) fail("SIGCHLD for a child of somebody else");
    pid_t child = fork();
    if (child == 0) _exit(read(to[0], &c, 1) == 1 && c == 'x' ? 7 : 1);
    if (write(to[1], "x", 1) != 1) fail("write");
    if (waitpid(-1, &status, 0) != child || WEXITSTATUS(status) != 7) fail("the own child");
    close(to[1]);
    if (read(to[0], &c, 1) != 0) fail("the pipe is open elsewhere"); /* or it waits for ever */
    close(to[0]);
    to[0] = next[0], to[1] = next[1];
    if (pipe(next)) fail("pipe");
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, pipes[2][2];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    signal(SIGCHLD, on_child);
    for (int i = 0; i < BYTES; i++) memory[i] = (char)(i * 7 + rank);
    if (pipe(pipes[0]) || pipe(pipes[1])) fail("pipe");
    for (int i = 0, end = 0; !end; i++) {
        round_trip(pipes[0], pipes[1]);
        end = access("end", F_OK) == 0;
        MPI_Bcast(&end, 1, MPI_INT, 0, MPI_COMM_WORLD); /* all do the same number of rounds */
        if (rank == 0 && i % 10 == 0) printf("step %d\n", i), fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("ok\n");
    MPI_Finalize();
    return 0;
}
