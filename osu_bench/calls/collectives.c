/* collectives.c - eight patterns of collective communication, as OSU's micro-benchmarks measure them:
 *     collectives blocking|nonblocking|overlap [MS [MAX_BYTES]]
 *
 *   blocking     latency of MPI_X
 *   nonblocking  latency of MPI_IX + MPI_Wait
 *   overlap      share of a computation that fits into the time of MPI_IX + MPI_Wait, by OSU's definition:
 *                    pure     MPI_IX, MPI_Wait
 *                    compute  a computation that takes about as long
 *                    total    MPI_IX, the computation, MPI_Wait
 *                overlap % = 100 * (1 - (total - compute) / pure), between 0 and 100, of the medians. The computation
 *                contains no MPI_Test.
 *
 * Sizes are bytes per rank (per pair of ranks for Alltoall and similar functions): 4 B, 1 KB, 1 MB.
 */
#include "bench.h"

static char *sent, *received;
static int bytes;
static MPI_Request request;

/* blocking, nonblocking, arguments up to the request */
#define PATTERNS(X) \
    X(Bcast, Ibcast, sent, bytes, MPI_CHAR, 0, MPI_COMM_WORLD) \
    X(Reduce, Ireduce, sent, received, bytes / 4, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD) \
    X(Allreduce, Iallreduce, sent, received, bytes / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD) \
    X(Gather, Igather, sent, bytes, MPI_CHAR, received, bytes, MPI_CHAR, 0, MPI_COMM_WORLD) \
    X(Scatter, Iscatter, sent, bytes, MPI_CHAR, received, bytes, MPI_CHAR, 0, MPI_COMM_WORLD) \
    X(Allgather, Iallgather, sent, bytes, MPI_CHAR, received, bytes, MPI_CHAR, MPI_COMM_WORLD) \
    X(Alltoall, Ialltoall, sent, bytes, MPI_CHAR, received, bytes, MPI_CHAR, MPI_COMM_WORLD) \
    X(Barrier, Ibarrier, MPI_COMM_WORLD)

#define CALL(BLOCKING, NONBLOCKING, ...) \
    static void BLOCKING(void) { MPI_##BLOCKING(__VA_ARGS__); } \
    static void NONBLOCKING(void) { MPI_##NONBLOCKING(__VA_ARGS__, &request); }
PATTERNS(CALL)

typedef struct {
    const char *blocking_name, *name;
    void (*blocking)(void), (*start)(void);
} pattern_t;

#define ROW(BLOCKING, NONBLOCKING, ...) {#BLOCKING, #NONBLOCKING, BLOCKING, NONBLOCKING},
static const pattern_t patterns[] = {PATTERNS(ROW)};
#define NPATTERNS (int)(sizeof patterns / sizeof *patterns)

/* ---- what is timed ---- */

static const pattern_t *pattern;
static long steps; /* of the computation */
static volatile double sink;

static void compute(void) {
    double x = 1.0;
    for (long i = 0; i < steps; i++) x = x * 1.0000001 + 1e-9;
    sink = x;
}

static void pure(void) {
    pattern->start();
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void total(void) {
    pattern->start();
    compute();
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static double steps_per_ns(void) {
    double best = 0;
    steps = 100000;
    for (int i = 0; i < 20; i++) {
        double begin = bench_now_ns();
        compute();
        double rate = (double)steps / (bench_now_ns() - begin);
        if (rate > best) best = rate;
    }
    return best;
}

/* ---- measuring ---- */

static void latency(void (*body)(void), const char *name) {
    static double samples[BENCH_BATCHES_MAX];
    int calls = bench_calls(body), n = 0;
    for (double used = 0; bench_more(n, used); n++) samples[n] = bench_collective(body, calls, &used);
    double median = bench_median(samples, n);
    bench_report(name, bytes, "ns", median, samples[0]);
}

static void overlap(double rate) {
    static double p[BENCH_BATCHES_MAX], c[BENCH_BATCHES_MAX], t[BENCH_BATCHES_MAX];
    int calls = bench_calls(pure), n = 0;
    for (double used = 0; bench_more(n, 2 * used); n++) p[n] = bench_collective(pure, calls, &used);
    steps = (long)(bench_median(p, n) * rate);
    n = 0;
    for (double used = 0; bench_more(n, used / 2); n++) {
        p[n] = bench_collective(pure, calls, &used);
        c[n] = bench_collective(compute, calls, &used);
        t[n] = bench_collective(total, calls, &used);
    }
    double value = 100 * (1 - (bench_median(t, n) - bench_median(c, n)) / bench_median(p, n));
    value = value < 0 ? 0 : value > 100 ? 100 : value;
    bench_report(pattern->name, bytes, "%", value, value);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int blocking = strcmp(mode, "blocking") == 0, nonblocking = strcmp(mode, "nonblocking") == 0;
    bench_init(&argc, &argv, 2);
    if (!(blocking || nonblocking || strcmp(mode, "overlap") == 0)) {
        fprintf(stderr, "usage: collectives blocking|nonblocking|overlap [MS [MAX_BYTES]]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    double rate = steps_per_ns();
    for (pattern = patterns; pattern < patterns + NPATTERNS; pattern++) {
        int sizes = strcmp(pattern->name, "Ibarrier") ? BENCH_SIZES : 1;
        for (int s = 0; s < sizes && bench_sizes[s] <= bench_max_bytes; s++) {
            size_t size = (size_t)bench_sizes[s] * (size_t)bench_size;
            bytes = sizes > 1 ? bench_sizes[s] : 0;
            sent = bench_buffer(size, 1), received = bench_buffer(size, 2);
            if (blocking) latency(pattern->blocking, pattern->blocking_name);
            else if (nonblocking) latency(pure, pattern->name);
            else overlap(rate);
            bench_buffer_free(sent), bench_buffer_free(received);
        }
    }
    MPI_Finalize();
    return 0;
}
