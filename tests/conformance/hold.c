/* hold.c - linked to each program of the suite: lets it wait after its start of MPI until a file is there.
 *
 * Most programs need some milliseconds, less than the coordinator of a job needs to start. With MANAPY_TEST_GO they wait for that file
 * to appear, so that a checkpoint can fall into them. The functions are weak: a program that defines them itself keeps its own.
 */
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

static int held(int code)
{
    const char *go = getenv("MANAPY_TEST_GO");

    while (go && access(go, F_OK) != 0) usleep(500);
    return code;
}

__attribute__((weak)) int MPI_Init(int *argc, char ***argv)
{
    return held(PMPI_Init(argc, argv));
}

__attribute__((weak)) int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    return held(PMPI_Init_thread(argc, argv, required, provided));
}

__attribute__((weak)) int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session *session)
{
    return held(PMPI_Session_init(info, handler, session));
}
