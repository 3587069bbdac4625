/* wide.c - sums over all ranks until the file GO exists; each rank also has a file of its own open. Prints "ready", at
 * last "ok".
 *
 *     mpirun -n N wide GO
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size, wrong = 0;
    char path[64], mark = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    snprintf(path, sizeof path, "rank-%d", rank);
    int file = open(path, O_RDWR | O_CREAT, 0666), go = argc > 1;
    wrong += write(file, "abc", 3) != 3 || lseek(file, 1, SEEK_SET) != 1;
    for (long step = 0; go; step++) {
        long mine = rank + step, sum;
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        wrong += sum != size * step + (long)size * (size - 1) / 2;
        if (rank == 0 && step == 0) printf("ready, the file is descriptor %d\n", file), fflush(stdout);
        go = rank || access(argv[1], F_OK);
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
        usleep(1000000);
    }
    wrong += read(file, &mark, 1) != 1 || mark != 'b';
    MPI_Reduce(rank ? &wrong : MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%s\n", wrong ? "wrong" : "ok");
    MPI_Finalize();
    return wrong != 0;
}
