/* no_memory.c - calls whose copies of long messages don't fit into the address space; two ranks. argv[1]: a file to
 * wait for; "again" is another. */
#include "../mpi_states.h"

#include <sys/resource.h>

enum { MB = 1 << 20, LENGTH = 256 * MB, ROOM = 64 * MB };

static char *data, *buffer, *more;

static void sum(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)in, (void)inout, (void)n, (void)type;
}

/* Limit the address space to so many bytes more than now; 0: no limit. */
static void limit(size_t more) {
    struct rlimit l;
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f != NULL && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    getrlimit(RLIMIT_AS, &l);
    l.rlim_cur = more == 0 ? l.rlim_max : pages * 4096 + more;
    CHECK(setrlimit(RLIMIT_AS, &l) == 0);
}

static void refused(int rc) { CHECK(class_of(rc) == MPI_ERR_NO_MEM); }

static void calls(void) {
    int other = 1 - rank, token = rank, got = -1;
    MPI_Request r;
    MPI_Op op;
    MPI_Op_create(sum, 1, &op);
    MPI_Buffer_attach(buffer, LENGTH + MPI_BSEND_OVERHEAD);
    limit(ROOM);
    refused(MPI_Sendrecv_replace(data, LENGTH, MPI_BYTE, other, 1, other, 1, lenient, MPI_STATUS_IGNORE));
    refused(MPI_Isendrecv_replace(data, LENGTH, MPI_BYTE, other, 1, other, 1, lenient, &r));
    refused(MPI_Bsend(data, LENGTH - MB, MPI_BYTE, other, 1, lenient));
    refused(MPI_Iallreduce(data, more, LENGTH, MPI_BYTE, op, lenient, &r));
    refused(MPI_Ireduce_scatter_block(data, more, LENGTH / 2, MPI_BYTE, op, lenient, &r));
    MPI_Psend_init(data, 1, LENGTH, MPI_BYTE, other, 1, lenient, MPI_INFO_NULL, &r);
    MPI_Start(&r);
    refused(MPI_Pready(0, r));
    MPI_Sendrecv(&token, 1, MPI_INT, other, 2, &got, 1, MPI_INT, other, 2, lenient, MPI_STATUS_IGNORE);
    CHECK(got == other);
    limit(0);
    void *address;
    int length;
    MPI_Buffer_detach(&address, &length);
    MPI_Iallreduce(data, more, LENGTH / 16, MPI_BYTE, op, lenient, &r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    MPI_Op_free(&op);
}

/* A checkpoint must receive the messages in progress. */
static void under_way(const char *go) {
    MPI_Request r;
    if (rank == 0) {
        memset(data, 7, LENGTH);
        MPI_Isend(data, LENGTH, MPI_BYTE, 1, 3, lenient, &r);
    } else {
        limit(ROOM);
    }
    puts("limited");
    fflush(stdout);
    while (access(go, F_OK)) {
        int flag;
        MPI_Iprobe(MPI_ANY_SOURCE, 4, lenient, &flag, MPI_STATUS_IGNORE);
        pause_ms(10);
    }
    if (rank == 1) limit(0);
    puts("free");
    fflush(stdout);
    while (access("again", F_OK)) pause_ms(10);
    if (rank == 0) MPI_Wait(&r, MPI_STATUS_IGNORE);
    else MPI_Recv(data, LENGTH, MPI_BYTE, 0, 3, lenient, MPI_STATUS_IGNORE);
    CHECK(data[0] == 7 && data[LENGTH - 1] == 7);
}

int main(int argc, char **argv) {
    (void)argc;
    MPI_Init(NULL, NULL);
    find_rank();
    lenient_set_up();
    data = calloc(LENGTH, 1), buffer = calloc(LENGTH + MPI_BSEND_OVERHEAD, 1), more = calloc(LENGTH, 1);
    calls();
    under_way(argv[1]);
    puts(failures ? "failed" : "ok");
    MPI_Finalize();
    return failures != 0;
}
