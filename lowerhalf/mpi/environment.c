/* environment.c - gives the real MPI the program's environment.
 *
 * Half: lower.
 *
 * Invariants
 *  1. The library sees the environment as the program left it at MPI_Init, except for the variables in `ours`.
 *  2. No library remembers which memory it has registered with a network card. They hook munmap(2) in the lower half's
 *     libc for that, and the program unmaps memory by another one. A card would use pages that are gone.
 */
#include "parts.h"
#include <stdlib.h>
#include <string.h>

#define LIBFABRIC_MONITOR "FI_MR_CACHE_MONITOR"

/* Invariant 2. It also saves each rank 40 ms: so long UCX takes to put its hooks into our libc. */
static void forbid_memory_hooks(void) {
    const char *monitor = getenv(LIBFABRIC_MONITOR);
    setenv("UCX_MEM_EVENTS", "n", 1);
    setenv("OMPI_MCA_mpi_leave_pinned", "0", 1);
    /* its other monitors are told by the kernel */
    if (!monitor || !strcmp(monitor, "memhooks")) setenv(LIBFABRIC_MONITOR, "disabled", 1);
}

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
    forbid_memory_hooks();
}
