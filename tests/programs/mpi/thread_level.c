/* thread_level.c - the thread level that MPI has given stays true. See mpi_states.h. */
#include "../mpi_states.h"

static int level;

static void level_set_up(void) { MPI_Query_thread(&level); }

/* A session tells the library's own level. */
static void level_check(void) {
    static const char *const names[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED",
                                        "MPI_THREAD_MULTIPLE"};
    char value[100] = "";
    int found = 0, again = -1;
    MPI_Session session;
    MPI_Info info;
    MPI_Query_thread(&again);
    CHECK(again == level);
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
    MPI_Session_get_info(session, &info);
    MPI_Info_get(info, "thread_level", 99, value, &found);
    CHECK(found && !strcmp(value, names[level]));
    MPI_Info_free(&info);
    MPI_Session_finalize(&session);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(level)};
    return run_mpi_states(argc, argv, NULL, states, 1);
}
