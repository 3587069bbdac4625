/* remapped.c - messages from and into memory that is unmapped, and mapped again at the same address: the RNIC has to
 * read and write the new pages. Libraries that remember which memory they have registered can miss that.
 *
 * Rank 0 sends to rank 1, which counts the messages that did not arrive as they were sent: "ok", or "N of M wrong".
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BYTES = 1 << 20, MESSAGES = 10 };

static void *mapped_at(void *at) {
    void *memory = mmap(at, BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);
    if (memory == MAP_FAILED) perror("mmap"), MPI_Abort(MPI_COMM_WORLD, 1);
    return memory;
}

int main(int argc, char **argv) {
    int rank, wrong = 0;
    unsigned char *memory = NULL, *expected = malloc(BYTES);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i <= MESSAGES; i++) {
        memory = mapped_at(memory);
        memset(expected, i, BYTES);
        if (rank == 0) {
            memset(memory, i, BYTES);
            MPI_Send(memory, BYTES, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        } else if (rank == 1) {
            MPI_Recv(memory, BYTES, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            wrong += memcmp(memory, expected, BYTES) != 0;
        }
        munmap(memory, BYTES);
    }
    if (rank == 1 && wrong) printf("%d of %d wrong\n", wrong, MESSAGES);
    else if (rank == 1) puts("ok");
    free(expected);
    MPI_Finalize();
    return wrong != 0;
}
