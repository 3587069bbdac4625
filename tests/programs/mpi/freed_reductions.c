/* Persistent reductions with an operation of the program that are freed leave no buffers behind, but other ranks may
 * still hold them at the checkpoint. See mpi_states.h.
 */
#include "../mpi_states.h"

enum { FREED = 40, N = 1 << 18 /* ints: a megabyte */ };

static int *in, *out;
static MPI_Request held;

static void add(void *from, void *to, int *n, MPI_Datatype *datatype) {
    (void)datatype;
    for (int i = 0; i < *n; i++) ((int *)to)[i] += ((int *)from)[i];
}

static long resident_mb(void) {
    long pages = 0, all;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%ld %ld", &all, &pages) != 2) abort();
    fclose(f);
    return pages * 4 / 1024;
}

static void make(MPI_Request *request) {
    MPI_Op op;
    MPI_Op_create(add, 1, &op);
    MPI_Reduce_scatter_block_init(in, out, N / size, MPI_INT, op, MPI_COMM_WORLD, MPI_INFO_NULL, request);
    MPI_Op_free(&op);
}

static void reduce(MPI_Request *request) {
    for (int i = 0; i < N; i++) in[i] = rank + i;
    MPI_Start(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
    for (int i = 0; i < N / size; i += 1000)
        CHECK(out[i] == size * (rank * (N / size) + i) + size * (size - 1) / 2);
}

static void freed_set_up(void) {
    in = malloc(N * sizeof *in);
    out = malloc(N * sizeof *out);
    make(&held);
    reduce(&held);
    long before = resident_mb();
    for (int i = 0; i < FREED; i++) {
        MPI_Request request;
        make(&request);
        reduce(&request);
        MPI_Request_free(&request);
    }
    CHECK(resident_mb() - before < FREED);
    if (rank == 0) MPI_Request_free(&held);
}

static void freed_check(void) {
    MPI_Request request;
    make(&request);
    reduce(&request);
    MPI_Request_free(&request);
    if (rank != 0) MPI_Request_free(&held);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(freed)};
    return run_mpi_states(argc, argv, NULL, states, sizeof states / sizeof *states);
}
