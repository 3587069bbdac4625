/* refuse.c - ends a rank that cannot use a library, with one line that says why.
 *
 * Half: lower; runs on the lower TLS.
 *
 * Invariant
 *  1. If all ranks have the same error, only rank 0 reports it. A library may be missing on one host only: then each
 *     rank speaks.
 */
#include "base/rank.h"
#include "join/manager/pmi.h"
#include "join/manager/pmix.h"
#include "load.h"
#include "parts.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mpy_manager_t manager;

void mpy_mpi_started_by(mpy_manager_t by) { manager = by; }

void mpy_mpi_refuse(const char *format, ...) {
    char line[2 * PATH_MAX + 512];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    mpy_pmi_let_rank0_speak(manager, MPY_LOWER->rank);
    MPY_LOWER->svc->die(line, 1);
}

void mpy_mpi_refuse_nothing(void) {
    char line[PATH_MAX + 512];
    bool is_pmix = manager == MPY_MANAGER_PMIX && !strncmp(mpy_pmix_launcher(), "srun", 4);
    bool is_pmi2 = manager == MPY_MANAGER_PMI && !mpy_pmi_is_hydra();
    const char *asked = mpy_options.mpi ? mpy_options.mpi : getenv("MANAPY_LIBMPI");
    if (asked && *asked)
        snprintf(line, sizeof line,
                 "no MPI library at %s (from %s); give a libmpi.so.12, a libmpi.so.40, a libmpi_abi.so.1 or an "
                 "installation prefix",
                 asked, mpy_options.mpi ? "--mpi" : "MANAPY_LIBMPI");
    else if (is_pmix || is_pmi2) /* srun has no MPI beside it, so its user has to name one */
        snprintf(line, sizeof line,
                 "no MPI library found: under srun --mpi=%s manapy looks for %s; name it with MANAPY_LIBMPI or with "
                 "`mpi` of [launch] in /etc/manapy.toml, or load its module (for %s; see `manapy doctor`)",
                 is_pmix ? "pmix" : "pmi2", is_pmix ? "Open MPI" : "MPICH or a relative",
                 is_pmix ? "MPICH: srun --mpi=pmi2" : "Open MPI: srun --mpi=pmix");
    else
        snprintf(line, sizeof line,
                 "no MPI library found: install one (pip install mpich), or name it with --mpi PATH or "
                 "MANAPY_LIBMPI (see `manapy doctor`)");
    MPY_LOWER->svc->die(line, 1);
}

bool mpy_mpi_is_by(void *library, const char *maker) {
    static char text[1 << 14]; /* MPI_MAX_LIBRARY_VERSION_STRING of MPICH's ABI is 8192 */
    int length = 0, (*version)(char *, int *) = (int (*)(char *, int *))dlsym(library, "MPI_Get_library_version");
    return version && version(text, &length) == 0 && strstr(text, maker) != NULL;
}

/* The mpirun beside a library, if there is one: PREFIX/lib/libmpi.so. Intel MPI's mpirun is a script that starts the
 * mpiexec.hydra on PATH. */
static void mpirun_of(const char *library, bool intels, bool open_mpis, char *out, size_t n) {
    char prefix[PATH_MAX];
    snprintf(prefix, sizeof prefix, "%s", library);
    for (char *slash; (slash = strrchr(prefix, '/')) != NULL && slash != prefix;) {
        *slash = 0;
        static const char *const names[] = {"mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra", "mpirun"};
        for (size_t i = open_mpis ? 0 : strstr(library, "mpich") ? 1 : intels ? 2 : 3; i < 4; i++) {
            snprintf(out, n, "%s/bin/%s", prefix, names[i]);
            if (access(out, X_OK) == 0) return;
        }
    }
    snprintf(out, n, "mpirun");
}

/* Each rank would become a job of its own. */
void mpy_mpi_refuse_strangers(void *library, const char *path, mpy_family_t family) {
    bool open_mpis = family == FAMILY_STANDARD ? mpy_mpi_is_by(library, "Open MPI") : family == FAMILY_OPEN_MPI;
    bool strange = open_mpis ? manager == MPY_MANAGER_PMI && MPY_LOWER->size > 1 : manager == MPY_MANAGER_PMIX;
    if (!strange) return;
    char mpirun[PATH_MAX + 32];
    bool intels = mpy_mpi_is_by(library, MPY_INTEL_MPI);
    const char *whose = intels ? "Intel MPI's" : "MPICH's";
    mpirun_of(path, intels, open_mpis, mpirun, sizeof mpirun);
    if (!open_mpis)
        mpy_mpi_refuse("%s has started this rank, but the MPI library is %s: each rank would become a job of "
                       "its own; use %s %s, or name an Open MPI with --mpi PATH (%s)",
                       mpy_pmix_launcher(), whose, whose, mpirun, path);
    mpy_mpi_refuse("%s has started this rank, but the MPI library is Open MPI: each rank would become a job of "
                   "its own; use Open MPI's %s, or name an MPICH with --mpi PATH (%s)",
                   mpy_pmi_is_hydra() ? "MPICH's mpirun" : "srun --mpi=pmi2", mpirun, path);
}
