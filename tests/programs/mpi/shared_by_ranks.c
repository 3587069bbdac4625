/* shared_by_ranks.c - ranks of one host that share memory without MPI: of System V; POSIX shared memory, one file
 * deleted, one deleted that rank 0 has open, one that keeps its name. In each step every rank writes, and all read what
 * the others have written. Ends when the file GO exists. Prints "ready", at last "ok".
 *
 *     mpirun -n N shared_by_ranks GO [KIND]        KIND: only one of them, 0 to 3
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

enum { KINDS = 4, RANKS = 64, BYTES = 1 << 16 };
enum { SYSTEM_V, DELETED, OPEN, NAMED };

static int rank, size, descriptor = -1;
static long *memory[KINDS];
static char names[KINDS][64];

static void of_system_v(void) {
    int id = rank ? 0 : shmget(IPC_PRIVATE, BYTES, 0600 | IPC_CREAT);
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    memory[SYSTEM_V] = shmat(id, NULL, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) shmctl(id, IPC_RMID, NULL);
}

static void of_posix(int kind, int pid) {
    snprintf(names[kind], sizeof names[kind], "/shared_by_ranks.%d.%d", pid, kind);
    int fd = rank ? -1 : shm_open(names[kind], O_RDWR | O_CREAT, 0600);
    if (rank == 0 && ftruncate(fd, BYTES)) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank) fd = shm_open(names[kind], O_RDWR, 0600);
    memory[kind] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && kind != NAMED) shm_unlink(names[kind]);
    if (rank == 0 && kind == OPEN) descriptor = fd;
    else close(fd);
}

static int step(long n, int first, int last) {
    int wrong = 0;
    long mine = n * RANKS + rank;
    for (int kind = first; kind <= last; kind++) memory[kind][rank] = mine;
    if (descriptor >= 0) wrong += pwrite(descriptor, &mine, sizeof mine, BYTES - sizeof mine) != sizeof mine;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int kind = first; kind <= last; kind++)
        for (int r = 0; r < size; r++) wrong += memory[kind][r] != n * RANKS + r;
    if (memory[OPEN]) wrong += memory[OPEN][BYTES / sizeof mine - 1] != n * RANKS;
    MPI_Barrier(MPI_COMM_WORLD);
    return wrong;
}

int main(int argc, char **argv) {
    int wrong = 0, go = argc > 1, pid = getpid();
    const int first = argc > 2 ? atoi(argv[2]) : 0, last = argc > 2 ? first : KINDS - 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Bcast(&pid, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int kind = first; kind <= last; kind++)
        if (kind == SYSTEM_V) of_system_v();
        else of_posix(kind, pid);
    if (rank == 0) printf("ready\n"), fflush(stdout);
    for (long n = 1; go; n++) {
        wrong += step(n, first, last);
        go = rank || access(argv[1], F_OK);
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
        usleep(10000);
    }
    MPI_Reduce(rank ? &wrong : MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0 && memory[NAMED]) shm_unlink(names[NAMED]);
    if (rank == 0) printf("%s\n", wrong ? "wrong" : "ok");
    MPI_Finalize();
    return wrong != 0;
}
