/* rate.c - rate of small operations of a rank: rate [MS [MAX_BYTES]]
 *
 * The measurements are those of OSU's osu_bw, osu_put_latency, osu_allreduce and osu_barrier, on two ranks, timed on
 * rank 0. In a window, rank 0 sends WINDOW nonblocking messages, and rank 1 has posted as many receives. Each rank
 * waits for all of its requests, then rank 1 answers. The result is ns per message. One-sided operations go from rank 0
 * to memory of rank 1, which waits in a collective.
 */
#include "bench.h"

#include <stdbool.h>

enum { WINDOW = 64 };
static const int sizes[] = {4, 1 << 10, 1 << 16};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void window(char *buffer, int bytes) {
    MPI_Request r[WINDOW];
    char answer = 0;
    if (bench_rank == 0) {
        for (int i = 0; i < WINDOW; i++) MPI_Isend(buffer, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &r[i]);
        MPI_Waitall(WINDOW, r, MPI_STATUSES_IGNORE);
        MPI_Recv(&answer, 1, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        for (int i = 0; i < WINDOW; i++) MPI_Irecv(buffer, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, &r[i]);
        MPI_Waitall(WINDOW, r, MPI_STATUSES_IGNORE);
        MPI_Send(&answer, 1, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
    }
}

static void one_sided(char *buffer, int bytes, bool put, MPI_Win win) {
    if (bench_rank != 0) return;
    if (put)
        MPI_Put(buffer, bytes, MPI_CHAR, 1, 0, bytes, MPI_CHAR, win);
    else
        MPI_Get(buffer, bytes, MPI_CHAR, 1, 0, bytes, MPI_CHAR, win);
    MPI_Win_flush(1, win);
}

int main(int argc, char **argv) {
    MPI_Win win;
    char *memory;
    int in = 0, out = 1;
    bench_init(&argc, &argv, 1);
    if (bench_size != 2) {
        fprintf(stderr, "rate: two ranks are needed\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    char *buffer = bench_buffer((size_t)sizes[SIZES - 1], 1);
    for (int s = 0; s < SIZES && sizes[s] <= bench_max_bytes; s++)
        BENCH("a message of a window of 64", sizes[s], sizes[s] < 4096 ? 10 : 2, WINDOW, window(buffer, sizes[s]));
    MPI_Win_allocate(sizes[SIZES - 1], 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
    MPI_Win_lock_all(0, win);
    for (int s = 0; s < SIZES && sizes[s] <= bench_max_bytes; s++) {
        BENCH("Put+flush", sizes[s], 100, 1, one_sided(buffer, sizes[s], true, win));
        BENCH("Get+flush", sizes[s], 100, 1, one_sided(buffer, sizes[s], false, win));
    }
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    BENCH("Allreduce", 4, 100, 1, MPI_Allreduce(&out, &in, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    BENCH("Barrier", 0, 100, 1, MPI_Barrier(MPI_COMM_WORLD));
    bench_buffer_free(buffer);
    MPI_Finalize();
    return 0;
}
