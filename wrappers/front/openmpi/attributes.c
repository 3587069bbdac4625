/* attributes.c - predefined attributes: their keyvals are numbers from 0 in Open MPI, and some of their values are
 * constants that differ. All other keyvals and values are the core's.
 */
#include "openmpi.h"

/* Kept for interoperable MPI; the core has no such attributes. */
enum { IMPI_CLIENT_SIZE = OPENMPI_WIN_MODEL + 1, IMPI_HOST_COLOR = IMPI_CLIENT_SIZE + 3 };

static const int keyvals[] = {
    [OPENMPI_TAG_UB] = MPI_TAG_UB,
    [OPENMPI_HOST] = MPI_HOST,
    [OPENMPI_IO] = MPI_IO,
    [OPENMPI_WTIME_IS_GLOBAL] = MPI_WTIME_IS_GLOBAL,
    [OPENMPI_APPNUM] = MPI_APPNUM,
    [OPENMPI_LASTUSEDCODE] = MPI_LASTUSEDCODE,
    [OPENMPI_UNIVERSE_SIZE] = MPI_UNIVERSE_SIZE,
    [OPENMPI_WIN_BASE] = MPI_WIN_BASE,
    [OPENMPI_WIN_SIZE] = MPI_WIN_SIZE,
    [OPENMPI_WIN_DISP_UNIT] = MPI_WIN_DISP_UNIT,
    [OPENMPI_WIN_CREATE_FLAVOR] = MPI_WIN_CREATE_FLAVOR,
    [OPENMPI_WIN_MODEL] = MPI_WIN_MODEL,
};

int core_keyval(int keyval) {
    if (keyval >= 0 && keyval <= OPENMPI_WIN_MODEL) return keyvals[keyval];
    return keyval == OPENMPI_KEYVAL_INVALID ? MPI_KEYVAL_INVALID : keyval;
}

bool front_keyval_unknown(int keyval) { return keyval >= IMPI_CLIENT_SIZE && keyval <= IMPI_HOST_COLOR; }

intptr_t front_attribute(int keyval, intptr_t core) {
    switch (keyval) {
    case OPENMPI_HOST:
    case OPENMPI_IO: return front_rank((int)core);
    case OPENMPI_WIN_MODEL: return front_model((int)core);
    default: return core;
    }
}

/* The values that the program of C gets a pointer to: they are the same in every call. */
static void translate(int keyval, void *value) {
    static int host, io, model;
    int *own;
    switch (keyval) {
    case OPENMPI_HOST: own = &host; break;
    case OPENMPI_IO: own = &io; break;
    case OPENMPI_WIN_MODEL: own = &model; break;
    default: return;
    }
    __atomic_store_n(own, (int)front_attribute(keyval, **(int **)value), __ATOMIC_RELAXED);
    *(int **)value = own;
}

int front_Comm_get_attr(front_handle_t comm, int keyval, void *value, int *flag) {
    if (front_keyval_unknown(keyval) && flag != NULL) {
        *flag = 0;
        return MPI_SUCCESS;
    }
    int rc = MPY_CORE(Comm_get_attr)(core_handle(comm), core_keyval(keyval), value, flag);
    if (rc == MPI_SUCCESS && *flag) translate(keyval, value);
    return front_error(rc);
}

int front_Attr_get(front_handle_t comm, int keyval, void *value, int *flag) {
    return front_Comm_get_attr(comm, keyval, value, flag);
}

int front_Win_get_attr(front_handle_t win, int keyval, void *value, int *flag) {
    int rc = MPY_CORE(Win_get_attr)(core_handle(win), core_keyval(keyval), value, flag);
    if (rc == MPI_SUCCESS && *flag) translate(keyval, value);
    return front_error(rc);
}
