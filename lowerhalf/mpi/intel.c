/* intel.c - persistent gathers of Intel MPI; advice against its library of the standard ABI.
 *
 * In Intel MPI 2021.18 requests of MPI_Gather_init give wrong results, and requests of MPI_Allgather_init do so from
 * their second start on, in any program. Those of MPI_Gatherv_init and MPI_Allgatherv_init do not. The wrappers use the
 * former for persistent reductions with the program's operations. So the table gets functions that call the latter.
 * That is so in both of its libraries, libmpi.so.12 and libmpi_abi.so.1.
 *
 * Half: lower; these functions run on the lower TLS.
 *
 * Invariant
 *  1. Arrays of counts and displacements are never freed: requests read them. All requests with the same ones share
 *     them.
 */
#include "parts.h"
#include <manapy/boundary.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "functions.h"

#define REAL(name) ((mpy_fn_##name##_t)MPY_LOWER->mpi[MPY_FN_##name])

typedef struct blocks { /* of `count` elements, one behind the other */
    struct blocks *next;
    int n;
    MPI_Count count;
    MPI_Count *counts;
    MPI_Aint *at;
} blocks_t;

static const blocks_t *blocks_of(int n, MPI_Count count) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static blocks_t *first;
    pthread_mutex_lock(&lock);
    blocks_t *b = first;
    while (b != NULL && !(b->n == n && b->count == count)) b = b->next;
    if (b == NULL && (b = calloc(1, sizeof *b + (size_t)n * (sizeof *b->counts + sizeof *b->at))) != NULL) {
        *b = (blocks_t){first, n, count, (MPI_Count *)(b + 1), (MPI_Aint *)((MPI_Count *)(b + 1) + n)};
        for (int i = 0; i < n; i++) b->counts[i] = count, b->at[i] = i * count;
        first = b;
    }
    pthread_mutex_unlock(&lock);
    return b;
}

/* The number of processes that contribute; 0 if comm is invalid. */
static int contributors(MPI_Comm comm) {
    int inter = 0, n = 0;
    if (REAL(Comm_test_inter)(comm, &inter) != MPI_SUCCESS) return 0;
    return (inter ? REAL(Comm_remote_size) : REAL(Comm_size))(comm, &n) == MPI_SUCCESS ? n : 0;
}

static int allgather_init_c(const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf,
                            MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info,
                            MPI_Request *request) {
    const blocks_t *b = blocks_of(contributors(comm), recvcount);
    if (b == NULL) return MPI_ERR_NO_MEM;
    return REAL(Allgatherv_init_c)(sendbuf, sendcount, sendtype, recvbuf, b->counts, b->at, recvtype, comm, info,
                                   request);
}

static int gather_init_c(const void *sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void *recvbuf,
                         MPI_Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info,
                         MPI_Request *request) {
    const blocks_t *b = blocks_of(contributors(comm), recvcount);
    if (b == NULL) return MPI_ERR_NO_MEM;
    return REAL(Gatherv_init_c)(sendbuf, sendcount, sendtype, recvbuf, b->counts, b->at, recvtype, root, comm, info,
                                request);
}

static int allgather_init(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                          MPI_Datatype recvtype, MPI_Comm comm, MPI_Info info, MPI_Request *request) {
    return allgather_init_c(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info, request);
}

static int gather_init(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf, int recvcount,
                       MPI_Datatype recvtype, int root, MPI_Comm comm, MPI_Info info, MPI_Request *request) {
    return gather_init_c(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, info, request);
}

void mpy_mpi_mend_intels(void) {
    MPY_LOWER->mpi[MPY_FN_Allgather_init] = (void *)allgather_init;
    MPY_LOWER->mpi[MPY_FN_Allgather_init_c] = (void *)allgather_init_c;
    MPY_LOWER->mpi[MPY_FN_Gather_init] = (void *)gather_init;
    MPY_LOWER->mpi[MPY_FN_Gather_init_c] = (void *)gather_init_c;
}

/* LIMITATIONS.md has the faults. */
void mpy_mpi_advise_intels_other(const char *path) {
    if (MPY_LOWER->rank != 0) return;
    char line[PATH_MAX + 256];
    snprintf(line, sizeof line,
             "%s, Intel MPI's library of the standard ABI, crashes in some calls (MPI_File_get_group, "
             "MPI_T_pvar_start): use its libmpi.so.12 (--mpi PATH)",
             path);
    MPY_LOWER->svc->say(line);
}
