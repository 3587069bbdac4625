/* arrays.c - arrays of arguments: handles, statuses, numbers. See translate.h.
 *
 * Open MPI keeps a pointer to the types of a nonblocking MPI_Ialltoallw until it has completed. So what is made for a
 * call that returns a request lives as long as the request.
 */
#include "back_interface.h"

#include <manapy/boundary.h>

void *mpy_arrays_take(mpy_arrays_t *a, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->lasting && bytes <= sizeof a->local - a->used) {
        void *p = (char *)a->local + a->used;
        a->used += bytes;
        return p;
    }
    mpy_block_t *block = malloc(bytes + 16);
    if (block == NULL) MPY_LOWER->svc->die("out of memory", 1);
    block->next = a->blocks;
    a->blocks = block;
    return (char *)block + 16;
}

void **mpy_handles_in(mpy_arrays_t *a, mpy_kind_t kind, const int *handles, long n) {
    if (handles == NULL || n < 0) return NULL;
    void **theirs = mpy_arrays_take(a, (size_t)n * sizeof *theirs);
    for (long i = 0; i < n; i++) theirs[i] = mpy_in(kind, handles[i]);
    return theirs;
}

void mpy_handles_back(mpy_kind_t kind, int *handles, void **theirs, long n) {
    for (long i = 0; handles != NULL && i < n; i++) mpy_inout(kind, &handles[i], theirs[i]);
}

mpy_status_t *mpy_statuses_for(mpy_arrays_t *a, const MPI_Status *statuses, long n) {
    if (statuses == MPI_STATUSES_IGNORE || statuses == NULL || n < 0) return NULL;
    mpy_status_t *theirs = mpy_arrays_take(a, (size_t)n * sizeof *theirs);
    for (long i = 0; i < n; i++) theirs[i] = (mpy_status_t)MPY_STATUS_EMPTY;
    return theirs;
}

void mpy_statuses_out(MPI_Status *to, const mpy_status_t *from, int n, int code) {
    for (int i = 0; from != NULL && i < n; i++) {
        mpy_status_out(&to[i], &from[i]);
        if (mpy_failed_as(code, BACK_ERR_IN_STATUS)) to[i].MPI_ERROR = mpy_code_out(from[i].error);
    }
}

static int *copied(mpy_arrays_t *a, const int *values, long n, int (*in)(int)) {
    if (values == NULL || n < 0) return NULL;
    int *theirs = mpy_arrays_take(a, (size_t)n * sizeof *theirs);
    for (long i = 0; i < n; i++) theirs[i] = in(values[i]);
    return theirs;
}
static int distribution_in(int value) { return mpy_number_in(MPY_GROUP_DISTRIBUTE, value); }
static int argument_in(int value) {
    return value == MPI_DISTRIBUTE_DFLT_DARG ? BACK_DISTRIBUTE_DFLT_DARG : value;
}

int *mpy_ranks_in(mpy_arrays_t *a, const int *ranks, long n) { return copied(a, ranks, n, mpy_rank_in); }
int *mpy_distributions_in(mpy_arrays_t *a, const int *distributions, long n) {
    return copied(a, distributions, n, distribution_in);
}
int *mpy_distribution_arguments_in(mpy_arrays_t *a, const int *arguments, long n) {
    return copied(a, arguments, n, argument_in);
}

int *mpy_ints_of_counts(mpy_arrays_t *a, const MPI_Count *counts, long n, bool *fits) {
    if (counts == NULL || n < 0) return NULL;
    int *ints = mpy_arrays_take(a, (size_t)n * sizeof *ints);
    for (long i = 0; i < n; i++) {
        *fits &= mpy_fits(counts[i]);
        ints[i] = (int)counts[i];
    }
    return ints;
}

int *mpy_ints_of_aints(mpy_arrays_t *a, const MPI_Aint *counts, long n, bool *fits) {
    _Static_assert(sizeof(MPI_Aint) == sizeof(MPI_Count), "both have 64 bits");
    return mpy_ints_of_counts(a, (const MPI_Count *)counts, n, fits);
}

MPI_Aint *mpy_aints_of_counts(mpy_arrays_t *a, const MPI_Count *counts, long n, bool *fits) {
    (void)a, (void)n, (void)fits;
    return (MPI_Aint *)counts;
}

/* ---- lengths ---- */

static long peers(void *comm) {
    int inter = 0, n = 0;
    MPY_THEIRS(Comm_test_inter, comm, &inter);
    if (inter) MPY_THEIRS(Comm_remote_size, comm, &n);
    else MPY_THEIRS(Comm_size, comm, &n);
    return n;
}

static long neighbours(void *comm, bool destinations) {
    int topology = 0, n = 0, in = 0, out = 0, weighted = 0, rank = 0;
    MPY_THEIRS(Topo_test, comm, &topology);
    if (topology == BACK_CART) {
        MPY_THEIRS(Cartdim_get, comm, &n);
        return 2 * n;
    }
    if (topology == BACK_GRAPH) {
        MPY_THEIRS(Comm_rank, comm, &rank);
        MPY_THEIRS(Graph_neighbors_count, comm, rank, &n);
        return n;
    }
    if (topology == BACK_DIST_GRAPH) MPY_THEIRS(Dist_graph_neighbors_count, comm, &in, &out, &weighted);
    return destinations ? out : in;
}

long mpy_length(int comm, mpy_length_t which) {
    void *theirs = mpy_in(MPY_KIND_COMM, comm);
    int n = 0;
    if (theirs == mpy_null[MPY_KIND_COMM]) return 0;
    switch (which) {
    case MPY_OF_PEERS: return peers(theirs);
    case MPY_OF_LOCAL: MPY_THEIRS(Comm_size, theirs, &n); return n;
    case MPY_OF_SOURCES: return neighbours(theirs, false);
    case MPY_OF_DESTINATIONS: return neighbours(theirs, true);
    }
    return 0;
}

long mpy_length_at_root(int comm, int root) {
    void *theirs = mpy_in(MPY_KIND_COMM, comm);
    int rank = -1, inter = 0;
    if (theirs == mpy_null[MPY_KIND_COMM]) return 0;
    MPY_THEIRS(Comm_test_inter, theirs, &inter);
    if (inter) return root == MPI_ROOT ? peers(theirs) : 0;
    MPY_THEIRS(Comm_rank, theirs, &rank);
    return root == rank ? peers(theirs) : 0;
}
