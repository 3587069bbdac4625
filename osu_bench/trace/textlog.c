/* textlog.c - a library to preload. It writes one formatted line for each MPI call of pipeline.py to $TEXTLOG.PID, to
 * be compared with manapy's records.
 *
 * It follows the idea of NCCL's log and of the logs of MPI libraries and profilers. It is linked with the MPI library,
 * so PMPI's names are found wherever the program loads that library from. mpi4py calls the functions with MPI_Count
 * (_c) where they exist.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static FILE *out;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void line(const char *call, long long count, int peer, int tag, double begin) {
    if (!out) {
        char path[4096];
        const char *prefix = getenv("TEXTLOG");
        snprintf(path, sizeof path, "%s.%d", prefix ? prefix : "textlog", (int)getpid());
        if (!(out = fopen(path, "w"))) {
            perror(path);
            exit(1);
        }
    }
    fprintf(out, "%.6f %s count %lld peer %d tag %d took %.6f\n", begin, call, count, peer, tag, now() - begin);
}

#define CALLS(suffix, Count)                                                                                           \
    int MPI_Recv##suffix(void *data, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,               \
                         MPI_Status *status) {                                                                         \
        double begin = now();                                                                                          \
        int code = PMPI_Recv##suffix(data, count, type, source, tag, comm, status);                                    \
        line("MPI_Recv" #suffix, count, source, tag, begin);                                                           \
        return code;                                                                                                   \
    }                                                                                                                  \
    int MPI_Issend##suffix(const void *data, Count count, MPI_Datatype type, int target, int tag, MPI_Comm comm,       \
                           MPI_Request *request) {                                                                     \
        double begin = now();                                                                                          \
        int code = PMPI_Issend##suffix(data, count, type, target, tag, comm, request);                                 \
        line("MPI_Issend" #suffix, count, target, tag, begin);                                                         \
        return code;                                                                                                   \
    }                                                                                                                  \
    int MPI_Allreduce##suffix(const void *in, void *result, Count count, MPI_Datatype type, MPI_Op op,                 \
                              MPI_Comm comm) {                                                                         \
        double begin = now();                                                                                          \
        int code = PMPI_Allreduce##suffix(in, result, count, type, op, comm);                                          \
        line("MPI_Allreduce" #suffix, count, -1, -1, begin);                                                           \
        return code;                                                                                                   \
    }

CALLS(, int)
#if MPI_VERSION >= 4
CALLS(_c, MPI_Count)
#endif

int MPI_Wait(MPI_Request *request, MPI_Status *status) {
    double begin = now();
    int code = PMPI_Wait(request, status);
    line("MPI_Wait", 0, -1, -1, begin);
    return code;
}
