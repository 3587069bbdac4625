/* latency.c - latency between ranks, as OSU's micro-benchmarks measure it: latency [BATCHES [MAX_BYTES]]
 *
 * Rank 0 reports its mean time per call of each batch; Send/Recv is half the round trip of a ping-pong.
 */
#include "bench.h"

#include <string.h>

static void ping_pong(char *buffer, int bytes) {
    if (bench_rank == 0) {
        MPI_Send(buffer, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (bench_rank == 1) {
        MPI_Recv(buffer, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(buffer, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    }
}

static void exchange(char *a, char *b, int bytes) {
    MPI_Request r[2];
    MPI_Isend(a, bytes, MPI_CHAR, bench_rank ^ 1, 0, MPI_COMM_WORLD, &r[0]);
    MPI_Irecv(b, bytes, MPI_CHAR, bench_rank ^ 1, 0, MPI_COMM_WORLD, &r[1]);
    MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
}

int main(int argc, char **argv) {
    static const int sizes[] = {4, 1 << 10, 1 << 20};
    int batches = argc > 1 ? atoi(argv[1]) : 40;
    long max_bytes = argc > 2 ? atol(argv[2]) : 1 << 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench_size);
    if (bench_size % 2) {
        fprintf(stderr, "latency: an even number of ranks is needed\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    BENCH("Barrier", 0, batches, 1000, 1, MPI_Barrier(MPI_COMM_WORLD));
    for (int s = 0; s < 3 && sizes[s] <= max_bytes; s++) {
        int bytes = sizes[s], calls = bytes < 100000 ? 1000 : 20;
        char *a = malloc((size_t)bytes * (size_t)bench_size), *b = malloc((size_t)bytes * (size_t)bench_size);
        memset(a, 1, (size_t)bytes * (size_t)bench_size);
        memset(b, 2, (size_t)bytes * (size_t)bench_size);
        BENCH("Send/Recv, one way", bytes, batches, calls, 2, ping_pong(a, bytes));
        BENCH("Isend+Irecv+Waitall", bytes, batches, calls, 1, exchange(a, b, bytes));
        BENCH("Bcast", bytes, batches, calls, 1, MPI_Bcast(a, bytes, MPI_CHAR, 0, MPI_COMM_WORLD));
        BENCH("Allreduce", bytes, batches, calls, 1, MPI_Allreduce(a, b, bytes / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        BENCH("Alltoall", bytes, batches, calls, 1, MPI_Alltoall(a, bytes, MPI_CHAR, b, bytes, MPI_CHAR, MPI_COMM_WORLD));
        free(a);
        free(b);
    }
    MPI_Finalize();
    return 0;
}
