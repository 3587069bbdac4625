/* Generalized requests: open, completed but not collected, freed, in arrays with others, over checkpoints and restarts.
 * See checkpointed.h. */
#include "../../mpi_states.h"

#include <pthread.h>

typedef struct { int queries, frees, cancels, completed_at_cancel, result, free_result; } counts_t;

static int on_query(void *extra, MPI_Status *status) {
    counts_t *c = extra;
    c->queries++;
    MPI_Status_set_elements(status, MPI_INT, 3);
    MPI_Status_set_cancelled(status, c->cancels > 0);
    status->MPI_SOURCE = 41;
    status->MPI_TAG = 42;
    return c->result;
}

static int on_free(void *extra) {
    counts_t *c = extra;
    c->frees++;
    return c->free_result;
}

static int on_cancel(void *extra, int completed) {
    counts_t *c = extra;
    c->cancels++;
    c->completed_at_cancel = completed;
    return MPI_SUCCESS;
}

static void check_status(MPI_Status *status, int expected_cancelled) {
    int n, cancelled;
    MPI_Get_count(status, MPI_INT, &n);
    MPI_Test_cancelled(status, &cancelled);
    CHECK(status->MPI_SOURCE == 41 && status->MPI_TAG == 42 && n == 3 && cancelled == expected_cancelled);
}

/* ---- open, and completed, at the checkpoint ---- */

static MPI_Request open_one, completed, cancelled;
static counts_t open_counts, completed_counts, cancelled_counts;

static void states_set_up(void) {
    MPI_Grequest_start(on_query, on_free, on_cancel, &open_counts, &open_one);
    MPI_Grequest_start(on_query, on_free, on_cancel, &completed_counts, &completed);
    MPI_Grequest_start(on_query, on_free, on_cancel, &cancelled_counts, &cancelled);
    CHECK(MPI_Grequest_complete(completed) == MPI_SUCCESS);
    CHECK(MPI_Cancel(&cancelled) == MPI_SUCCESS && cancelled_counts.cancels == 1 &&
          cancelled_counts.completed_at_cancel == 0);
}

static void states_check(void) {
    MPI_Status status;
    int flag = 1;
    MPI_Test(&open_one, &flag, &status);
    CHECK(!flag && open_one != MPI_REQUEST_NULL && open_counts.queries == 0);
    MPI_Grequest_complete(open_one);
    MPI_Request_get_status(open_one, &flag, &status);
    CHECK(flag && open_counts.queries == 1 && open_counts.frees == 0);
    check_status(&status, 0);
    MPI_Wait(&open_one, &status);
    CHECK(open_one == MPI_REQUEST_NULL && open_counts.queries == 2 && open_counts.frees == 1);
    check_status(&status, 0);
    MPI_Cancel(&completed);
    CHECK(completed_counts.cancels == 1 && completed_counts.completed_at_cancel);
    MPI_Wait(&completed, MPI_STATUS_IGNORE);
    CHECK(completed_counts.queries == 1 && completed_counts.frees == 1);
    MPI_Test(&cancelled, &flag, &status);
    CHECK(!flag); /* it takes more than the callback */
    MPI_Grequest_complete(cancelled);
    MPI_Wait(&cancelled, &status);
    check_status(&status, 1);
}

/* ---- freed before it's completed, and after ---- */

static MPI_Request copy_of_freed;
static counts_t freed_counts;

static void freed_set_up(void) {
    MPI_Request r;
    MPI_Grequest_start(on_query, on_free, on_cancel, &freed_counts, &r);
    copy_of_freed = r;
    MPI_Request_free(&r);
    CHECK(r == MPI_REQUEST_NULL && freed_counts.frees == 0);
}

static void freed_check(void) {
    counts_t counts = {0};
    MPI_Request r;
    CHECK(MPI_Grequest_complete(copy_of_freed) == MPI_SUCCESS && freed_counts.frees == 1 && freed_counts.queries == 0);
    MPI_Grequest_start(on_query, on_free, on_cancel, &counts, &r);
    MPI_Grequest_complete(r);
    MPI_Request_free(&r);
    CHECK(r == MPI_REQUEST_NULL && counts.frees == 1 && counts.queries == 0);
}

/* ---- among others ---- */

static MPI_Request mixed[4];
static counts_t mixed_counts[2];
static int in = -1, out;

static void mixed_set_up(void) {
    out = rank;
    MPI_Irecv(&in, 1, MPI_INT, (rank + 1) % size, 9, MPI_COMM_WORLD, &mixed[0]);
    MPI_Grequest_start(on_query, on_free, on_cancel, &mixed_counts[0], &mixed[1]);
    MPI_Ibarrier(MPI_COMM_WORLD, &mixed[2]);
    MPI_Grequest_start(on_query, on_free, on_cancel, &mixed_counts[1], &mixed[3]);
}

