/* datatypes.c - constructors and questions whose arrays hold constants or types. */
#include "openmpi.h"

#include <stdlib.h>
#include <string.h>

static int core_darg(int darg) { return darg == OPENMPI_DISTRIBUTE_DFLT_DARG ? MPI_DISTRIBUTE_DFLT_DARG : darg; }
static int front_darg(int core) { return core == MPI_DISTRIBUTE_DFLT_DARG ? OPENMPI_DISTRIBUTE_DFLT_DARG : core; }

int front_Type_create_darray(int size, int rank, int ndims, const int gsizes[], const int distribs[],
                             const int dargs[], const int psizes[], int order, front_handle_t oldtype,
                             front_handle_t *newtype) {
    int n = ndims > 0 ? ndims : 0, core = 0;
    int *both = malloc((2 * (size_t)n + 1) * sizeof *both), *core_distribs = both, *core_dargs = both + n;
    if (both == NULL) return OPENMPI_ERR_NO_MEM;
    for (int i = 0; i < n; i++) {
        if (distribs != NULL) core_distribs[i] = core_distribute(distribs[i]);
        if (dargs != NULL) core_dargs[i] = core_darg(dargs[i]);
    }
    int rc = MPY_CORE(Type_create_darray)(size, rank, ndims, gsizes, distribs != NULL ? core_distribs : NULL,
                                          dargs != NULL ? core_dargs : NULL, psizes, core_order(order),
                                          core_handle(oldtype), newtype != NULL ? &core : NULL);
    free(both);
    if (core != 0) *newtype = front_handle(FRONT_DATATYPE, core);
    return front_error(rc);
}

/* Constants among the integers of a recipe (MPI-4 5.1.13). */
static void translate_integers(int combiner, int integers[]) {
    if (combiner == MPI_COMBINER_SUBARRAY) {
        int *order = &integers[1 + 3 * integers[0]];
        *order = front_order(*order);
    } else if (combiner == MPI_COMBINER_DARRAY) {
        int ndims = integers[2], *distribs = &integers[3 + ndims], *dargs = distribs + ndims;
        for (int i = 0; i < ndims; i++) {
            distribs[i] = front_distribute(distribs[i]);
            dargs[i] = front_darg(dargs[i]);
        }
        int *order = &integers[3 + 4 * ndims];
        *order = front_order(*order);
    }
}

int front_Type_get_contents(front_handle_t datatype, int max_integers, int max_addresses, int max_datatypes,
                            int integers[], MPI_Aint addresses[], front_handle_t datatypes[]) {
    int local[LOCAL_ITEMS], *core = local, n_integers, n_addresses, n_datatypes, combiner;
    if (max_datatypes > LOCAL_ITEMS) core = malloc((size_t)max_datatypes * sizeof *core);
    if (core == NULL) return OPENMPI_ERR_NO_MEM;
    int rc = MPY_CORE(Type_get_contents)(core_handle(datatype), max_integers, max_addresses, max_datatypes, integers,
                                         addresses, datatypes != NULL ? core : NULL);
    if (rc == MPI_SUCCESS)
        rc = MPY_CORE(Type_get_envelope)(core_handle(datatype), &n_integers, &n_addresses, &n_datatypes, &combiner);
    if (rc == MPI_SUCCESS) {
        translate_integers(combiner, integers);
        for (int i = 0; i < n_datatypes; i++) datatypes[i] = front_handle(FRONT_DATATYPE, core[i]);
    }
    core_handles_free(core, local);
    return front_error(rc);
}
