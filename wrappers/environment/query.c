/* query.c - small functions without objects: versions, clocks, addresses, memory, Fortran conversions of handles.
 *
 * Upper half, upper TLS, libc allowed: none of these runs in a hook, and memory that the program allocates through MPI
 * belongs to the program (and is saved with it).
 */
#include "outside.h"
#include "errors.h"
#include "info.h"
#include "core/objects.h"
#include "tools/trace.h"

#include <stdlib.h>
#include <time.h>

int PMPI_Get_version(int *version, int *subversion) {
    if (!mpy_above) { /* a child process may call this */
        *version = MPI_VERSION;
        *subversion = MPI_SUBVERSION;
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Get_version)(version, subversion);
    mpy_cross_out(t);
    return rc;
}

/* Like MPICH's libmpi.so.12: not the standard ABI. */
int PMPI_Abi_get_version(int *abi_major, int *abi_minor) {
    *abi_major = *abi_minor = -1;
    return MPI_SUCCESS;
}

/* MPI 4.1, 15.2.4. 0: calls of this thread aren't recorded; 1 (the default) and 2: they are. Other levels have no
 * effect, and no level has one before MPI is initialized. */
int PMPI_Pcontrol(const int level, ...) {
    if (mpy_above && MPY_LOWER->mpi[0] != NULL && level >= 0 && level <= 2) mpy_trace_control(mpy_self(), level != 0);
    return MPI_SUCCESS;
}

/* CLOCK_MONOTONIC, as in MPICH. lowerhalf/isolate/trap/clock.c keeps it from going backwards over a restart. */
double PMPI_Wtime(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double PMPI_Wtick(void) { return 1e-9; }

/* ---- addresses and memory ---- */

int PMPI_Get_address(const void *location, MPI_Aint *address) {
    *address = (MPI_Aint)location;
    return MPI_SUCCESS;
}
int PMPI_Address(void *location, MPI_Aint *address) { return PMPI_Get_address(location, address); }
MPI_Aint PMPI_Aint_add(MPI_Aint base, MPI_Aint disp) { return base + disp; }
MPI_Aint PMPI_Aint_diff(MPI_Aint addr1, MPI_Aint addr2) { return addr1 - addr2; }

/* mpi_minimum_memory_alignment (MPI 4.1, section 9.2), which may ask for more than a line of the cache. */
static size_t alignment(mpy_info_t *info) {
    char given[MPI_MAX_INFO_VAL + 1];
    if (info == NULL) return 64;
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    bool found = mpy_info_value(info, "mpi_minimum_memory_alignment", given);
    mpy_guard_out(t);
    size_t bytes = found ? strtoul(given, NULL, 10) : 0;
    return bytes > 64 && (bytes & (bytes - 1)) == 0 ? bytes : 64;
}

int PMPI_Alloc_mem(MPI_Aint size, MPI_Info info, void *baseptr) {
    if (size < 0) return mpy_error(NULL, MPI_ERR_ARG, "MPI_Alloc_mem");
    mpy_info_t *hints = (mpy_info_t *)mpy_lookup(MPY_INFO, info);
    if (info != MPI_INFO_NULL && info != MPI_INFO_ENV && hints == NULL)
        return mpy_error(NULL, MPI_ERR_INFO, "MPI_Alloc_mem");
    void *p = NULL;
    if (size > 0 && posix_memalign(&p, alignment(hints), (size_t)size) != 0)
        return mpy_error(NULL, MPI_ERR_NO_MEM, "MPI_Alloc_mem");
    *(void **)baseptr = p;
    return MPI_SUCCESS;
}

int PMPI_Free_mem(void *base) {
    mpy_require_mpi("MPI_Free_mem");
    free(base);
    return MPI_SUCCESS;
}

/* ---- handles in Fortran are the same integers (for files, which are pointers in C, see file.c) ---- */

#define CONVERSIONS(TYPE, NAME) \
    MPI_Fint PMPI_##NAME##_c2f(TYPE handle) { return handle; } \
    TYPE PMPI_##NAME##_f2c(MPI_Fint handle) { return handle; } \
    int PMPI_##NAME##_toint(TYPE handle) { return handle; } \
    TYPE PMPI_##NAME##_fromint(int handle) { return handle; }
CONVERSIONS(MPI_Comm, Comm)
CONVERSIONS(MPI_Datatype, Type)
CONVERSIONS(MPI_Group, Group)
CONVERSIONS(MPI_Info, Info)
CONVERSIONS(MPI_Request, Request)
CONVERSIONS(MPI_Op, Op)
CONVERSIONS(MPI_Errhandler, Errhandler)
CONVERSIONS(MPI_Win, Win)
CONVERSIONS(MPI_Message, Message)
CONVERSIONS(MPI_Session, Session)
