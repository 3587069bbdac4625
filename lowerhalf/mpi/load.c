/* load.c - opens the real MPI and fills the function table of the lower block.
 *
 * Half: lower; mpy_mpi_load is called on the lower TLS, from the program's MPI_Init (or by the restore).
 *
 * A library with MPICH's ABI fills the table itself. For Open MPI, and for a library of the MPI-5 standard ABI, a back
 * does it (back/back.h).
 *
 * Invariant
 *  1. No slot of the table is NULL: a function that an older library lacks gets a stub that returns an error.
 */
#include "load.h"
#include "back/back.h"
#include "base/rank.h"
#include "join/manager/pmix.h"
#include "parts.h"
#include "rdma.h"
#include <dlfcn.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>

#include "function_names.h"
#include "functions.h"

/* MPI libraries allocate temporary buffers as large as a message for each call. Without manapy, malloc learns from the
 * program's own frees to keep such memory. Here the program has another malloc, and each call would have to touch fresh
 * pages. */
enum { MALLOC_MMAPS_FROM = 32 << 20 /* the maximum that mallopt accepts */, MALLOC_TRIMS_FROM = 64 << 20 };

static int missing(void) { return MPI_ERR_UNSUPPORTED_OPERATION; }

static void fill_directly(void *library) {
    for (int i = 0; i < MPY_FN_COUNT; i++) {
        void *f = dlsym(library, mpy_function_names[i]);
        MPY_LOWER->mpi[i] = f ? f : (void *)missing;
    }
    for (int i = 0; i < MPY_DATA_COUNT; i++) {
        void **symbol = dlsym(library, mpy_data_names[i]);
        MPY_LOWER->mpi_data[i] = symbol ? *symbol : NULL;
    }
}

/* Which binary interface does it have? Open MPI's library of the standard ABI may bring Open MPI's symbols, too. */
static mpy_family_t family_of(void *library) {
    int major = 0, minor = 0, (*version)(int *, int *) = (int (*)(int *, int *))dlsym(library, "MPI_Abi_get_version");
    if (version && version(&major, &minor) == 0 && major > 0) return FAMILY_STANDARD;
    return dlsym(library, "ompi_mpi_comm_world") ? FAMILY_OPEN_MPI : FAMILY_MPICH;
}

static void fill_from_back(void *library, const char *path, const char *name) {
    char file[PATH_MAX + 64], error[512];
    snprintf(file, sizeof file, "%s/../back/libmanapy-back-%s.so", mpy_upper_dir(), name);
    void *back = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    mpy_back_open_t *fill = back ? (mpy_back_open_t *)dlsym(back, MPY_BACK_OPEN) : NULL;
    if (!fill) mpy_mpi_refuse("cannot load the part of manapy for this MPI: %s", dlerror());
    if (!fill(library, MPY_LOWER->mpi, MPY_LOWER->mpi_data, (void *)missing, error, sizeof error))
        mpy_mpi_refuse("%s cannot be used: %s", path, error);
}

void mpy_mpi_load(char **env) {
    static int loaded;
    if (loaded) return;
    mpy_mpi_adopt_environment(env);
    mallopt(M_MMAP_THRESHOLD, MALLOC_MMAPS_FROM);
    mallopt(M_TRIM_THRESHOLD, MALLOC_TRIMS_FROM);
    const char *path = mpy_mpi_path();
    if (!path) mpy_mpi_refuse_nothing();
    mpy_rdma_load();
    mpy_pmix_make_way();
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        char line[PATH_MAX + 256];
        snprintf(line, sizeof line, "cannot load the MPI library: %s", dlerror());
        MPY_LOWER->svc->die(line, 1);
    }
    mpy_family_t family = family_of(library);
    mpy_mpi_refuse_strangers(library, path, family);
    switch (family) {
    case FAMILY_MPICH: fill_directly(library); break;
    case FAMILY_OPEN_MPI: fill_from_back(library, path, "openmpi"); break;
    case FAMILY_STANDARD: fill_from_back(library, path, "standard"); break;
    }
    if (mpy_mpi_is_by(library, MPY_INTEL_MPI)) {
        mpy_mpi_mend_intels();
        if (family == FAMILY_STANDARD) mpy_mpi_advise_intels_other(path);
    }
    mpy_mpi_guard_init();
    loaded = 1;
}
