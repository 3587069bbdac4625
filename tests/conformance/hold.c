/* hold.c - linked to each program of the suite: lets it wait after its start of MPI until a file is there.
 *
 * Most programs need some milliseconds, less than the coordinator of a job needs to start. With MANAPY_TEST_GO they
 * wait for that file to appear, so that a checkpoint can fall into them. The functions are weak: a program that defines
 * them itself keeps its own. The PMPI names are there for mpi_f08, which calls them where the other languages call
 * MPI_Init. In Fortran for Open MPI, no function of C may be called: there the names are those of Fortran.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

static int held(int code) {
    const char *go = getenv("MANAPY_TEST_GO");

    while (go && access(go, F_OK) != 0) usleep(500);
    return code;
}

#define HOLD(name, parameters, arguments)                                                                              \
    __attribute__((weak)) int name parameters {                                                                        \
        int(*next) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                            \
                                                                                                                       \
        return held(next arguments);                                                                                   \
    }

HOLD(MPI_Init, (int *argc, char ***argv), (argc, argv))
HOLD(PMPI_Init, (int *argc, char ***argv), (argc, argv))
HOLD(MPI_Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided))
HOLD(PMPI_Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided))
#if MPI_VERSION >= 4
HOLD(MPI_Session_init, (MPI_Info info, MPI_Errhandler handler, MPI_Session *session), (info, handler, session))
HOLD(PMPI_Session_init, (MPI_Info info, MPI_Errhandler handler, MPI_Session *session), (info, handler, session))
#endif

#define HOLD_FORTRAN(name, parameters, arguments)                                                                      \
    __attribute__((weak)) void name parameters {                                                                       \
        void(*next) parameters = (void(*) parameters)dlsym(RTLD_NEXT, #name);                                          \
                                                                                                                       \
        next arguments;                                                                                                \
        held(0);                                                                                                       \
    }

#ifdef OPEN_MPI
HOLD_FORTRAN(mpi_init_, (int *error), (error))
HOLD_FORTRAN(ompi_init_f, (int *error), (error))
HOLD_FORTRAN(mpi_init_thread_, (int *required, int *provided, int *error), (required, provided, error))
HOLD_FORTRAN(ompi_init_thread_f, (int *required, int *provided, int *error), (required, provided, error))
#endif
