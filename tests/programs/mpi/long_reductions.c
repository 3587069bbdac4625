/* long_reductions.c - long nonblocking reductions with an operation of the program.
 *
 *     long_reductions memory     the largest memory of each rank grows only by a fixed multiple of the vector
 *     long_reductions FILE       rank 0 waits for its result; meanwhile the others are in calls that need a later
 *                                action of rank 0; until FILE exists and all calls were made
 */
#include "../long_run.h"
#include "../mpi_states.h"

#include <sys/resource.h>

enum { MB = 1 << 20, MODULUS = 1000003 };

static long *in, *out;
static MPI_Op op;

static void add(void *from, void *to, int *n, MPI_Datatype *type) {
    const long *a = from;
    long *b = to;
    (void)type;
    for (int i = 0; i < *n; i++) b[i] = (a[i] + b[i]) % MODULUS;
}

static void fill(int n, int round) {
    for (int i = 0; i < n; i++) in[i] = (rank + 1l) * (i + round) % MODULUS, out[i] = -1;
}

static void verify(int n, int round) {
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        long sum = 0;
        for (int r = 0; r < size; r++) sum = (sum + (r + 1l) * (i + round) % MODULUS) % MODULUS;
        wrong += out[i] != sum;
    }
    CHECK(wrong == 0);
}

/* ---- memory ---- */

static long largest(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss / 1024;
}

static void memory(void) {
    enum { LENGTH = 16 /* megabytes */, BOUND = 4 * LENGTH };
    int n = LENGTH * MB / (int)sizeof(long);
    MPI_Request request;
    fill(n, 0);
    /* Memory that the library itself needs for such a vector. */
    MPI_Allreduce(MPI_IN_PLACE, out, n, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    long before = largest();
    for (int round = 0; round < 3; round++) {
        fill(n, round);
        MPI_Iallreduce(in, out, n, MPI_LONG, op, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        verify(n, round);
    }
    long grown = largest() - before;
    CHECK(grown < BOUND); /* all contributions are `size` times the length */
    if (grown >= BOUND) printf("rank %d: %ld MB more\n", rank, grown);
}

/* ---- elsewhere ---- */

enum { TAG = 5 };
static int token;
static MPI_Comm own;
static MPI_Win window;

static void send_to_all(void) {
    for (int r = 1; r < size; r++) MPI_Send(&token, 1, MPI_INT, r, TAG, own);
}
static void receive_from_all(void) {
    for (int r = 1; r < size; r++) MPI_Recv(&token, 1, MPI_INT, r, TAG, own, MPI_STATUS_IGNORE);
}
static void in_recv(void) {
    if (rank == 0) send_to_all();
    else MPI_Recv(&token, 1, MPI_INT, 0, TAG, own, MPI_STATUS_IGNORE);
}
static void in_ssend(void) {
    if (rank == 0) receive_from_all();
    else MPI_Ssend(&token, 1, MPI_INT, 0, TAG, own);
}
static void in_probe(void) {
    if (rank > 0) MPI_Probe(0, TAG, own, MPI_STATUS_IGNORE);
    in_recv();
}
static void in_waitany(void) {
    MPI_Request request;
    int index;
    if (rank == 0) {
        send_to_all();
    } else {
        MPI_Irecv(&token, 1, MPI_INT, 0, TAG, own, &request);
        MPI_Waitany(1, &request, &index, MPI_STATUS_IGNORE);
    }
}
static void in_testing(void) {
    MPI_Request request;
    int flag = 0;
    if (rank == 0) {
        send_to_all();
    } else {
        MPI_Irecv(&token, 1, MPI_INT, 0, TAG, own, &request);
        while (!flag) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    }
}
static void in_barrier(void) { MPI_Barrier(own); }
static void in_allreduce(void) { MPI_Allreduce(MPI_IN_PLACE, &token, 1, MPI_INT, MPI_SUM, own); }
static void in_dup(void) {
    MPI_Comm made;
    MPI_Comm_dup(own, &made);
    MPI_Comm_free(&made);
}
static void in_fence(void) { MPI_Win_fence(0, window); }
static void in_lock(void) { /* rank 0 keeps it until it has its result */
    if (rank == 0) {
        MPI_Win_unlock(0, window);
        MPI_Barrier(own);
    } else {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Win_unlock(0, window);
        MPI_Barrier(own);
    }
}

static const struct { const char *name; void (*call)(void); } calls[] = {
    {"Recv", in_recv},       {"Ssend", in_ssend},     {"Probe", in_probe},         {"Waitany", in_waitany},
    {"Test", in_testing},    {"Barrier", in_barrier}, {"Allreduce", in_allreduce}, {"Comm_dup", in_dup},
    {"Win_fence", in_fence}, {"Win_lock", in_lock},
};

enum { NCALLS = sizeof calls / sizeof *calls };

static void elsewhere(const char *stop_file) {
    int n = MB / 2, stop = 0;
    MPI_Request request;
    MPI_Comm_dup(MPI_COMM_WORLD, &own);
    MPI_Win_create(&token, sizeof token, sizeof token, MPI_INFO_NULL, own, &window);
    for (int k = 0; k < NCALLS || !stop; k++) {
        int i = k % NCALLS;
        fill(n, k);
        int locks = calls[i].call == in_lock;
        if (locks && rank == 0) MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        if (locks) MPI_Barrier(own);
        MPI_Iallreduce(in, out, n, MPI_LONG, op, MPI_COMM_WORLD, &request);
        if (rank == 0) MPI_Wait(&request, MPI_STATUS_IGNORE);
        calls[i].call();
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        verify(n, k);
        if (rank == 0) printf("in %s\n", calls[i].name);
        stop = last_step(k, stop_file, rank, own);
    }
    MPI_Win_free(&window);
    MPI_Comm_free(&own);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    find_rank();
    in = malloc(32 * MB), out = malloc(32 * MB);
    MPI_Op_create(add, 1, &op);
    if (strcmp(argv[1], "memory") == 0) memory();
    else elsewhere(argv[1]);
    puts(failures ? "failed" : "ok");
    MPI_Op_free(&op);
    MPI_Finalize();
    return failures != 0;
}
