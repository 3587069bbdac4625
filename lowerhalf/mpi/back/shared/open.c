/* open.c - the way into the back: finds the library's functions, and fills the function table of the lower block. See
 * ../back.h and translate.h. */
#include "back_interface.h"
#include "mpi/back/back.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "function_names.h"

/* Open MPI 4.1 has persistent collectives as an extension: MPIX_Barrier_init. */
static void *find(void *library, const char *name) {
    char extension[128];
    void *found = dlsym(library, name);
    if (found != NULL || strncmp(name, "MPI_", 4) != 0) return found;
    snprintf(extension, sizeof extension, "MPIX_%s", name + 4);
    return dlsym(library, extension);
}

__attribute__((visibility("default"))) mpy_back_open_t mpy_back_open;

bool mpy_back_open(void *library, void **functions, void **data, void *missing, char *error, size_t n) {
    for (int i = 0; i < MPY_FN_COUNT; i++) {
        mpy_theirs[i] = find(library, mpy_function_names[i]);
        functions[i] = missing;
    }
    if (!mpy_handles_open(library, error, n)) return false;
    mpy_fill(functions, mpy_ours_generated, mpy_ours_generated_count);
    mpy_fill(functions, mpy_ours_written, mpy_ours_written_count);
    mpy_fill(functions, mpy_ours_errors, mpy_ours_errors_count);
    mpy_fill(functions, mpy_ours_spawn, mpy_ours_spawn_count);
    if (!mpy_own_open(functions, error, n)) return false;
    for (int i = 0; i < MPY_DATA_COUNT; i++) data[i] = NULL;
    data[MPY_DATA_UNWEIGHTED] = (void *)BACK_UNWEIGHTED;
    data[MPY_DATA_WEIGHTS_EMPTY] = (void *)BACK_WEIGHTS_EMPTY;
    data[MPY_DATA_T_PVAR_ALL_HANDLES] = (void *)BACK_T_PVAR_ALL_HANDLES;
    return true;
}
