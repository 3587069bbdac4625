/* touches.c - what a program can do with memory that is not there yet after a restart: touches MEGABYTES ACT
 *
 * Each rank fills areas with numbers that depend on rank and place. Once the file ACT exists, it unmaps, empties and
 * moves parts of them, gives them to system calls, reads them in a child process and in threads, and compares all.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AREAS = 8, THREADS = 3, PAGE = 4096 };
static size_t bytes; /* of an area */
static int rank;
static const char *where = "start";

static uint64_t number(int area, size_t i) { return (i + 1) * 0x9e3779b97f4a7c15ul ^ (uint64_t)(area * 1000 + rank); }

static int right(const uint64_t *words, int area, size_t from, size_t until) {
    for (size_t i = from / 8; i < until / 8; i++)
        if (words[i - from / 8] != number(area, i)) return 0;
    return 1;
}
static int zeros(const uint64_t *words, size_t n) {
    for (size_t i = 0; i < n / 8; i++)
        if (words[i]) return 0;
    return 1;
}

static void must(int good) {
    if (good) return;
    printf("rank %d BAD: %s\n", rank, where);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static uint64_t *area_of[AREAS];

static void *read_backwards(void *thread) {
    const long k = (long)thread;
    for (size_t at = bytes; at > 0; at -= PAGE) {
        size_t page = at - PAGE;
        if ((long)(page / PAGE) % THREADS == k && !right(area_of[5] + page / 8, 5, page, at)) return thread;
    }
    return NULL;
}

/* Pages of all areas that have no memory yet. */
static size_t missing(void) {
    size_t n = bytes / PAGE, count = 0;
    unsigned char *there = malloc(n);
    for (int k = 0; k < AREAS; k++) {
        must(mincore(area_of[k], bytes, there) == 0);
        for (size_t i = 0; i < n; i++) count += !(there[i] & 1);
    }
    free(there);
    return count;
}

static void act(void) {
    const size_t half = bytes / 2 / PAGE * PAGE;
    where = "emptied by madvise";
    must(madvise(area_of[0], half, MADV_DONTNEED) == 0 && zeros(area_of[0], half));
    where = "beside it";
    must(right(area_of[0] + half / 8, 0, half, bytes));
    where = "unmapped and mapped again";
    must(munmap(area_of[1], half) == 0);
    must(mmap(area_of[1], half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
         area_of[1]);
    must(zeros(area_of[1], half) && right(area_of[1] + half / 8, 1, half, bytes));
    where = "moved";
    uint64_t *moved = mremap(area_of[2], half, half + 16 * PAGE, MREMAP_MAYMOVE);
    must(moved != MAP_FAILED && moved != area_of[2]);
    must(right(moved, 2, 0, half) && zeros(moved + half / 8, 16 * PAGE));
    where = "a child process";
    pid_t child = fork();
    if (child == 0) _exit(right(area_of[3], 3, 0, bytes) ? 0 : 1);
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    where = "system calls";
    int ends[2];
    must(pipe(ends) == 0);
    for (size_t at = 0; at + PAGE <= half; at += PAGE) {
        must(write(ends[1], (char *)area_of[4] + at, PAGE) == PAGE);
        must(read(ends[0], (char *)area_of[4] + half + at, PAGE) == PAGE);
    }
    must(memcmp(area_of[4], (char *)area_of[4] + half, half) == 0 && right(area_of[4], 4, 0, half));
    where = "threads";
    pthread_t threads[THREADS];
    for (long k = 0; k < THREADS; k++) must(pthread_create(&threads[k], NULL, read_backwards, (void *)k) == 0);
    for (int k = 0; k < THREADS; k++) {
        void *bad;
        must(pthread_join(threads[k], &bad) == 0 && bad == NULL);
    }
    where = "written before it was read";
    memset(area_of[6], 7, half);
    must(((char *)area_of[6])[half - 1] == 7 && right(area_of[6] + half / 8, 6, half, bytes));
    where = "protected";
    must(mprotect(area_of[7], bytes, PROT_READ) == 0 && right(area_of[7], 7, 0, bytes));
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
    bytes = (size_t)atol(argv[1]) * 1000000 / AREAS / PAGE * PAGE;
    for (int k = 0; k < AREAS; k++) {
        area_of[k] = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t i = 0; i < bytes / 8; i++) area_of[k][i] = number(k, i);
        mprotect((char *)area_of[k] + bytes, PAGE, PROT_NONE); /* keeps the areas apart */
    }
    for (int i = 0, all = 0; !all; i++) {
        int there = access(argv[2], F_OK) == 0;
        MPI_Allreduce(&there, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        if (rank == 0 && i % 100 == 0) printf("step %d\n", i), fflush(stdout);
        usleep(1000);
    }
    printf("rank %d: %s\n", rank, missing() ? "some pages are missing" : "all pages are there");
    act();
    printf("rank %d ok\n", rank);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
