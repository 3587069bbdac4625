/* Surface: functions of the program that call MPI, or jump out of the call that calls them: operations in nonblocking
 * and persistent reductions, generalized requests, attributes. (surface_errors.c has error handlers and blocking
 * reductions.) See checkpointed.h. */
#include "../../mpi_states.h"

#include <setjmp.h>

static jmp_buf jump;
static int jumps; /* number of jumps that are still to be made */

/* Calls that a function of the program may make: messages, a collective, a communicator and a datatype of its own. */
static void use_mpi(void) {
    int one = 1, got = 0, sum = 0, bytes;
    MPI_Comm own;
    MPI_Datatype pair;
    MPI_Comm_dup(MPI_COMM_SELF, &own);
    MPI_Sendrecv(&one, 1, MPI_INT, 0, 5, &got, 1, MPI_INT, 0, 5, own, MPI_STATUS_IGNORE);
    MPI_Allreduce(&got, &sum, 1, MPI_INT, MPI_SUM, own);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_size(pair, &bytes);
    CHECK(sum == 1 && bytes == 2 * (int)sizeof(int));
    MPI_Type_free(&pair);
    MPI_Comm_free(&own);
}

static void jump_if_wanted(void) {
    if (jumps > 0) jumps--, longjmp(jump, 1);
}

/* ---- operations: only local calls are allowed there (MPI-4 6.9.5) ---- */

static MPI_Op adding, jumping;
static MPI_Request iallreduce, ireduce, persistent, jumped[2];
static MPI_Comm own_world;
static int sums[3], jumped_sums[2];
static const int ones[] = {1, 1, 1};

static void add(void *in, void *inout, int *n, MPI_Datatype *type) {
    int bytes = 0;
    MPI_Type_size(*type, &bytes);
    CHECK(bytes == sizeof(int));
    jump_if_wanted();
    for (int i = 0; i < *n; i++) ((int *)inout)[i] += ((int *)in)[i];
}

static void operations_set_up(void) {
    MPI_Op_create(add, 1, &adding);
    MPI_Iallreduce(&ones[0], &sums[0], 1, MPI_INT, adding, MPI_COMM_WORLD, &iallreduce);
    MPI_Ireduce(&ones[1], &sums[1], 1, MPI_INT, adding, 1, MPI_COMM_WORLD, &ireduce);
    MPI_Allreduce_init(&ones[2], &sums[2], 1, MPI_INT, adding, MPI_COMM_WORLD, MPI_INFO_NULL, &persistent);
    MPI_Start(&persistent);
}

/* Jump out of the wait for a reduction. Without manapy MPICH then waits for ever, because its schedule is left in the
 * middle. */
static int is_native(void) { return getenv("MPI4PY_MPIABI") == NULL; }

static void jumps_set_up(void) {
    int sum = 0;
    if (is_native()) return;
    MPI_Comm_dup(MPI_COMM_WORLD, &own_world);
    MPI_Op_create(add, 1, &jumping);
    MPI_Iallreduce(&ones[0], &jumped_sums[0], 1, MPI_INT, jumping, own_world, &jumped[0]);
    MPI_Allreduce_init(&ones[1], &jumped_sums[1], 1, MPI_INT, jumping, own_world, MPI_INFO_NULL, &jumped[1]);
    MPI_Start(&jumped[1]);
    for (int i = 0; i < 2; i++) {
        jumps = 1;
        if (!setjmp(jump)) {
            MPI_Wait(&jumped[i], MPI_STATUS_IGNORE);
            CHECK(!"jumped");
        }
        CHECK(jumped[i] != MPI_REQUEST_NULL);
    }
    MPI_Allreduce(&ones[0], &sum, 1, MPI_INT, MPI_SUM, own_world);
    CHECK(sum == size);
}

static void jumps_check(void) {
    if (is_native()) return;
    for (int i = 0; i < 2; i++) MPI_Wait(&jumped[i], MPI_STATUS_IGNORE);
    CHECK(jumped_sums[0] == size && jumped_sums[1] == size);
    MPI_Request_free(&jumped[1]);
    MPI_Op_free(&jumping);
    MPI_Comm_free(&own_world);
}

