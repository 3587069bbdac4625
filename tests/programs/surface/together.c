/* Several programs of this folder in one process: all set up their states, then all check them. A test then needs one
 * job for all. Programs are compiled with -DTOGETHER, which leaves MPI_Init, the wait and MPI_Finalize to this file,
 * and with -Dmain=NAME. PROGRAMS(P) is P(NAME) for each, from the command line. */
#include "../checkpointed.h"

#include <mpi.h>

typedef struct { const char *name; int (*run)(int, char **); } program_t;

#define DECLARED(name) int name(int, char **);
PROGRAMS(DECLARED)
#define ENTRY(name) {#name, name},
static const program_t programs[] = {PROGRAMS(ENTRY)};

int checking;

static int run_all(char **argv) {
    int failed = 0;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        printf("%s %s\n", checking ? "check" : "set up", programs[i].name); /* the last one, if it does not return */
        fflush(stdout);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* of errors without a communicator, in some MPIs */
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        if (programs[i].run(1, argv)) printf("FAILED: %s\n", programs[i].name), failed = 1;
    }
    return failed;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int failed = run_all(argv);
    wait_for_go();
    checking = 1;
    failed |= run_all(argv);
    MPI_Finalize();
    return say_result(failed);
}
