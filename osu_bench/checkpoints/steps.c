/* steps.c - a program to checkpoint: steps MEGABYTES SECONDS
 *
 * Each rank fills MEGABYTES of memory with random bytes. Then the job makes steps: a short sleep, an Allreduce, and one
 * line of rank 0. For `manapy bench` the program runs from its first line after a start or a restart.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void fill(uint64_t *words, size_t n, uint64_t x) { /* xorshift64*: no page can be compressed */
    for (size_t i = 0; i < n; i++) {
        x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
        words[i] = x * 2685821657736338717ul;
    }
}

int main(int argc, char **argv) {
    size_t bytes = (size_t)(argc > 1 ? atol(argv[1]) : 0) * 1000000;
    int steps = (int)(200 * (argc > 2 ? atof(argv[2]) : 60)), rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    uint64_t *words = malloc(bytes + 8), sum = 0;
    if (words == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    fill(words, bytes / 8, 88172645463325252ul + (uint64_t)rank);
    for (int i = 0; i < steps; i++) {
        uint64_t mine = bytes ? words[(size_t)i * 512 % (bytes / 8)] : (uint64_t)i;
        MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("step %d %016lx\n", i, (unsigned long)sum);
            fflush(stdout);
        }
        usleep(5000);
    }
    free(words);
    MPI_Finalize();
    return 0;
}
