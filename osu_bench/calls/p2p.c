/* p2p.c - latency of point-to-point communication between pairs of ranks: p2p [MS [MAX_BYTES]]
 *
 * Rank 0 measures the time. Send/Recv is half the round trip of a ping-pong.
 */
#include "bench.h"

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
    bench_init(&argc, &argv, 1);
    if (bench_size % 2) {
        fprintf(stderr, "p2p: an even number of ranks is needed\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int s = 0; s < BENCH_SIZES && bench_sizes[s] <= bench_max_bytes; s++) {
        int bytes = bench_sizes[s], calls = bytes < 100000 ? 100 : 5;
        char *a = bench_buffer((size_t)bytes, 1), *b = bench_buffer((size_t)bytes, 2);
        BENCH("Send/Recv, one way", bytes, calls, 2, ping_pong(a, bytes));
        BENCH("Sendrecv", bytes, calls, 1,
              MPI_Sendrecv(a, bytes, MPI_CHAR, bench_rank ^ 1, 0, b, bytes, MPI_CHAR, bench_rank ^ 1, 0, MPI_COMM_WORLD,
                           MPI_STATUS_IGNORE));
        BENCH("Isend+Irecv+Waitall", bytes, calls, 1, exchange(a, b, bytes));
        bench_buffer_free(a), bench_buffer_free(b);
    }
    MPI_Finalize();
    return 0;
}
