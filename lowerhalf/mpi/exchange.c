/* exchange.c - collective exchange between the lower halves of all ranks, over the real MPI.
 *
 * Half: lower; on the thread that may call MPI, at the end of a drain or before the program's memory is used.
 *
 * Invariants
 *  1. Only collectives, on a communicator on which nothing else is open: neither receives of the program nor its
 *     collectives match them. (At a checkpoint with --protocol 2pc some ranks may be in a barrier that others have not
 *     called.)
 *  2. No rank leaves an exchange alone, because the others would wait for it. If there is no memory, the job ends.
 *  3. Without a coordinator ranks may go on separately: every wait ends when MPY_LOWER->abandoned is set. The
 *     collective that was left still refers to its buffers, so they are not freed.
 */
#include "load.h"

#include "base/rank.h"
#include <limits.h>
#include <manapy/boundary.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "functions.h"

#define REAL(NAME) ((mpy_fn_##NAME##_t)MPY_LOWER->mpi[MPY_FN_##NAME])

enum { YIELDS = 1000 };

static int comm;

static void *room(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) MPY_LOWER->svc->die("no memory for an exchange with the other ranks", 1);
    return p;
}

static int await(int rc, int *request) {
    for (int done = 0, round = 0; !rc && !done; round++) {
        rc = REAL(Test)(request, &done, MPI_STATUS_IGNORE);
        if (done || rc) break;
        if (MPY_LOWER->abandoned) return -1;
        if (round < YIELDS && !MPY_LOWER->heavy_yield) sched_yield();
        else nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return rc ? -1 : 0;
}

static int sum(uint64_t *values, int count) {
    int request;
    return await(REAL(Iallreduce)(MPI_IN_PLACE, values, count, MPI_UINT64_T, MPI_SUM, comm, &request),
                 &request);
}

/* Where each part begins, from lengths in at[1 ...]. False: MPI can't count so many bytes. */
static bool add_up(size_t *at, int *counts, int *starts) {
    at[0] = 0;
    for (int r = 0; r < MPY_LOWER->size; r++) {
        counts[r] = (int)at[r + 1];
        starts[r] = (int)at[r];
        if (at[r + 1] > INT_MAX || (at[r + 1] += at[r]) > INT_MAX) return false;
    }
    return true;
}

static int all(const void *mine, size_t bytes, uint8_t **out, size_t *at) {
    const size_t size = (size_t)MPY_LOWER->size;
    int request, *counts = room(2 * size * sizeof *counts), *starts = counts + size;
    size_t *own = room(sizeof *own);
    *own = bytes;
    if (await(REAL(Iallgather)(own, sizeof *own, MPI_BYTE, at + 1, sizeof *at, MPI_BYTE, comm, &request),
              &request) ||
        !add_up(at, counts, starts) || !(*out = room(at[size] + 1)) ||
        await(REAL(Iallgatherv)(mine, (int)bytes, MPI_BYTE, *out, counts, starts, MPI_BYTE, comm, &request),
              &request))
        return -1;
    free(own);
    free(counts);
    return 0;
}

static int each(const uint8_t *to, const size_t *to_at, uint8_t **from, size_t *from_at) {
    const size_t size = (size_t)MPY_LOWER->size;
    int request, *out_counts = room(4 * size * sizeof *out_counts), *out_starts = out_counts + size,
                 *in_counts = out_starts + size, *in_starts = in_counts + size;
    size_t *lengths = room((size + 1) * sizeof *lengths);
    for (size_t r = 0; r < size; r++) lengths[r + 1] = to_at[r + 1] - to_at[r];
    if (await(REAL(Ialltoall)(lengths + 1, sizeof *lengths, MPI_BYTE, from_at + 1, sizeof *from_at, MPI_BYTE,
                              comm, &request),
              &request) ||
        !add_up(lengths, out_counts, out_starts) || !add_up(from_at, in_counts, in_starts) ||
        !(*from = room(from_at[size] + 1)) ||
        await(REAL(Ialltoallv)(to, out_counts, out_starts, MPI_BYTE, *from, in_counts, in_starts, MPI_BYTE,
                               comm, &request),
              &request))
        return -1;
    free(lengths);
    free(out_counts);
    return 0;
}

const mpy_exchange_t *mpy_mpi_exchange(int real_comm) {
    static mpy_exchange_t exchange = {.sum = sum, .all = all, .each = each};
    comm = real_comm;
    exchange.rank = MPY_LOWER->rank;
    exchange.size = MPY_LOWER->size;
    return &exchange;
}
