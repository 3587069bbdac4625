/* batches.h - timing in batches for the benchmark programs, and their output. It does not depend on MPI.
 *
 * Each operation is measured in many short batches, so a disturbance spoils only one sample. Batches are repeated until
 * the milliseconds of the command line are used up, but at least 3 and at most 2000 times. The result is one JSON
 * object on a line:
 *     {"name": ..., "bytes": ..., "unit": ..., "value": median over the batches, "min": smallest batch}
 */
#ifndef MANAPY_BATCHES_H
#define MANAPY_BATCHES_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BENCH_BATCHES_MAX 2000

static double bench_ns; /* for every measurement */

static inline double bench_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static inline int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double bench_median(double *samples, int n) {
    qsort(samples, (size_t)n, sizeof *samples, bench_compare);
    return samples[n / 2];
}

static inline void bench_print(const char *name, long bytes, const char *unit, double value, double least) {
    printf("{\"name\": \"%s\", \"bytes\": %ld, \"unit\": \"%s\", \"value\": %.3f, \"min\": %.3f}\n", name, bytes, unit,
           value, least);
    fflush(stdout);
}

/* Is there time for another batch? */
static inline int bench_more(int done, double used_ns) {
    return done < 3 || (done < BENCH_BATCHES_MAX && used_ns < bench_ns);
}

#endif
