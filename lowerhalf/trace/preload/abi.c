/* abi.c - the MPI library that the program uses: the addresses of its functions, and its binary interface. See
 * preload.h.
 *
 * Invariants
 *  1. The next function of a name is the one that the dynamic linker finds after this library. An MPI library that was
 *     opened for one module only (mpi4py) isn't found that way. It is searched for among all loaded libraries.
 *  2. Results of mpy_resolve stay valid: an MPI library isn't unloaded before MPI_Finalize.
 */
#include "preload.h"
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpich.h"
#include "openmpi_constants.h"

mpy_abi_t mpy_abi;
static void *library; /* handle of the MPI library */

/* ---- functions ---- */

static int is_mpi(struct dl_phdr_info *info, size_t size, void *out) {
    (void)size;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    if (strncmp(name, "libmpi", 6)) return 0;
    void *handle = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL) return 0;
    if (dlsym(handle, "PMPI_Init") == NULL) {
        dlclose(handle);
        return 0;
    }
    *(void **)out = handle;
    return 1;
}

void *mpy_library_function(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found != NULL) return found;
    if (library == NULL) dl_iterate_phdr(is_mpi, &library);
    return library == NULL ? NULL : dlsym(library, name);
}

void *mpy_resolve(int index, int p) {
    const char *name = mpy_names[index] + (p ? 0 : 1);
    void *found = mpy_library_function(name);
    if (found == NULL) {
        fprintf(stderr, "manapy trace: the program calls %s, which its MPI library does not have\n", name);
        exit(1);
    }
    return mpy_real[index][p] = found;
}

/* ---- the binary interface ---- */

static const mpy_abi_t mpich = {
    .mpich = true, .handle_mask = 0xffffffff, .handle_size = sizeof(MPI_Comm),
    .comm_null = MPI_COMM_NULL, .comm_world = MPI_COMM_WORLD, .comm_self = MPI_COMM_SELF,
    .request_null = MPI_REQUEST_NULL, .win_null = MPI_WIN_NULL, .type_null = MPI_DATATYPE_NULL,
    .any_source = MPI_ANY_SOURCE, .any_tag = MPI_ANY_TAG, .proc_null = MPI_PROC_NULL, .root = MPI_ROOT,
    .graph = MPI_GRAPH, .cart = MPI_CART, .dist_graph = MPI_DIST_GRAPH,
    .lock_shared = MPI_LOCK_SHARED, .nocheck = MPI_MODE_NOCHECK,
    .in_place = MPI_IN_PLACE, .status_ignore = MPI_STATUS_IGNORE,
    .status_size = sizeof(MPI_Status),
    .status_source = offsetof(MPI_Status, MPI_SOURCE), .status_tag = offsetof(MPI_Status, MPI_TAG),
};
/* Open MPI's handles are addresses of its data. A program may have its own copies of this data (copy relocations); then
 * the library uses these, too. */
static const mpy_abi_t open_mpi = {
    .handle_mask = UINT64_MAX, .handle_size = 8,
    .any_source = OPENMPI_ANY_SOURCE, .any_tag = OPENMPI_ANY_TAG, .proc_null = OPENMPI_PROC_NULL,
    .root = OPENMPI_ROOT, .cart = OPENMPI_CART, .graph = OPENMPI_GRAPH, .dist_graph = OPENMPI_DIST_GRAPH,
    .lock_shared = OPENMPI_LOCK_SHARED, .nocheck = OPENMPI_MODE_NOCHECK,
    .in_place = (const void *)OPENMPI_IN_PLACE, .status_ignore = (const void *)OPENMPI_STATUS_IGNORE,
    .status_size = 24, .status_source = 0, .status_tag = 4,
};

static uint64_t address(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    return (uint64_t)(found != NULL ? found : mpy_library_function(name));
}

bool mpy_abi_find(const char **why_not) {
    Dl_info where;
    void *init = mpy_library_function("PMPI_Init");
    *why_not = NULL;
    if (init == NULL || dladdr(init, &where) == 0) return false;
    if (strstr(where.dli_fname, "manapy/upper/")) return false; /* manapy-launch's library: it records by itself */
    if (strstr(where.dli_fname, "libmpi_abi.so")) {
        *why_not = "programs for the standard ABI (libmpi_abi.so) cannot be recorded this way";
        return false;
    }
    if (address("ompi_mpi_comm_world") == 0) {
        mpy_abi = mpich;
        return true;
    }
    mpy_abi = open_mpi;
    mpy_abi.comm_null = address("ompi_mpi_comm_null");
    mpy_abi.comm_world = address("ompi_mpi_comm_world");
    mpy_abi.comm_self = address("ompi_mpi_comm_self");
    mpy_abi.request_null = address("ompi_request_null");
    mpy_abi.win_null = address("ompi_mpi_win_null");
    mpy_abi.file_null = address("ompi_mpi_file_null");
    mpy_abi.type_null = address("ompi_mpi_datatype_null");
    return true;
}

/* ---- types and statuses ---- */

uint64_t mpy_type_size_slow(mpy_word_t type) {
    static int (*type_size)(mpy_word_t, int *);
    if (type_size == NULL) type_size = mpy_library_function("PMPI_Type_size");
    int size = 0;
    return type == 0 || mpy_handle(type) == mpy_abi.type_null || type_size(type, &size) != 0 || size < 0
               ? 0
               : (uint64_t)size;
}

mpy_came_t mpy_status_read(const void *status) {
    const char *s = status;
    mpy_came_t came;
    int32_t source, tag;
    memcpy(&source, s + mpy_abi.status_source, sizeof source);
    memcpy(&tag, s + mpy_abi.status_tag, sizeof tag);
    came.peer = mpy_peer(source);
    came.tag = mpy_tag(tag);
    if (mpy_abi.mpich) {
        came.bytes = mpy_status_bytes(status);
    } else { /* ... MPI_ERROR, _cancelled, _ucount */
        memcpy(&came.bytes, s + 16, sizeof came.bytes);
    }
    return came;
}
