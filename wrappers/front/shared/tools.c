/* tools.c - MPI_T, and calls that start processes. */
#include "front_interface.h"

/* The object is given by the address of its handle. Without an object the address means nothing. The core reads an int
 * there, or the pointer of a file. */
void *front_bind(front_bound_t *bound, int core_bind, void *object) {
    if (core_bind == MPI_T_BIND_NO_OBJECT || object == NULL) return NULL;
    if (core_bind == MPI_T_BIND_MPI_FILE)
        bound->file = core_file(*(front_handle_t *)object);
    else
        bound->handle = core_handle(*(front_handle_t *)object);
    return bound;
}

int front_T_cvar_handle_alloc(int index, void *object, void *handle, int *count) {
    front_bound_t bound;
    int name_length = 0, desc_length = 0, verbosity, to, scope;
    MPI_Datatype datatype;
    int rc = MPY_CORE(T_cvar_get_info)(index, NULL, &name_length, &verbosity, &datatype, NULL, NULL, &desc_length, &to,
                                       &scope);
    if (rc == MPI_SUCCESS) rc = MPY_CORE(T_cvar_handle_alloc)(index, front_bind(&bound, to, object), handle, count);
    return front_error(rc);
}

int front_T_pvar_handle_alloc(void *session, int index, void *object, void *handle, int *count) {
    front_bound_t bound;
    int name_length = 0, desc_length = 0, verbosity, class, to, readonly, continuous, atomic;
    MPI_Datatype datatype;
    int rc = MPY_CORE(T_pvar_get_info)(index, NULL, &name_length, &verbosity, &class, &datatype, NULL, NULL,
                                       &desc_length, &to, &readonly, &continuous, &atomic);
    if (rc == MPI_SUCCESS)
        rc = MPY_CORE(T_pvar_handle_alloc)(session, index, front_bind(&bound, to, object), handle, count);
    return front_error(rc);
}

int front_Comm_spawn_multiple(int count, char *commands[], char **argv[], const int maxprocs[],
                              const front_handle_t infos[], int root, front_handle_t comm, front_handle_t *intercomm,
                              int errcodes[]) {
    int rank = -1, core = 0, local[LOCAL_ITEMS], *core_infos = NULL;
    /* only the root's arrays mean something */
    bool ours = MPY_CORE(Comm_rank)(core_handle(comm), &rank) == MPI_SUCCESS && rank == root;
    if (ours) core_infos = core_handles(infos, count, local);
    int rc = MPY_CORE(Comm_spawn_multiple)(count, commands, argv, maxprocs, core_infos, core_rank(root),
                                           core_handle(comm), intercomm != NULL ? &core : NULL, errcodes);
    if (core_infos != NULL) core_handles_free(core_infos, local);
    if (core != 0) *intercomm = front_handle(FRONT_COMM, core);
    return front_error(rc);
}
