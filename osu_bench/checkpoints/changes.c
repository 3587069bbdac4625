/* changes.c - a program whose memory changes while it is checkpointed: changes MEGABYTES PERCENT STEPS REPORT [PAUSE]
 *
 * Each rank fills MEGABYTES of memory with random bytes. In each step it computes for about a millisecond, writes to a
 * part of PERCENT of its pages (always the same ones), and the job makes an Allreduce. Some 20 times a second rank 0
 * prints the step, and appends a line to the file REPORT: the step, and the longest one since the last line in
 * microseconds. So the longest time that the job was paused is there. If PAUSE is given, each step sleeps for so many
 * microseconds. With -DALONE the program is one process without MPI.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifdef ALONE
static int alone_rank(void) { return 0; }
static void alone_sum(uint64_t *x) { (void)x; }
#define START(argc, argv)
#define RANK alone_rank()
#define SUM(x) alone_sum(x)
#define END()
#else
#include <mpi.h>
static int mpi_rank(void) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}
#define START(argc, argv) MPI_Init(&(argc), &(argv))
#define RANK mpi_rank()
#define SUM(x) MPI_Allreduce(MPI_IN_PLACE, x, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD)
#define END() MPI_Finalize()
#endif

enum { PAGE_WORDS = 512, PARTS = 20, TURNS = 400000, LINE_US = 50000 };

static uint64_t next(uint64_t x) { /* xorshift64: no page can be compressed */
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x;
}

static long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    START(argc, argv);
    size_t words = (size_t)atol(argv[1]) * 1000000 / 8, pages = words / PAGE_WORDS;
    size_t apart = atof(argv[2]) > 0 ? (size_t)(100 / atof(argv[2])) : 0; /* every so many pages changes */
    long steps = atol(argv[3]);
    useconds_t pause = argc > 5 ? (useconds_t)atol(argv[5]) : 0;
    int rank = RANK;
    uint64_t x = 88172645463325252ul + (uint64_t)rank, *data = malloc(words * 8 + 8);
    FILE *report = rank == 0 ? fopen(argv[4], "a") : NULL;
    if (data == NULL || (rank == 0 && report == NULL)) return 1;
    for (size_t i = 0; i < words; i++) data[i] = x = next(x);
    if (rank == 0) puts("step 0"), fflush(stdout);
    long last = now_us(), written = last, longest = 0;
    for (long i = 1; i <= steps; i++) {
        for (int k = 0; k < TURNS; k++) x = next(x);
        for (size_t k = (size_t)i % PARTS; apart && k * apart < pages; k += PARTS) data[k * apart * PAGE_WORDS] += x;
        uint64_t sum = x;
        SUM(&sum);
        if (pause) usleep(pause);
        long now = now_us();
        if (now - last > longest) longest = now - last;
        last = now;
        if (report != NULL && (now - written > LINE_US || i == steps)) {
            fprintf(report, "%ld %ld\n", i, longest);
            printf("step %ld %016lx\n", i, (unsigned long)sum);
            fflush(NULL);
            written = now, longest = 0;
        }
    }
    if (report != NULL) fclose(report);
    free(data);
    END();
    return 0;
}
