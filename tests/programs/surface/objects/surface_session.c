/* Surface: sessions, without MPI_Init. See checkpointed.h and test_surface.py. */
#include "../../checkpointed.h"

#include <mpi.h>

static int rank, size;

static int class_of(int code) {
    int class = -1;
    MPI_Error_class(code, &class);
    return class;
}

static int sum(int value, MPI_Comm comm) {
    int result = -1;
    MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_SUM, comm);
    return result;
}

/* ---- a session: its process sets, groups and communicators ---- */

static MPI_Session session, strict;
static MPI_Group all, alone, also, halves[2];
static MPI_Comm world, self, half, inter;

static void models_set_up(void) {
    MPI_Info info;
    int flag;
    MPI_Initialized(&flag);
    CHECK(!flag);
    MPI_Info_create(&info);
    MPI_Info_set(info, "thread_level", "MPI_THREAD_FUNNELED");
    MPI_Session_init(info, MPI_ERRORS_RETURN, &session);
    MPI_Info_set(info, "strict_finalize", "1");
    MPI_Session_init(info, MPI_ERRORS_RETURN, &strict);
    MPI_Info_free(&info);
    MPI_Initialized(&flag);
    CHECK(!flag && session != strict);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &all);
    MPI_Group_from_session_pset(strict, "mpi://SELF", &alone);
    MPI_Group_rank(all, &rank);
    MPI_Group_size(all, &size);
    MPI_Comm_create_from_group(all, "all", MPI_INFO_NULL, MPI_ERRORS_RETURN, &world);
    MPI_Comm_create_from_group(alone, "alone", MPI_INFO_NULL, MPI_ERRORS_RETURN, &self);
    MPI_Group_union(alone, alone, &also);
    for (int i = 0; i < 2; i++) {
        int range[1][3] = {{i, size - 2 + i, 2}};
        MPI_Group_range_incl(all, 1, range, &halves[i]);
    }
    MPI_Comm_create_from_group(halves[rank % 2], "half", MPI_INFO_NULL, MPI_ERRORS_RETURN, &half);
    MPI_Intercomm_create_from_groups(halves[rank % 2], 1, halves[1 - rank % 2], 1, "both", MPI_INFO_NULL,
                                     MPI_ERRORS_RETURN, &inter);
}

static void psets(void) {
    char name[MPI_MAX_PSET_NAME_LEN], value[100];
    int n, length = 0, flag;
    MPI_Info info;
    MPI_Session_get_num_psets(session, MPI_INFO_NULL, &n);
    CHECK(n >= 2);
    MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 0, &length, NULL);
    CHECK(length == 12);
    MPI_Session_get_nth_pset(session, MPI_INFO_NULL, 0, &length, name);
    CHECK(!strcmp(name, "mpi://WORLD"));
    MPI_Session_get_pset_info(session, name, &info);
    MPI_Info_get(info, "mpi_size", 99, value, &flag);
    CHECK(flag && atoi(value) == size);
    MPI_Info_free(&info);
    MPI_Session_get_info(session, &info);
    MPI_Info_get(info, "thread_level", 99, value, &flag);
    CHECK(flag && !strcmp(value, "MPI_THREAD_FUNNELED"));
    MPI_Info_free(&info);
}

static void models_check(void) {
    int n, r, flag;
    psets();
    CHECK(sum(rank, world) == size * (size - 1) / 2 && sum(7, self) == 7);
    MPI_Comm_size(half, &n);
    CHECK(n == size / 2 && sum(rank % 2, half) == rank % 2 * n);
    MPI_Comm_remote_size(inter, &n);
    MPI_Comm_rank(inter, &r);
    CHECK(n == size / 2 && r == rank / 2 && sum(rank % 2, inter) == (1 - rank % 2) * n);
    MPI_Group none = all;
    CHECK(class_of(MPI_Group_from_session_pset(session, "no such set", &none)) == MPI_ERR_ARG &&
          none == MPI_GROUP_NULL);
    MPI_Comm empty;
    MPI_Comm_create_from_group(MPI_GROUP_EMPTY, "none", MPI_INFO_NULL, MPI_ERRORS_RETURN, &empty);
    CHECK(empty == MPI_COMM_NULL);
    empty = world;
    MPI_Intercomm_create_from_groups(alone, 0, MPI_GROUP_EMPTY, 0, "no", MPI_INFO_NULL, MPI_ERRORS_RETURN, &empty);
    CHECK(empty == MPI_COMM_NULL);

    CHECK(class_of(MPI_Session_finalize(&strict)) == MPI_ERR_PENDING); /* something of it still exists */
    MPI_Group_free(&alone);
    MPI_Comm_group(self, &alone);
    MPI_Comm_free(&self);
    CHECK(class_of(MPI_Session_finalize(&strict)) == MPI_ERR_PENDING); /* a group of it, and one of its communicator */
    MPI_Group_free(&alone);
    CHECK(class_of(MPI_Session_finalize(&strict)) == MPI_ERR_PENDING);
    MPI_Group_free(&also);
    MPI_Session_finalize(&strict);
    CHECK(strict == MPI_SESSION_NULL);
    MPI_Initialized(&flag);
    CHECK(!flag);
    MPI_Session again;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &again);
    MPI_Session_finalize(&again);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
    MPI_Comm_free(&world);
    for (int i = 0; i < 2; i++) MPI_Group_free(&halves[i]);
    MPI_Group_free(&all);
    MPI_Session_finalize(&session);
}

/* ---- error handlers of sessions ---- */

static MPI_Session handled, jumping;
static int errors, last_class;

static void on_error(MPI_Session *s, int *code, ...) {
    CHECK(*s == handled);
    MPI_Error_class(*code, &last_class);
    errors++;
}

static void handlers_set_up(void) {
    MPI_Errhandler handler;
    MPI_Session_create_errhandler(on_error, &handler);
    MPI_Session_init(MPI_INFO_NULL, handler, &handled);
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &jumping);
    MPI_Session_set_errhandler(jumping, handler);
    MPI_Session_set_errhandler(jumping, MPI_ERRORS_RETURN);
    MPI_Errhandler_free(&handler);
}

static void handlers_check(void) {
    MPI_Errhandler handler;
    int length = 0;
    MPI_Session_call_errhandler(handled, MPI_ERR_TAG);
    CHECK(errors == 1 && last_class == MPI_ERR_TAG);
    MPI_Session_get_nth_pset(handled, MPI_INFO_NULL, 99, &length, NULL);
    CHECK(errors == 2 && last_class == MPI_ERR_ARG);
    MPI_Session_get_errhandler(handled, &handler);
    CHECK(handler != MPI_ERRORS_RETURN);
    MPI_Errhandler_free(&handler);
    MPI_Session_get_errhandler(jumping, &handler);
    CHECK(handler == MPI_ERRORS_RETURN);
    MPI_Session_finalize(&handled);
    MPI_Session_finalize(&jumping);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(models), STATE(handlers)};
    return run_states(argc, argv, states, sizeof states / sizeof *states);
}
