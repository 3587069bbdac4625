/* many_memory_files.c - each rank has mapped N files without a name twice, and has closed them: every second one is a
 * memfd, the others were POSIX shared memory. Ends when the file GO exists. Prints "ready", at last "ok".
 *
 *     mpirun -n RANKS many_memory_files GO N
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 1 << 15, BYTES = 4096 };

static volatile int *memory[MOST][2];

static int open_new(int i) {
    char name[64];
    if (i % 2) return memfd_create("many", MFD_CLOEXEC);
    snprintf(name, sizeof name, "/many_memory_files.%d", getpid());
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    shm_unlink(name);
    return fd;
}

int main(int argc, char **argv) {
    const int files = argc > 2 ? atoi(argv[2]) : 0;
    int rank, wrong = files > MOST;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < files && !wrong; i++) {
        int fd = open_new(i);
        wrong = ftruncate(fd, BYTES) != 0;
        for (int k = 0; k < 2; k++) memory[i][k] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (!wrong) *memory[i][0] = files * rank + i;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("ready\n"), fflush(stdout);
    while (access(argv[1], F_OK)) usleep(10000);
    for (int i = 0; i < files && !wrong; i++) {
        wrong += *memory[i][1] != files * rank + i;
        *memory[i][1] = -i;
        wrong += *memory[i][0] != -i;
    }
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("%s\n", wrong ? "wrong" : "ok");
    MPI_Finalize();
    return wrong != 0;
}