static void operations_check(void) {
    MPI_Waitall(2, (MPI_Request[]){iallreduce, ireduce}, MPI_STATUSES_IGNORE);
    MPI_Wait(&persistent, MPI_STATUS_IGNORE);
    CHECK(sums[0] == size && sums[2] == size && (rank != 1 || sums[1] == size));
    MPI_Start(&persistent);
    MPI_Wait(&persistent, MPI_STATUS_IGNORE);
    CHECK(sums[2] == size);
    MPI_Request_free(&persistent);
    MPI_Op_free(&adding);
}

/* ---- generalized requests ---- */

static MPI_Request open_one, jumped_over;
static int queries, frees, cancels;

static int on_query(void *extra, MPI_Status *status) {
    (void)extra;
    queries++;
    use_mpi();
    MPI_Status_set_elements(status, MPI_INT, 2);
    MPI_Status_set_cancelled(status, cancels > 0);
    status->MPI_SOURCE = 3;
    status->MPI_TAG = 4;
    jump_if_wanted();
    return MPI_SUCCESS;
}
static int on_free(void *extra) {
    (void)extra;
    frees++;
    use_mpi();
    return MPI_SUCCESS;
}
static int on_cancel(void *extra, int complete) {
    (void)complete;
    cancels++;
    use_mpi();
    MPI_Grequest_complete(*(MPI_Request *)extra);
    return MPI_SUCCESS;
}

static void requests_set_up(void) {
    MPI_Grequest_start(on_query, on_free, on_cancel, &open_one, &open_one);
    MPI_Grequest_start(on_query, on_free, on_cancel, NULL, &jumped_over);
    MPI_Grequest_complete(jumped_over);
    jumps = 1;
    if (!setjmp(jump)) {
        MPI_Wait(&jumped_over, MPI_STATUS_IGNORE);
        CHECK(!"jumped");
    }
    CHECK(queries == 1 && frees == 0 && jumped_over != MPI_REQUEST_NULL);
    use_mpi();
}

static void requests_check(void) {
    MPI_Status status;
    int flag = 0, n = 0;
    MPI_Test(&jumped_over, &flag, &status);
    MPI_Get_count(&status, MPI_INT, &n);
    CHECK(flag && n == 2 && status.MPI_SOURCE == 3 && queries == 2 && frees == 1 && jumped_over == MPI_REQUEST_NULL);
    MPI_Cancel(&open_one);
    CHECK(cancels == 1);
    MPI_Waitall(1, &open_one, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(flag && queries == 3 && frees == 2 && open_one == MPI_REQUEST_NULL);
    use_mpi();
}

/* ---- attributes ---- */

static MPI_Comm carrier;
static int keyval, copies, deletions;

static int on_copy(MPI_Comm comm, int key, void *extra, void *value, void *copy, int *flag) {
    int members = 0;
    (void)key, (void)extra;
    MPI_Comm_size(comm, &members);
    CHECK(members == size);
    copies++;
    use_mpi();
    jump_if_wanted();
    *(void **)copy = value;
    *flag = 1;
    return MPI_SUCCESS;
}
static int on_delete(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)extra;
    CHECK(value == &keyval);
    deletions++;
    use_mpi();
    jump_if_wanted();
    return MPI_SUCCESS;
}

static void attributes_set_up(void) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Comm_create_keyval(on_copy, on_delete, &keyval, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &carrier);
    MPI_Comm_set_attr(carrier, keyval, &keyval);
    jumps = 1;
    if (!setjmp(jump)) {
        MPI_Comm_dup(carrier, &copy); /* on all members alike */
        CHECK(!"jumped");
    }
    CHECK(copies == 1 && copy == MPI_COMM_NULL);
    use_mpi();
}

static void attributes_check(void) {
    MPI_Comm copy;
    void *value = NULL;
    int flag = 0, sum = 0;
    MPI_Comm_dup(carrier, &copy);
    MPI_Comm_get_attr(copy, keyval, &value, &flag);
    CHECK(copies == 2 && flag && value == &keyval);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, copy);
    CHECK(sum == size * (size - 1) / 2);
    MPI_Comm_free(&copy);
    CHECK(deletions == 1);
    MPI_Comm_delete_attr(carrier, keyval);
    CHECK(deletions == 2);
    MPI_Comm_free_keyval(&keyval);
    MPI_Comm_free(&carrier);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(operations), STATE(jumps), STATE(requests), STATE(attributes)};
    return run_mpi_states(argc, argv, NULL, states, sizeof states / sizeof *states);
}
