/* attributes.c - predefined attributes: some of their values are constants that differ. All other values are the
 * core's.
 */
#include "front_interface.h"

/* Codes that the program adds are the core's. */
static int front_last_code(int core) { return core == MPI_ERR_LASTCODE ? FRONT_ERR_LASTCODE : core; }

static int flavors[] = {
    [MPI_WIN_FLAVOR_CREATE] = FRONT_WIN_FLAVOR_CREATE,
    [MPI_WIN_FLAVOR_ALLOCATE] = FRONT_WIN_FLAVOR_ALLOCATE,
    [MPI_WIN_FLAVOR_DYNAMIC] = FRONT_WIN_FLAVOR_DYNAMIC,
    [MPI_WIN_FLAVOR_SHARED] = FRONT_WIN_FLAVOR_SHARED,
};
static int models[] = {[MPI_WIN_SEPARATE] = FRONT_WIN_SEPARATE, [MPI_WIN_UNIFIED] = FRONT_WIN_UNIFIED};

intptr_t front_attribute(int keyval, intptr_t core) {
    switch (keyval) {
    case FRONT_HOST:
    case FRONT_IO: return front_rank((int)core);
    case FRONT_LASTUSEDCODE: return front_last_code((int)core);
    case FRONT_WIN_CREATE_FLAVOR: return flavors[core];
    case FRONT_WIN_MODEL: return models[core];
    default: return core;
    }
}

/* A program in C gets a pointer. What it points to is the same in every call, except for the last code. */
static void translate(int keyval, void *value) {
    static int host, io, last;
    int *own;
    switch (keyval) {
    case FRONT_HOST: own = &host; break;
    case FRONT_IO: own = &io; break;
    case FRONT_LASTUSEDCODE: own = &last; break;
    case FRONT_WIN_CREATE_FLAVOR: *(int **)value = &flavors[**(int **)value]; return;
    case FRONT_WIN_MODEL: *(int **)value = &models[**(int **)value]; return;
    default: return;
    }
    __atomic_store_n(own, (int)front_attribute(keyval, **(int **)value), __ATOMIC_RELAXED);
    *(int **)value = own;
}

int front_Comm_get_attr(front_handle_t comm, int keyval, void *value, int *flag) {
    if (front_has_no_value(keyval) && flag != NULL) {
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
