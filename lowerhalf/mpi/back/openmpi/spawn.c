/* spawn.c - the settings that spawned processes get. See openmpi.h.
 *
 * This process gets what others publish from PMIx's component "hash" (lowerhalf/join/manager/pmix.c says why). The
 * server of Open MPI 4.1 keeps what spawned processes publish in the component that these use, and finds nothing there
 * for a process with another one: "unreachable". So spawned processes are told to use the same one. Open MPI 5 passes
 * data between them.
 */
#include "openmpi.h"

#include <stdio.h>
#include <string.h>

/* A variable of the environment, and Open MPI's key for variables of spawned processes, one a line. */
#define VARIABLE "PMIX_MCA_gds"
#define KEY "env"

/* `given`, or a new info with the variable. */
void *mpy_spawn_info(void *given) {
    const char *component = getenv(VARIABLE);
    if (component == NULL || mpy_theirs[MPY_FN_Session_init] != NULL) return given; /* only version 4 lacks sessions */
    bool is_null = given == mpy_null[MPY_KIND_INFO];
    void *told = given;
    int rc = is_null ? MPY_THEIRS(Info_create, &told) : MPY_THEIRS(Info_dup, given, &told), found = 0;
    if (rc != 0) return given;
    char variables[BACK_MAX_INFO_VAL + 1] = "", all[2 * BACK_MAX_INFO_VAL];
    MPY_THEIRS(Info_get, told, KEY, BACK_MAX_INFO_VAL - 1, variables, &found);
    snprintf(all, sizeof all, "%s%s" VARIABLE "=%s", found ? variables : "", found ? "\n" : "", component);
    if (strlen(all) < BACK_MAX_INFO_VAL) MPY_THEIRS(Info_set, told, KEY, all);
    return told;
}
