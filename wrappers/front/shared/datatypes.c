/* datatypes.c - constructors and queries whose arrays hold constants or types. */
#include "front_interface.h"

#include <stdlib.h>
#include <string.h>

static int core_darg(int darg) { return darg == FRONT_DISTRIBUTE_DFLT_DARG ? MPI_DISTRIBUTE_DFLT_DARG : darg; }
static int front_darg(int core) { return core == MPI_DISTRIBUTE_DFLT_DARG ? FRONT_DISTRIBUTE_DFLT_DARG : core; }

bool front_distribution_open(front_distribution_t *d, int ndims, const int distribs[], const int dargs[]) {
    int n = ndims > 0 ? ndims : 0;
    int *both = d->memory = malloc((2 * (size_t)n + 1) * sizeof *both);
    if (both == NULL) return false;
    for (int i = 0; i < n; i++) {
        if (distribs != NULL) both[i] = core_distribute(distribs[i]);
        if (dargs != NULL) both[n + i] = core_darg(dargs[i]);
    }
    d->distribs = distribs != NULL ? both : NULL;
    d->dargs = dargs != NULL ? both + n : NULL;
    return true;
}

int front_distribution_close(front_distribution_t *d, int rc, int core, front_handle_t *newtype) {
    free(d->memory);
    if (core != 0) *newtype = front_handle(FRONT_DATATYPE, core);
    return front_error(rc);
}

int front_Type_create_darray(int size, int rank, int ndims, const int gsizes[], const int distribs[],
                             const int dargs[], const int psizes[], int order, front_handle_t oldtype,
                             front_handle_t *newtype) {
    int core = 0;
    front_distribution_t d;
    if (!front_distribution_open(&d, ndims, distribs, dargs)) return FRONT_ERR_NO_MEM;
    int rc = MPY_CORE(Type_create_darray)(size, rank, ndims, gsizes, d.distribs, d.dargs, psizes, core_order(order),
                                          core_handle(oldtype), newtype != NULL ? &core : NULL);
    return front_distribution_close(&d, rc, core, newtype);
}

/* Constants among the integers of a recipe (MPI-4 5.1.13). large: its sizes are not among the integers. */
static void translate_integers(int combiner, bool large, int integers[]) {
    if (combiner == MPI_COMBINER_SUBARRAY) {
        int *order = &integers[large ? 1 : 1 + 3 * integers[0]];
        *order = front_order(*order);
    } else if (combiner == MPI_COMBINER_DARRAY) {
        int ndims = integers[2], *distribs = &integers[large ? 3 : 3 + ndims], *dargs = distribs + ndims;
        for (int i = 0; i < ndims; i++) {
            distribs[i] = front_distribute(distribs[i]);
            dargs[i] = front_darg(dargs[i]);
        }
        int *order = dargs + 2 * ndims;
        *order = front_order(*order);
    }
}

int *front_contents_open(front_contents_t *c, int64_t max_datatypes) {
    c->core = max_datatypes > LOCAL_ITEMS ? malloc((size_t)max_datatypes * sizeof *c->core) : c->local;
    return c->core;
}

int front_contents_close(front_contents_t *c, int rc, front_handle_t datatype, int integers[],
                         front_handle_t datatypes[]) {
    MPI_Count n_integers, n_addresses, n_large, n_datatypes;
    int combiner;
    if (rc == MPI_SUCCESS)
        rc = MPY_CORE(Type_get_envelope_c)(core_handle(datatype), &n_integers, &n_addresses, &n_large, &n_datatypes,
                                           &combiner);
    if (rc == MPI_SUCCESS) {
        translate_integers(combiner, n_large > 0, integers);
        for (MPI_Count i = 0; i < n_datatypes; i++) datatypes[i] = front_handle(FRONT_DATATYPE, c->core[i]);
    }
    core_handles_free(c->core, c->local);
    return front_error(rc);
}

int front_Type_get_contents(front_handle_t datatype, int max_integers, int max_addresses, int max_datatypes,
                            int integers[], MPI_Aint addresses[], front_handle_t datatypes[]) {
    front_contents_t c;
    if (front_contents_open(&c, max_datatypes) == NULL) return FRONT_ERR_NO_MEM;
    int rc = MPY_CORE(Type_get_contents)(core_handle(datatype), max_integers, max_addresses, max_datatypes, integers,
                                         addresses, datatypes != NULL ? c.core : NULL);
    return front_contents_close(&c, rc, datatype, integers, datatypes);
}
