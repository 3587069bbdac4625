/* A program written for DMTCP: weak symbols, called through macros with a fallback, as in dmtcp.h. It does not depend
 * on manapy.
 *
 *   alone            prints the result of every function, around one checkpoint; with -DWITHOUT_MPI the only mode
 *                    besides `place`
 *   place DIR        sends checkpoints to DIR, which is relative and new, and takes one
 *   checkpoint DIR   all ranks request a checkpoint; then they wait to be killed or, after a restart, end
 *   disabled DIR     rank 0 disables checkpoints twice, and enables them when DIR/one and DIR/two exist; meanwhile MPI
 *                    continues
 *   regions DIR      every rank disables checkpoints in some places, around messages and collectives: no checkpoint may
 *                    come inside
 */
#ifndef WITHOUT_MPI
#include <mpi.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WEAK __attribute__((weak))
int dmtcp_is_enabled(void) WEAK;
int dmtcp_checkpoint(void) WEAK;
int dmtcp_disable_ckpt(void) WEAK;
int dmtcp_enable_ckpt(void) WEAK;
int dmtcp_get_coordinator_status(int *, int *) WEAK;
int dmtcp_get_local_status(int *, int *) WEAK;
int dmtcp_set_ckpt_dir(const char *) WEAK;
const char *dmtcp_get_ckpt_dir(void) WEAK;
const char *dmtcp_get_ckpt_filename(void) WEAK;
const char *dmtcp_get_uniquepid_str(void) WEAK;
uint32_t dmtcp_get_generation(void) WEAK;
#define CALL(f, absent, ...) (f ? f(__VA_ARGS__) : absent)
enum { AFTER_CHECKPOINT = 1, AFTER_RESTART = 2, NOT_PRESENT = 3 };

static int rank;
static uint32_t generation(void) { return CALL(dmtcp_get_generation, 0); }

static void fail(const char *what) {
    fprintf(stderr, "rank %d: %s\n", rank, what);
    exit(1);
}

static void show(const char *moment) {
    int peers = -1, running = -1, checkpoints = -1, restarts = -1;
    int coordinator = CALL(dmtcp_get_coordinator_status, NOT_PRESENT, &peers, &running),
        local = CALL(dmtcp_get_local_status, NOT_PRESENT, &checkpoints, &restarts);
    printf("%s: coordinator %d peers %d running %d, local %d checkpoints %d restarts %d, generation %u\n", moment,
           coordinator, peers, running, local, checkpoints, restarts, generation());
    fflush(stdout);
}

static void alone(void) {
    printf("enabled %d\n", CALL(dmtcp_is_enabled, 0));
    show("start");
    printf("disable %d", CALL(dmtcp_disable_ckpt, NOT_PRESENT));
    printf(" %d", CALL(dmtcp_disable_ckpt, NOT_PRESENT));
    printf(" enable %d", CALL(dmtcp_enable_ckpt, NOT_PRESENT));
    printf(" %d\n", CALL(dmtcp_enable_ckpt, NOT_PRESENT));
    printf("set %d %d\n", CALL(dmtcp_set_ckpt_dir, NOT_PRESENT, NULL),
           CALL(dmtcp_set_ckpt_dir, NOT_PRESENT, CALL(dmtcp_get_ckpt_dir, "")));
    const char *file = CALL(dmtcp_get_ckpt_filename, NULL), *id = CALL(dmtcp_get_uniquepid_str, NULL),
               *dir = CALL(dmtcp_get_ckpt_dir, "");
    printf("names %d %d %d\n", file != NULL, id != NULL, dir[0] != 0);
    if (file && strncmp(file, dir, strlen(dir))) fail("the image isn't in the directory");
    char before[256] = "";
    if (id) snprintf(before, sizeof before, "%s", id);
    fflush(stdout);
    int result = CALL(dmtcp_checkpoint, NOT_PRESENT);
    printf("checkpoint %d\n", result);
    show("after");
    if (id && strcmp(before, dmtcp_get_uniquepid_str())) fail("another process id");
    if (file && access(dmtcp_get_ckpt_filename(), R_OK)) fail("no image");
}

