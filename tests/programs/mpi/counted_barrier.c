/* A program with one barrier, which counting_tool.c counts. */
#include <mpi.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Finalize();
}
