/* mostly_idle.c MEGABYTES - ranks have much memory and change 1 % of it in each step. A step is done when the file `go`
 * has its number. They also change how memory is mapped, and their advice about it. At the end (a file `end`) each rank
 * checks all its memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / sizeof(uint32_t), SPARE = 16, FREELY = MAP_PRIVATE | MAP_ANONYMOUS };
typedef uint32_t page_t[WORDS];

/* SPARE pages of each, and their number */
enum { PROTECTED, MOVED, DROPPED, ZEROED, MAPPED, KINDS };
static const char *const names[KINDS] = {"protected", "moved", "dropped", "zeroed", "mapped"};
static page_t *spare[KINDS], *advised;
static uint32_t state[KINDS];

/* madvise(2), and how /proc/PID/smaps calls it */
static const int advice[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL};
static const char *const flags[] = {"", "rr", "sr"};

static void must(int done, const char *what) {
    if (done) return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static page_t *pages(long count, void *where, int how) {
    page_t *made = mmap(where, (size_t)count * PAGE, PROT_READ | PROT_WRITE, FREELY | how, -1, 0);
    must(made != MAP_FAILED && (!where || made == where), "mmap");
    return made;
}

/* What a page with this number has in word i: half of the page cannot be compressed. All words of page 0 are 0. */
static uint32_t word(uint32_t value, int i) {
    if (value == 0 || i >= WORDS / 2) return value;
    uint32_t mixed = value * 2654435761u + (uint32_t)i * 2246822519u;
    mixed = (mixed ^ mixed >> 15) * 3266489917u;
    return mixed ^ mixed >> 13;
}

static void fill(page_t *page, long count, uint32_t value) {
    for (long k = 0; k < count; k++)
        for (int i = 0; i < WORDS; i++) page[k][i] = word(value, i);
}

static int holds(page_t *page, long count, uint32_t value) {
    for (long k = 0; k < count; k++)
        for (int i = 0; i < WORDS; i++)
            if (page[k][i] != word(value, i)) return 0;
    return 1;
}

static void protect(int protection) {
    must(mprotect(spare[PROTECTED], SPARE * PAGE, protection) == 0, "mprotect");
}

static void set(int kind, uint32_t value) {
    fill(spare[kind], SPARE, value);
    state[kind] = value;
}

/* 1 % of the data in the first place, and then what a page can undergo besides. */
static void change(page_t *data, uint32_t *expected, long count, int step) {
    for (long i = step % 100; i < count; i += 100) fill(&data[i], 1, expected[i] += 1000);
    protect(PROT_READ | PROT_WRITE);
    set(PROTECTED, (uint32_t)step);
    protect(step % 2 ? PROT_READ : PROT_NONE);
    page_t *there = pages(SPARE, NULL, 0);
    void *moved = mremap(spare[MOVED], SPARE * PAGE, SPARE * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there);
    must(moved == (void *)there, "mremap");
    spare[MOVED] = there;
    set(ZEROED, step % 2 ? 7 : 0);
    must(madvise(spare[DROPPED], SPARE * PAGE, MADV_DONTNEED) == 0, "madvise");
    state[DROPPED] = 0;
    if (step % 2) set(DROPPED, (uint32_t)step);
    must(munmap(spare[MAPPED], SPARE * PAGE) == 0, "munmap");
    pages(SPARE, spare[MAPPED], MAP_FIXED);
    state[MAPPED] = 0;
    if (step % 3) set(MAPPED, 7);
    must(madvise(advised, SPARE * PAGE, advice[step % 3]) == 0, "madvise");
    must((step % 2 ? mlock : munlock)(advised, SPARE * PAGE) == 0, "mlock");
}

/* The flags of the advised memory in smaps are those of this step. */
static int advice_holds(int step) {
    static char line[4096];
    unsigned long low, high, at = (unsigned long)advised;
    int inside = 0, seen[3] = {0}, locked = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    must(maps != NULL, "smaps");
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &low, &high) == 2) inside = low <= at && at < high;
        if (!inside || strncmp(line, "VmFlags:", 8)) continue;
        strtok(line, " \n");
        for (char *word; (word = strtok(NULL, " \n"));) {
            for (int i = 1; i < 3; i++) seen[i] |= !strcmp(word, flags[i]);
            locked |= !strcmp(word, "lo");
        }
    }
    fclose(maps);
    return locked == step % 2 && seen[1] == (step % 3 == 1) && seen[2] == (step % 3 == 2);
}

static int wrong(page_t *data, uint32_t *expected, long count, int rank, int step) {
    int found = 0;
    for (long i = 0; i < count && !found; i++)
        if (!holds(&data[i], 1, expected[i])) found += printf("rank %d: wrong: page %ld\n", rank, i);
    protect(PROT_READ);
    for (int kind = 0; kind < KINDS; kind++)
        if (!holds(spare[kind], SPARE, state[kind]))
            found += printf("rank %d: wrong: %s, not %u\n", rank, names[kind], state[kind]);
    if (!advice_holds(step)) found += printf("rank %d: wrong: advice\n", rank);
    return found;
}

/* The step that is wanted, and whether the program is to end. */
static void look(int asked[2]) {
    FILE *go = fopen("go", "r");
    asked[0] = 0;
    if (go && fscanf(go, "%d", &asked[0]) != 1) asked[0] = 0;
    if (go) fclose(go);
    asked[1] = access("end", F_OK) == 0;
}

int main(int argc, char **argv) {
    int rank, step = 0, asked[2] = {0}, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const long count = atol(argv[1]) * (1 << 20) / PAGE;
    page_t *data = pages(count, NULL, 0);
    uint32_t *expected = malloc((size_t)count * sizeof *expected);
    must(expected != NULL, "malloc");
    for (long i = 0; i < count; i++) fill(&data[i], 1, expected[i] = (uint32_t)(i + 1 + rank * count));
    for (int kind = 0; kind < KINDS; kind++) {
        spare[kind] = pages(SPARE, NULL, 0);
        set(kind, 7);
    }
    advised = pages(SPARE, NULL, 0);
    if (rank == 0) printf("begun\n");
    while (!asked[1]) {
        if (rank == 0) look(asked);
        MPI_Bcast(asked, 2, MPI_INT, 0, MPI_COMM_WORLD);
        while (step < asked[0]) {
            change(data, expected, count, ++step);
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0) printf("step %d\n", step);
        }
        usleep(5000);
    }
    int mine = wrong(data, expected, count, rank, step);
    MPI_Reduce(&mine, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0 && sum == 0) printf("ok\n");
    MPI_Finalize();
    return 0;
}