static void place(const char *directory) {
    printf("set %d", CALL(dmtcp_set_ckpt_dir, NOT_PRESENT, directory));
    printf(" as given %d there %d\n", !strcmp(dmtcp_get_ckpt_dir(), directory), access(directory, F_OK) == 0);
    fflush(stdout);
    int result = dmtcp_checkpoint();
    char path[4096] = "";
    if (!realpath(directory, path)) fail("the directory isn't there");
    const char *expected = result == AFTER_RESTART ? path : directory, *file = dmtcp_get_ckpt_filename();
    printf("checkpoint %d\nset to %s %d image %d\n", result, result == AFTER_RESTART ? "real path" : "given",
           !strcmp(dmtcp_get_ckpt_dir(), expected),
           !strncmp(file, expected, strlen(expected)) && access(file, R_OK) == 0);
}

#ifndef WITHOUT_MPI
static int size;

static void ask(void) {
    show("start");
    int result = CALL(dmtcp_checkpoint, NOT_PRESENT), sum = 0;
    MPI_Allreduce(&result, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (sum != size * result) fail("ranks got different results");
    show(result == AFTER_RESTART ? "restarted" : "checkpointed");
    if (result == AFTER_CHECKPOINT)
        for (;;) pause();
}

static int exists(const char *directory, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

/* All ranks call MPI until rank 0 has seen the file. Returns the generation then. */
static uint32_t go_on_until(const char *directory, const char *name) {
    for (int there = 0; !there; usleep(1000)) {
        if (rank == 0) there = exists(directory, name);
        MPI_Bcast(&there, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    return generation();
}

static void disabled(const char *directory) {
    if (rank == 0 && (dmtcp_disable_ckpt() != 1 || dmtcp_disable_ckpt() != 1)) fail("disable");
    if (rank == 0) puts("disabled"), fflush(stdout);
    if (go_on_until(directory, "one") != 0) fail("a checkpoint while disabled");
    if (rank == 0 && dmtcp_enable_ckpt() != 1) fail("enable");
    if (rank == 0) puts("still disabled"), fflush(stdout);
    if (go_on_until(directory, "two") != 0) fail("a checkpoint while disabled once");
    if (rank == 0 && dmtcp_enable_ckpt() != 1) fail("enable");
    go_on_until(directory, "three");
    if (generation() != 1) fail("no checkpoint when enabled");
}

/* Rank 0 waits, with checkpoints disabled, for a message of rank 1. Rank 1 sends it only after a collective with the
 * others, which may all be stopped for a checkpoint by then. */
static void regions(const char *directory) {
    MPI_Comm others;
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &others);
    srand((unsigned)rank);
    for (int i = 0, end = 0; !end; i++) {
        int region = rank == 0 || rand() % 3 == 0, value = i, seen = exists(directory, "end");
        if (region && dmtcp_disable_ckpt() != 1) fail("disable");
        uint32_t before = generation();
        if (rank == 0) MPI_Recv(&value, 1, MPI_INT, 1, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else MPI_Barrier(others);
        usleep((unsigned)rand() % 300);
        if (rank == 1) MPI_Send(&value, 1, MPI_INT, 0, i, MPI_COMM_WORLD);
        if (value != i) fail("another message");
        if (i % 4 == 0) MPI_Allreduce(&seen, &end, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (region && generation() != before) fail("a checkpoint came in between");
        if (region && dmtcp_enable_ckpt() != 1) fail("enable");
        usleep(100);
        if (rank == 0 && i % 20 == 0) printf("step %d\n", i), fflush(stdout);
    }
    MPI_Comm_free(&others);
}

static void together(int argc, char **argv) {
    const char *mode = argc == 3 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (!strcmp(mode, "checkpoint")) ask();
    else if (!strcmp(mode, "disabled")) disabled(argv[2]);
    else if (!strcmp(mode, "regions")) regions(argv[2]);
    else fail("what?");
    MPI_Finalize();
}
#endif

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "alone")) alone();
    else if (argc == 3 && !strcmp(argv[1], "place")) place(argv[2]);
#ifndef WITHOUT_MPI
    else together(argc, argv);
#endif
    puts("ok");
    return 0;
}
