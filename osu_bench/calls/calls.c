/* calls.c - cost of one call on one rank, where no call waits: calls [MS]
 *
 * A rank cannot send to itself before the receive is posted. So the blocking send and the blocking receive are each
 * timed with a nonblocking partner. Each of the two rows contains one blocking and one nonblocking call; the first row
 * also contains a Wait.
 */
#include "bench.h"

int main(int argc, char **argv) {
    int rank, in = 0, out = 1;
    MPI_Request r[2];
    bench_init(&argc, &argv, 1);
    BENCH("Comm_rank", 0, 20000, 1, MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    BENCH("Barrier, one rank", 0, 5000, 1, MPI_Barrier(MPI_COMM_WORLD));
    BENCH("Bcast, one rank", 4, 5000, 1, MPI_Bcast(&out, 1, MPI_INT, 0, MPI_COMM_WORLD));
    BENCH("Allreduce, one rank", 4, 5000, 1, MPI_Allreduce(&out, &in, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    BENCH("Ibcast+Wait, one rank", 4, 2000, 1, {
        MPI_Ibcast(&out, 1, MPI_INT, 0, MPI_COMM_WORLD, &r[0]);
        MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    });
    BENCH("Iallreduce+Wait, one rank", 4, 2000, 1, {
        MPI_Iallreduce(&out, &in, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &r[0]);
        MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    });
    BENCH("Send to PROC_NULL", 4, 5000, 1, MPI_Send(&out, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD));
    BENCH("Recv from PROC_NULL", 4, 5000, 1,
          MPI_Recv(&in, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    BENCH("Irecv+Send+Wait, self", 4, 2000, 1, {
        MPI_Irecv(&in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[0]);
        MPI_Send(&out, 1, MPI_INT, 0, 0, MPI_COMM_SELF);
        MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    });
    BENCH("Isend+Recv+Wait, self", 4, 2000, 1, {
        MPI_Isend(&out, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[0]);
        MPI_Recv(&in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
        MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    });
    BENCH("Sendrecv, self", 4, 2000, 1,
          MPI_Sendrecv(&out, 1, MPI_INT, 0, 0, &in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE));
    BENCH("Isend+Irecv+Waitall, self", 4, 2000, 1, {
        MPI_Isend(&out, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[0]);
        MPI_Irecv(&in, 1, MPI_INT, 0, 0, MPI_COMM_SELF, &r[1]);
        MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    });
    MPI_Finalize();
    return 0;
}
