/* datatype_query.c - queries of a datatype's structure: envelope, contents, size. For derived types the recipe has the
 * answers. For queries that MPI-3 has removed, their successors are called, because a library of the standard ABI may
 * lack the removed ones.
 *
 * Upper half, no libc.
 */
#include "datatype.h"
#include "core/objects.h"
#include "core/abi.h"
#include "environment/errors.h"

/* ---- envelope ---- */

int PMPI_Type_get_envelope(MPI_Datatype datatype, int *num_integers, int *num_addresses, int *num_datatypes,
                           int *combiner) {
    const mpy_datatype_t *d = mpy_datatype(datatype);
    if (d != NULL && !d->big) {
        *num_integers = d->nints;
        *num_addresses = d->naints;
        *num_datatypes = d->ntypes;
        *combiner = mpy_abi_mpich(MPY_ABI_COMBINER, d->combiner);
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc =
        MPY_REAL(Type_get_envelope)(mpy_real_datatype(datatype), num_integers, num_addresses, num_datatypes, combiner);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Type_get_envelope");
}

int PMPI_Type_get_envelope_c(MPI_Datatype datatype, MPI_Count *num_integers, MPI_Count *num_addresses,
                             MPI_Count *num_large_counts, MPI_Count *num_datatypes, int *combiner) {
    const mpy_datatype_t *d = mpy_datatype(datatype);
    if (d != NULL) {
        *num_integers = d->nints;
        *num_addresses = d->naints;
        *num_large_counts = d->ncounts;
        *num_datatypes = d->ntypes;
        *combiner = mpy_abi_mpich(MPY_ABI_COMBINER, d->combiner);
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Type_get_envelope_c)(mpy_real_datatype(datatype), num_integers, num_addresses, num_large_counts,
                                           num_datatypes, combiner);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Type_get_envelope_c");
}

/* ---- contents ---- */

/* Converts recorded constants among the integers back to the program's values. */
static int64_t program_int(const mpy_datatype_t *d, int i) {
    int combiner = mpy_abi_mpich(MPY_ABI_COMBINER, d->combiner), value = d->ints[i];
    if (combiner == MPI_COMBINER_SUBARRAY && i == d->nints - 1) return mpy_abi_mpich(MPY_ABI_ORDER, value);
    if (combiner != MPI_COMBINER_DARRAY) return value;
    /* order of the integers: distributions, arguments, process grid, order */
    int n = d->ints[2], first = d->big ? 3 : 3 + n;
    if (i >= first && i < first + n) return mpy_abi_mpich(MPY_ABI_DISTRIBUTE, value);
    if (i >= first + n && i < first + 2 * n) return value == -1 ? MPI_DISTRIBUTE_DFLT_DARG : value;
    return i == d->nints - 1 ? mpy_abi_mpich(MPY_ABI_ORDER, value) : value;
}

/* A reference for the program. In the lower half. */
static int program_base(const mpy_datatype_t *d, int i) {
    mpy_datatype_t *base = d->bases[i];
    return base != NULL ? mpy_datatype_give(base) : mpy_abi_mpich(MPY_ABI_DATATYPE, d->types[i]);
}

static int get_contents(const mpy_datatype_t *d, int64_t max_ints, int64_t max_aints, int64_t max_counts,
                        int64_t max_types, int *integers, MPI_Aint *addresses, MPI_Count *counts, MPI_Datatype *types,
                        const char *name) {
    int combiner = mpy_abi_mpich(MPY_ABI_COMBINER, d->combiner);
    if (max_ints < d->nints || max_aints < d->naints || max_counts < d->ncounts || max_types < d->ntypes)
        return mpy_error(NULL, MPI_ERR_OTHER, name);
    if (combiner == MPI_COMBINER_NAMED) return mpy_error(NULL, MPI_ERR_TYPE, name);
    for (int i = 0; i < d->nints; i++) integers[i] = (int)program_int(d, i);
    for (int i = 0; i < d->naints; i++) addresses[i] = d->aints[i];
    for (int i = 0; i < d->ncounts; i++) counts[i] = d->counts[i];
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    for (int i = 0; i < d->ntypes; i++) types[i] = program_base(d, i);
    mpy_guard_out(t);
    return MPI_SUCCESS;
}

int PMPI_Type_get_contents(MPI_Datatype datatype, int max_integers, int max_addresses, int max_datatypes,
                           int array_of_integers[], MPI_Aint array_of_addresses[], MPI_Datatype array_of_datatypes[]) {
    const mpy_datatype_t *d = mpy_datatype(datatype);
    if (d != NULL && !d->big)
        return get_contents(d, max_integers, max_addresses, 0, max_datatypes, array_of_integers, array_of_addresses,
                            NULL, array_of_datatypes, "MPI_Type_get_contents");
    mpy_thread_t *t = mpy_self(); /* these return an error: predefined, created with the 64-bit form, or not a type */
    mpy_cross_in(t);
    int rc = MPY_REAL(Type_get_contents)(mpy_real_datatype(datatype), max_integers, max_addresses, max_datatypes,
                                         array_of_integers, array_of_addresses, array_of_datatypes);
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Type_get_contents");
}

int PMPI_Type_get_contents_c(MPI_Datatype datatype, MPI_Count max_integers, MPI_Count max_addresses,
                             MPI_Count max_large_counts, MPI_Count max_datatypes, int array_of_integers[],
                             MPI_Aint array_of_addresses[], MPI_Count array_of_large_counts[],
                             MPI_Datatype array_of_datatypes[]) {
    const mpy_datatype_t *d = mpy_datatype(datatype);
    if (d != NULL)
        return get_contents(d, max_integers, max_addresses, max_large_counts, max_datatypes, array_of_integers,
                            array_of_addresses, array_of_large_counts, array_of_datatypes, "MPI_Type_get_contents_c");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Type_get_contents_c)(mpy_real_datatype(datatype), max_integers, max_addresses, max_large_counts,
                                           max_datatypes, array_of_integers, array_of_addresses, array_of_large_counts,
                                           array_of_datatypes);
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Type_get_contents_c");
}

/* ---- size ---- */

int PMPI_Type_size(MPI_Datatype datatype, int *size) {
    int known = (int)mpy_basic_size(datatype);
    if (MPY_LIKELY(mpy_is_basic(datatype)) && known != 0) {
        *size = known;
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Type_size)(mpy_real_datatype(datatype), size);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Type_size");
}

int PMPI_Type_size_c(MPI_Datatype datatype, MPI_Count *size) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Type_size_c)(mpy_real_datatype(datatype), size);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Type_size_c");
}

/* ---- extent: what MPI-3 has removed ---- */

int PMPI_Type_extent(MPI_Datatype datatype, MPI_Aint *extent) {
    MPI_Aint lb;
    return PMPI_Type_get_extent(datatype, &lb, extent);
}
int PMPI_Type_lb(MPI_Datatype datatype, MPI_Aint *displacement) {
    MPI_Aint extent;
    return PMPI_Type_get_extent(datatype, displacement, &extent);
}
int PMPI_Type_ub(MPI_Datatype datatype, MPI_Aint *displacement) {
    MPI_Aint lb, extent;
    int rc = PMPI_Type_get_extent(datatype, &lb, &extent);
    if (rc == MPI_SUCCESS) *displacement = lb + extent;
    return rc;
}

/* ---- a predefined type: the same handle in both halves ---- */

int PMPI_Type_match_size(int typeclass, int size, MPI_Datatype *datatype) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Type_match_size)(typeclass, size, datatype);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Type_match_size");
}
