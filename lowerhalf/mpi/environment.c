/* environment.c - gives the real MPI the program's environment.
 *
 * Half: lower.
 *
 * Invariant
 *  1. The library sees the environment as the program left it at MPI_Init, except for the variables in `ours`.
 */
#include "parts.h"
#include <stdlib.h>
#include <string.h>

/* Variables that the launcher has changed for the program, and those by which mpirun tells the library its place in the
 * job, keep our values. */
void mpy_mpi_adopt_environment(char **env) {
    static const char *const ours[] = {
        "LD_LIBRARY_PATH=", "MPI4PY_LIBMPI=",    "MPI4PY_MPIABI=",   "LD_PRELOAD=",        "PMI_",
        "PMIX_",            "HYDI_",             "HYDRA_",           "MPI_LOCALRANKID=",   "MPI_LOCALNRANKS=",
        "MANAPY_SHIFT_",    "OMPI_COMM_WORLD_",  "OMPI_MCA_orte_",   "OMPI_MCA_ess_",      "OMPI_FILE_LOCATION=",
        "OMPI_APP_CTX_",    "OMPI_FIRST_RANKS=", "OMPI_NUM_APP_",    "OMPI_UNIVERSE_SIZE", "ORTE_",
        "PRTE_"};
    for (; env && *env; env++) {
        int skip = 0;
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) skip |= !strncmp(*env, ours[i], strlen(ours[i]));
        char *equals = strchr(*env, '=');
        if (skip || !equals || equals == *env) continue;
        char *copy = strdup(*env);
        if (copy) putenv(copy); /* never freed, because putenv keeps the pointer */
    }
}
