/* spawn.c - MPI_Comm_spawn. See back.h.
 *
 * This process gets what others publish from PMIx's component "hash" (lowerhalf/join/manager/pmix.c says why). The
 * server of Open MPI 4.1 keeps what spawned processes publish in the component that these use, and finds nothing there
 * for a process with another one: "unreachable". So spawned processes are told to use the same one. Open MPI 5 passes
 * data between them.
 */
#include "back.h"

#include <stdio.h>
#include <string.h>

/* A variable of the environment, and Open MPI's key for variables of spawned processes, one a line. */
#define VARIABLE "PMIX_MCA_gds"
#define KEY "env"

/* `given`, or a new info with the variable. */
static void *told_info(void *given) {
    const char *component = getenv(VARIABLE);
    if (component == NULL || mpy_theirs[MPY_FN_Session_init] != NULL) return given; /* only version 4 lacks sessions */
    bool is_null = given == mpy_null[MPY_KIND_INFO];
    void *told = given;
    int rc = is_null ? MPY_THEIRS(Info_create, &told) : MPY_THEIRS(Info_dup, given, &told), found = 0;
    if (rc != 0) return given;
    char variables[OPENMPI_MAX_INFO_VAL + 1] = "", all[2 * OPENMPI_MAX_INFO_VAL];
    MPY_THEIRS(Info_get, told, KEY, OPENMPI_MAX_INFO_VAL - 1, variables, &found);
    snprintf(all, sizeof all, "%s%s" VARIABLE "=%s", found ? variables : "", found ? "\n" : "", component);
    if (strlen(all) < OPENMPI_MAX_INFO_VAL) MPY_THEIRS(Info_set, told, KEY, all);
    return told;
}

static void forget(void *told, const void *given) {
    if (told != given) MPY_THEIRS(Info_free, &told);
}

static void codes_out(int *codes, int n) {
    for (int i = 0; codes != NULL && i < n; i++) codes[i] = mpy_code_out(codes[i]);
}

static int comm_spawn(const char *command, char *argv[], int maxprocs, MPI_Info info, int root, MPI_Comm comm,
                      MPI_Comm *intercomm, int codes[]) {
    void *theirs = mpy_null[MPY_KIND_COMM];
    void *given = mpy_in(MPY_KIND_INFO, info), *told = told_info(given);
    int rc = MPY_THEIRS(Comm_spawn, command, argv, maxprocs, told, root, mpy_in(MPY_KIND_COMM, comm), &theirs, codes);
    forget(told, given);
    if (rc == 0) *intercomm = mpy_out(MPY_KIND_COMM, theirs);
    if (rc == 0) codes_out(codes, maxprocs);
    return mpy_code_out(rc);
}

static int comm_spawn_multiple(int count, char *commands[], char **argvs[], const int maxprocs[],
                               const MPI_Info infos[], int root, MPI_Comm comm, MPI_Comm *intercomm, int codes[]) {
    void *theirs = mpy_null[MPY_KIND_COMM];
    int all = 0;
    mpy_arrays_t arrays;
    mpy_arrays_begin(&arrays, false);
    long given = mpy_length_at_root(comm, root) > 0 ? count : 0; /* only the root gives them */
    void **o_infos = mpy_handles_in(&arrays, MPY_KIND_INFO, given ? infos : NULL, given);
    void **told = mpy_handles_in(&arrays, MPY_KIND_INFO, given ? infos : NULL, given);
    for (long i = 0; i < given; i++) told[i] = told_info(o_infos[i]);
    int rc = MPY_THEIRS(Comm_spawn_multiple, count, commands, argvs, maxprocs, told, root, mpy_in(MPY_KIND_COMM, comm),
                        &theirs, codes);
    for (long i = 0; i < given; i++) forget(told[i], o_infos[i]);
    for (long i = 0; i < given; i++) all += maxprocs[i];
    if (rc == 0) *intercomm = mpy_out(MPY_KIND_COMM, theirs);
    if (rc == 0) codes_out(codes, all);
    mpy_arrays_end(&arrays);
    return mpy_code_out(rc);
}

#define OURS(SLOT, NEEDS, FUNCTION) {MPY_FN_##SLOT, MPY_FN_##NEEDS, (void *)(FUNCTION)}
const mpy_ours_t mpy_ours_spawn[] = {
    OURS(Comm_spawn, Comm_spawn, comm_spawn),
    OURS(Comm_spawn_multiple, Comm_spawn_multiple, comm_spawn_multiple),
};
const size_t mpy_ours_spawn_count = sizeof mpy_ours_spawn / sizeof *mpy_ours_spawn;
