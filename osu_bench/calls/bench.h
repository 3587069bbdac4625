/* bench.h - timing for the MPI benchmark programs, which are plain MPI programs and do not depend on manapy. See
 * batches.h. */
#ifndef MANAPY_BENCH_H
#define MANAPY_BENCH_H

#include "../batches.h"

#include <mpi.h>
#include <string.h>

/* executions in a batch of collectives; a batch is short even if each execution takes a time slice of the scheduler */
#define BENCH_GROUP 50

static int bench_rank, bench_size;
static long bench_max_bytes;
static const int bench_sizes[] = {4, 1 << 10, 1 << 20};
#define BENCH_SIZES (int)(sizeof bench_sizes / sizeof *bench_sizes)

/* Command line: [MS [MAX_BYTES]] */
static inline void bench_init(int *argc, char ***argv, int first) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench_size);
    bench_ns = 1e6 * (*argc > first ? atof((*argv)[first]) : 50);
    bench_max_bytes = *argc > first + 1 ? atol((*argv)[first + 1]) : 1 << 20;
}

static inline void bench_report(const char *name, long bytes, const char *unit, double value, double least) {
    if (bench_rank == 0) bench_print(name, bytes, unit, value, least);
}

/* A message buffer, filled with `value`. The position of a buffer within its page changes the speed of copies, and
 * malloc chooses other positions under manapy (this made an Allgather of 1 MB 4 to 5 % slower). So every buffer gets
 * the position that a large new block of malloc has. Free it with bench_buffer_free. */
#define BENCH_PAGE 4096
#define BENCH_OFFSET 16
static inline char *bench_buffer(size_t bytes, int value) {
    char *pages = aligned_alloc(BENCH_PAGE, (BENCH_OFFSET + bytes + BENCH_PAGE - 1) / BENCH_PAGE * BENCH_PAGE);
    if (!pages) abort();
    return memset(pages + BENCH_OFFSET, value, bytes);
}
static inline void bench_buffer_free(char *buffer) { free(buffer - BENCH_OFFSET); }

/* ---- executions in direct succession, timed on rank 0 ---- */

static inline int bench_agreed(int more) { /* rank 0 decides; then all ranks begin together */
    if (bench_size > 1) {
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return more;
}

/* Batches of CALLS executions of BODY, after one batch to warm up; ns per execution, divided by PER. */
#define BENCH(NAME, BYTES, CALLS, PER, BODY) \
    do { \
        static double samples_[BENCH_BATCHES_MAX]; \
        int n_ = -1; \
        for (double used_ = 0; bench_agreed(bench_more(n_, used_)); n_++) { \
            double begin_ = bench_now_ns(), batch_; \
            for (int i_ = 0; i_ < (CALLS); i_++) { BODY; } \
            batch_ = bench_now_ns() - begin_; \
            used_ += batch_; \
            if (n_ >= 0) samples_[n_] = batch_ / (CALLS) / (PER); \
        } \
        double median_ = bench_median(samples_, n_); \
        bench_report(NAME, BYTES, "ns", median_, samples_[0]); \
    } while (0)

/* ---- collectives, as OSU's micro-benchmarks time them ---- */

/* ns per execution of `body`. Each execution is timed by itself, and a barrier that is not timed follows it. The result
 * is the mean over `calls` executions and over all ranks. The total time is added to *used_ns. All ranks get the same
 * values, so they agree on when to stop. */
static inline double bench_collective(void (*body)(void), int calls, double *used_ns) {
    double spent[2] = {0, 0}, sum[2], start = bench_now_ns(); /* in the body; in total */
    for (int i = 0; i < calls; i++) {
        double begin = bench_now_ns();
        body();
        spent[0] += bench_now_ns() - begin;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    spent[1] = bench_now_ns() - start;
    MPI_Allreduce(spent, sum, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    *used_ns += sum[1] / bench_size;
    return sum[0] / calls / bench_size;
}

/* Number of executions in a batch: at least twenty batches should fit. */
static inline int bench_calls(void (*body)(void)) {
    double used_ns = 0;
    bench_collective(body, 3, &used_ns); /* sets up connections */
    used_ns = 0;
    bench_collective(body, 3, &used_ns);
    double calls = bench_ns / 20 / (used_ns / 3);
    return calls < 1 ? 1 : calls > BENCH_GROUP ? BENCH_GROUP : (int)calls;
}

#endif
