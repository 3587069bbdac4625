/* Frame of programs surface_*.c between MPI_Init and MPI_Finalize; see checkpointed.h. */
#ifndef MPI_STATES_H
#define MPI_STATES_H

#include "checkpointed.h"

#include <mpi.h>

static int rank, size; /* in the world */

/* On this communicator, on the world, and where no communicator is known, errors are returned as codes. */
static MPI_Comm lenient;

static inline void lenient_set_up(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &lenient);
    MPI_Comm_set_errhandler(lenient, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
}

static inline int class_of(int code) {
    int class = -1;
    MPI_Error_class(code, &class);
    return class;
}

/* Open MPI examines fewer arguments than MPICH, and some errors have another class there. */
static inline int is_open_mpi(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;
    MPI_Get_library_version(text, &n);
    return !strncmp(text, "Open MPI", 8);
}
#define CHECK_IN_MPICH(condition)             \
    do {                                      \
        if (!is_open_mpi()) CHECK(condition); \
    } while (0)

static inline void find_rank(void) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

/* set_up: before the states, or NULL */
#ifdef TOGETHER /* one program of several: surface/together.c calls it to set up, and again to check */
extern int checking;
static MPI_Comm own_world; /* so that messages and error handlers of programs do not mix */

static inline int run_mpi_states(int argc, char **argv, void (*set_up)(void), const state_t *states, size_t n) {
    if (!checking) {
        MPI_Comm_dup(MPI_COMM_WORLD, &own_world);
        MPI_Comm_set_errhandler(own_world, MPI_ERRORS_ARE_FATAL);
        find_rank();
        if (set_up) set_up();
    }
    each_state(argc, argv, states, n, checking);
    return failures;
}
#undef MPI_COMM_WORLD
#define MPI_COMM_WORLD own_world
#else
static inline int run_mpi_states(int argc, char **argv, void (*set_up)(void), const state_t *states, size_t n) {
    MPI_Init(&argc, &argv);
    find_rank();
    if (set_up) set_up();
    int result = run_states(argc, argv, states, n);
    MPI_Finalize();
    return result;
}
#endif

#endif
