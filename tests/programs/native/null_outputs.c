/* Calls with NULL as the address of a result: MPI returns its own error, and there is no crash. Ends with "ok". See
 * test_null_outputs.py. */
#include <mpi.h>
#include <stdio.h>

static int failures;

static void check(const char *call, int code) {
    int class = MPI_SUCCESS;

    MPI_Error_class(code, &class);
    if (class == MPI_ERR_ARG) return;
    printf("%s: error class %d\n", call, class);
    failures++;
}
#define WRONG(call) check(#call, call)

static void reduce(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)in, (void)inout, (void)n, (void)type;
}

static void handler(MPI_Comm *comm, int *code, ...) {
    (void)comm, (void)code;
}

int main(int argc, char **argv) {
    MPI_Comm world = MPI_COMM_WORLD;
    MPI_Group group;
    MPI_Info info;
    MPI_Request request;
    MPI_Win win;
    int one = 1, zero = 0, range[1][3] = {{0, 0, 1}};

    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_group(world, &group);
    MPI_Info_create(&info);
    MPI_Win_create(NULL, 0, 1, MPI_INFO_NULL, world, &win);

    WRONG(MPI_Comm_dup(world, NULL));
    WRONG(MPI_Comm_dup_with_info(world, info, NULL));
    WRONG(MPI_Comm_idup(world, NULL, &request));
    WRONG(MPI_Comm_split(world, 0, 0, NULL));
    WRONG(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, info, NULL));
    WRONG(MPI_Comm_create(world, group, NULL));
    WRONG(MPI_Comm_create_group(world, group, 0, NULL));
    WRONG(MPI_Intercomm_create(world, 0, world, 1, 52, NULL));
    WRONG(MPI_Comm_create_from_group(group, "null", MPI_INFO_NULL, MPI_ERRORS_RETURN, NULL));
    WRONG(MPI_Comm_group(world, NULL));
    WRONG(MPI_Comm_get_info(world, NULL));
    WRONG(MPI_Cart_create(world, 1, &one, &zero, 0, NULL));
    WRONG(MPI_Group_union(group, group, NULL));
    WRONG(MPI_Group_difference(group, group, NULL));
    WRONG(MPI_Group_range_incl(group, 1, range, NULL));
    WRONG(MPI_Type_contiguous(2, MPI_INT, NULL));
    WRONG(MPI_Type_vector(2, 1, 2, MPI_INT, NULL));
    WRONG(MPI_Type_create_resized(MPI_INT, 0, 8, NULL));
    WRONG(MPI_Type_dup(MPI_INT, NULL));
    WRONG(MPI_Op_create(reduce, 1, NULL));
    WRONG(MPI_Info_create(NULL));
    WRONG(MPI_Info_dup(info, NULL));
    WRONG(MPI_Comm_create_errhandler(handler, NULL));
    WRONG(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, NULL, NULL));
    WRONG(MPI_Win_create(NULL, 0, 1, MPI_INFO_NULL, world, NULL));
    WRONG(MPI_Win_get_group(win, NULL));
    WRONG(MPI_Win_get_info(win, NULL));

    MPI_Win_free(&win);
    MPI_Info_free(&info);
    MPI_Group_free(&group);
    if (failures == 0) puts("ok");
    MPI_Finalize();
    return failures != 0;
}
