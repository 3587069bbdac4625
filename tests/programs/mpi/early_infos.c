/* early_infos.c - infos before MPI_Init (MPI 4.0, 10). See checkpointed.h. */
#include "../checkpointed.h"

#include <mpi.h>

static MPI_Info info;

static void infos_set_up(void) {
    MPI_Info_create(&info);
    MPI_Info_set(info, "key", "a value");
    MPI_Info_set(info, "other", "gone");
    MPI_Info_delete(info, "other");
}

static void infos_check(void) {
    char value[20] = "";
    int found = 0, n = 0;
    MPI_Info again;
    MPI_Info_get(info, "key", 19, value, &found);
    MPI_Info_get_nkeys(info, &n);
    CHECK(found && !strcmp(value, "a value") && n == 1);
    MPI_Info_dup(info, &again);
    MPI_Info_free(&info);
    MPI_Info_get_nkeys(again, &n);
    CHECK(n == 1);
    MPI_Info_free(&again);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(infos)};
    int sum = 0, one = 1, failed = run_states(argc, argv, states, 1);
    MPI_Init(&argc, &argv);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return failed || sum < 1;
}
