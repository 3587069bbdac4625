/* epochs.c DIR EPOCHS STEPS - what a data-parallel training sends: in each step the sum of a vector over all ranks. It
 * continues from the state in DIR, which rank 0 saves after each epoch, and does the steps that the file DIR/up-to
 * allows. The vector at the end, whose digest is printed, is always the same: sums of integers know no order.
 *
 * It starts much faster in the emulated machine than osu_bench/rdma/train.py, whose lines it prints.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 20000, STEP_US = 50000, LOOK_US = 200000 };

static uint32_t weights[N], mine[N], total[N];
static const char *folder;

static char *in_folder(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void fail(const char *what) {
    perror(what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The number of epochs that are done. */
static int load(void) {
    int epochs = 0;
    FILE *file = fopen(in_folder("saved"), "r");
    if (!file) return 0;
    if (fread(&epochs, sizeof epochs, 1, file) != 1 || fread(weights, sizeof weights, 1, file) != 1) fail("saved");
    fclose(file);
    return epochs;
}

/* Completely, or not at all. */
static void save(int epochs) {
    char *new = NULL;
    if (asprintf(&new, "%s/saved.new", folder) < 0) fail("asprintf");
    FILE *file = fopen(new, "w");
    if (!file || fwrite(&epochs, sizeof epochs, 1, file) != 1 || fwrite(weights, sizeof weights, 1, file) != 1 ||
        fflush(file) || fsync(fileno(file)) || fclose(file) || rename(new, in_folder("saved")))
        fail(new);
    free(new);
}

static void wait_until_allowed(int step) {
    for (int allowed = 0;; usleep(LOOK_US)) {
        const char *path = in_folder("up-to");
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%d", &allowed) != 1) fail(path);
        fclose(file);
        if (step <= allowed) return;
    }
}

static void do_step(int step, int rank) {
    for (uint32_t i = 0; i < N; i++)
        mine[i] = (weights[i] ^ (i + 1) * 2654435761u) * (2 * (uint32_t)(step + rank) + 1);
    MPI_Allreduce(mine, total, N, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD);
    for (uint32_t i = 0; i < N; i++) weights[i] += total[i];
    usleep(STEP_US);
}

static uint32_t digest(void) {
    uint32_t d = 2166136261u;
    for (uint32_t i = 0; i < N; i++) d = (d ^ weights[i]) * 16777619u;
    return d;
}

int main(int argc, char **argv) {
    int rank, size, epoch = 0;
    if (argc != 4) return 2;
    folder = argv[1];
    const int epochs = atoi(argv[2]), steps = atoi(argv[3]);
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) epoch = load();
    MPI_Bcast(&epoch, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Bcast(weights, N, MPI_UINT32_T, 0, MPI_COMM_WORLD);
    printf("rank %d of %d begins with epoch %d\n", rank, size, epoch);
    fflush(stdout);
    for (; epoch < epochs; epoch++) {
        for (int step = epoch * steps + 1; step <= (epoch + 1) * steps; step++) {
            wait_until_allowed(step);
            do_step(step, rank);
            if (rank == 0) printf("step %d done\n", step), fflush(stdout);
        }
        if (rank == 0) save(epoch + 1);
    }
    if (rank == 0) printf("weights %08x\n", digest());
    MPI_Finalize();
    return 0;
}
