/* calls.c - what one call costs on one rank, where nothing is waited for: calls [BATCHES]
 *
 * To itself a rank can't send before the receive is posted, so the blocking send and the blocking receive are timed each with a
 * nonblocking partner; both rows hold one blocking call, one nonblocking one and (the first) a Wait.
 */
#include "bench.h"

int main(int argc, char **argv) {
    int batches = argc > 1 ? atoi(argv[1]) : 200, rank, in = 0, out = 1;
    MPI_Request r[2];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench_size);
    BENCH("Comm_rank", 0, batches, 20000, 1, MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    BENCH("Barrier, one rank", 0, batches, 5000, 1, MPI_Barrier(MPI_COMM_WORLD));
    BENCH("Send to PROC_NULL", 4, batches, 5000, 1, MPI_Send(&out, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD));
    BENCH("Recv from PROC_NULL", 4, batches, 5000, 1, MPI_Recv(&in, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    BENCH("Irecv+Send+Wait, self", 4, batches, 2000, 1, {
        MPI_Irecv(&in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[0]);
        MPI_Send(&out, 1, MPI_INT, 0, 0, MPI_COMM_SELF);
        MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    });
    BENCH("Isend+Recv+Wait, self", 4, batches, 2000, 1, {
        MPI_Isend(&out, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[0]);
        MPI_Recv(&in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
        MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    });
    BENCH("Sendrecv, self", 4, batches, 2000, 1, MPI_Sendrecv(&out, 1, MPI_INT, 0, 0, &in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE));
    BENCH("Isend+Irecv+Waitall, self", 4, batches, 2000, 1, {
        MPI_Isend(&out, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[0]);
        MPI_Irecv(&in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[1]);
        MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    });
    BENCH("Ibcast+Wait, one rank", 4, batches, 2000, 1, {
        MPI_Ibcast(&out, 1, MPI_INT, 0, MPI_COMM_WORLD, &r[0]);
        MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    });
    MPI_Finalize();
    return 0;
}
