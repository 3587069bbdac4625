/* bench.h - timing for the benchmark programs: many short batches, so that one disturbed batch spoils one sample only. */
#ifndef MANAPY_BENCH_H
#define MANAPY_BENCH_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int bench_rank, bench_size;

static inline double bench_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One line of JSON for run.py: minimum and median over the batches, in ns per call. */
static void bench_report(const char *name, long bytes, double *samples, int n, double calls) {
    if (bench_rank != 0) return;
    qsort(samples, (size_t)n, sizeof *samples, bench_compare);
    printf("{\"name\": \"%s\", \"bytes\": %ld, \"min_ns\": %.3f, \"median_ns\": %.3f}\n", name, bytes, samples[0] / calls, samples[n / 2] / calls);
    fflush(stdout);
}

/* Time BATCHES batches of CALLS executions of BODY (after one batch to warm up) and report ns per execution. */
#define BENCH(NAME, BYTES, BATCHES, CALLS, PER, BODY) \
    do { \
        int batches_ = (BATCHES), calls_ = (CALLS); \
        double *samples_ = malloc((size_t)batches_ * sizeof *samples_); \
        for (int b_ = -1; b_ < batches_; b_++) { \
            if (bench_size > 1) MPI_Barrier(MPI_COMM_WORLD); \
            double begin_ = bench_now_ns(); \
            for (int i_ = 0; i_ < calls_; i_++) { BODY; } \
            if (b_ >= 0) samples_[b_] = bench_now_ns() - begin_; \
        } \
        bench_report(NAME, BYTES, samples_, batches_, (double)calls_ * (PER)); \
        free(samples_); \
    } while (0)

#endif