static void mixed_check(void) {
    MPI_Status statuses[4];
    int flag = 1, index, n, indices[4];
    MPI_Testall(4, mixed, &flag, statuses);
    CHECK(!flag);
    MPI_Grequest_complete(mixed[3]);
    MPI_Waitany(2, mixed + 2, &index, &statuses[0]); /* the barrier or the request */
    CHECK(mixed[2 + index] == MPI_REQUEST_NULL);
    MPI_Waitany(2, mixed + 2, &index, &statuses[1]);
    CHECK(mixed[2] == MPI_REQUEST_NULL && mixed[3] == MPI_REQUEST_NULL && mixed_counts[1].queries == 1 &&
          mixed_counts[1].frees == 1);
    check_status(&statuses[index == 1], 0);
    MPI_Testany(4, mixed, &index, &flag, &statuses[0]);
    CHECK(!flag);
    MPI_Grequest_complete(mixed[1]);
    MPI_Testsome(4, mixed, &n, indices, statuses);
    CHECK(n == 1 && indices[0] == 1 && mixed[1] == MPI_REQUEST_NULL && mixed_counts[0].frees == 1);
    check_status(&statuses[0], 0);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Send(&out, 1, MPI_INT, (rank + size - 1) % size, 9, MPI_COMM_WORLD);
    MPI_Waitall(4, mixed, statuses);
    CHECK(in == (rank + 1) % size && statuses[0].MPI_SOURCE == in && statuses[1].MPI_SOURCE == MPI_ANY_SOURCE);
    MPI_Request both[2];
    counts_t counts[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++)
        MPI_Grequest_start(on_query, on_free, on_cancel, &counts[i], &both[i]), MPI_Grequest_complete(both[i]);
    MPI_Waitall(2, both, statuses);
    for (int i = 0; i < 2; i++) {
        check_status(&statuses[i], 0);
        CHECK(counts[i].queries == 1 && counts[i].frees == 1 && both[i] == MPI_REQUEST_NULL);
    }
}

/* ---- completed by another thread while one waits ---- */

static MPI_Request awaited;
static counts_t awaited_counts;
static volatile int waited;
static pthread_t waiter;

static void *wait_for_it(void *unused) {
    (void)unused;
    MPI_Wait(&awaited, MPI_STATUS_IGNORE);
    waited = 1;
    return NULL;
}

static void threads_set_up(void) {
    MPI_Grequest_start(on_query, on_free, on_cancel, &awaited_counts, &awaited);
    pthread_create(&waiter, NULL, wait_for_it, NULL);
    pause_ms(20);
}

static void threads_check(void) {
    CHECK(!waited);
    MPI_Grequest_complete(awaited);
    pthread_join(waiter, NULL);
    CHECK(waited && awaited == MPI_REQUEST_NULL && awaited_counts.queries == 1 && awaited_counts.frees == 1);
}

/* ---- errors ---- */

static void errors_set_up(void) {}

/* Waits for two requests of which the library completes the first one with an error. */
static void wait_for_truncated(void) {
    MPI_Request both[2];
    MPI_Status statuses[2];
    int class;
    int two[2] = {1, 2}, first, second = -1;
    MPI_Irecv(&first, 1, MPI_INT, 0, 1, MPI_COMM_SELF, &both[0]);
    MPI_Irecv(&second, 1, MPI_INT, 0, 2, MPI_COMM_SELF, &both[1]);
    MPI_Send(two, 2, MPI_INT, 0, 1, MPI_COMM_SELF);
    MPI_Send(two, 1, MPI_INT, 0, 2, MPI_COMM_SELF);
    CHECK(MPI_Waitall(2, both, statuses) == MPI_ERR_IN_STATUS);
    MPI_Error_class(statuses[0].MPI_ERROR, &class);
    CHECK(class == MPI_ERR_TRUNCATE && statuses[1].MPI_ERROR == MPI_ERR_PENDING && both[0] == MPI_REQUEST_NULL &&
          both[1] != MPI_REQUEST_NULL);
    CHECK(MPI_Wait(&both[1], statuses) == MPI_SUCCESS && second == 1 && statuses[0].MPI_TAG == 2);
}

static void errors_check(void) {
    counts_t counts = {.result = MPI_ERR_ARG};
    MPI_Request r;
    MPI_Status statuses[2];
    int class;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Grequest_start(on_query, on_free, on_cancel, &counts, &r);
    MPI_Grequest_complete(r);
    MPI_Error_class(MPI_Wait(&r, MPI_STATUS_IGNORE), &class);
    CHECK(class == MPI_ERR_ARG && counts.frees == 1);
    MPI_Request both[2];
    for (int i = 0; i < 2; i++)
        MPI_Grequest_start(on_query, on_free, on_cancel, &counts, &both[i]), MPI_Grequest_complete(both[i]);
    counts.frees = 0;
    /* MPICH goes no further than to the first failure */
    CHECK(MPI_Waitall(2, both, statuses) == MPI_ERR_IN_STATUS && counts.frees == 1);
    CHECK(statuses[0].MPI_ERROR != MPI_SUCCESS && both[0] == MPI_REQUEST_NULL &&
          statuses[1].MPI_ERROR == MPI_ERR_PENDING && both[1] != MPI_REQUEST_NULL);
    counts.result = MPI_SUCCESS;
    CHECK(MPI_Wait(&both[1], statuses) == MPI_SUCCESS && counts.frees == 2);
    if (!is_open_mpi()) wait_for_truncated(); /* which reports nothing of messages to itself */
    counts.free_result = MPI_ERR_TAG;
    MPI_Grequest_start(on_query, on_free, on_cancel, &counts, &r);
    MPI_Grequest_complete(r);
    MPI_Error_class(MPI_Request_free(&r), &class);
    CHECK(class == MPI_ERR_TAG);
    MPI_Error_class(MPI_Grequest_complete(MPI_REQUEST_NULL), &class);
    CHECK(class == MPI_ERR_REQUEST);
    MPI_Ibarrier(MPI_COMM_SELF, &r);
    MPI_Error_class(MPI_Grequest_complete(r), &class);
    CHECK(class == MPI_ERR_REQUEST);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(states), STATE(freed), STATE(mixed), STATE(threads), STATE(errors)};
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    find_rank();
    int result = run_states(argc, argv, states, sizeof states / sizeof *states);
    MPI_Finalize();
    return result;
}
