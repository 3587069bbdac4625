/* Persistent requests with large tags, before and after a restart under a library with another MPI_TAG_UB.
 *
 *     mpirun -n 2 tags [TAG]       TAG: instead of the value of MPI_TAG_UB
 */
#include "../mpi_states.h"

static int tag, out, in;
static MPI_Request requests[2]; /* receive (active), send (inactive) */

static void tags_set_up(void) {
    int other = 1 - rank;
    if (tag == 0) {
        int *bound, flag;
        MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &flag);
        CHECK(flag && *bound >= 32767);
        tag = *bound;
    }
    MPI_Recv_init(&in, 1, MPI_INT, other, tag, MPI_COMM_WORLD, &requests[0]);
    MPI_Send_init(&out, 1, MPI_INT, other, tag, MPI_COMM_WORLD, &requests[1]);
    MPI_Start(&requests[0]);
}

static void tags_check(void) {
    for (int i = 1; i < 4; i++) {
        out = 10 * i + rank;
        CHECK(!MPI_Start(&requests[1]) && !MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        CHECK(in == 10 * i + 1 - rank);
        CHECK(!MPI_Start(&requests[0]));
    }
    MPI_Cancel(&requests[0]);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    for (int i = 0; i < 2; i++) MPI_Request_free(&requests[i]);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(tags)};
    if (argc > 1) tag = atoi(argv[1]);
    return run_mpi_states(1, argv, NULL, states, 1);
}
