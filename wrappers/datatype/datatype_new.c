/* datatype_new.c - datatype constructors. Each writes the recipe, as MPI_Type_get_contents would return it (MPI-4
 * 5.1.13). mpy_datatype_construct makes the real type of any recipe: one function for the program's call and for the
 * rebuild.
 *
 * Upper half, no libc. Everything between begin() and end() is in the lower half.
 */
#include "datatype.h"
#include "comm/attr.h"
#include "core/objects.h"
#include "core/abi.h"
#include "environment/errors.h"

/* ---- from recipe to real type ---- */

static int real_base(const mpy_datatype_t *d, int i) {
    return d->bases[i] != NULL ? d->bases[i]->obj.real : mpy_abi_mpich(MPY_ABI_DATATYPE, d->types[i]);
}

static int construct_struct(mpy_datatype_t *d) {
    int local[MPY_LOCAL_TYPES], n = d->ntypes;
    int *types = n <= MPY_LOCAL_TYPES ? local : mpy_alloc((size_t)n * sizeof *types);
    for (int i = 0; i < n; i++) types[i] = real_base(d, i);
    int rc = d->big
                 ? MPY_REAL(Type_create_struct_c)(d->counts[0], d->counts + 1, d->counts + 1 + n, types, &d->obj.real)
                 : MPY_REAL(Type_create_struct)(d->ints[0], d->ints + 1, d->aints, types, &d->obj.real);
    mpy_real_datatypes_free(types, n, local);
    return rc;
}

enum { DIMS_MAX = 64 };

static int construct_darray(mpy_datatype_t *d) {
    int n = d->ints[2], distribs[DIMS_MAX], dargs[DIMS_MAX], old = real_base(d, 0);
    const int *rest = d->ints + 3 + (d->big ? 0 : n); /* after gsizes, if they are among the integers */
    for (int i = 0; i < n && i < DIMS_MAX; i++) {
        distribs[i] = mpy_abi_mpich(MPY_ABI_DISTRIBUTE, rest[i]);
        dargs[i] = rest[n + i] == -1 ? MPI_DISTRIBUTE_DFLT_DARG : rest[n + i];
    }
    int order = mpy_abi_mpich(MPY_ABI_ORDER, rest[3 * n]);
    return d->big ? MPY_REAL(Type_create_darray_c)(d->ints[0], d->ints[1], n, d->counts, distribs, dargs, rest + 2 * n,
                                                   order, old, &d->obj.real)
                  : MPY_REAL(Type_create_darray)(d->ints[0], d->ints[1], n, d->ints + 3, distribs, dargs, rest + 2 * n,
                                                 order, old, &d->obj.real);
}

static int construct_small(mpy_datatype_t *d) {
    const int *i = d->ints;
    const MPI_Aint *a = d->aints;
    int *real = &d->obj.real, old = d->ntypes > 0 ? real_base(d, 0) : 0;
    switch (mpy_abi_mpich(MPY_ABI_COMBINER, d->combiner)) {
    case MPI_COMBINER_DUP: return MPY_REAL(Type_dup)(old, real);
    case MPI_COMBINER_CONTIGUOUS: return MPY_REAL(Type_contiguous)(i[0], old, real);
    case MPI_COMBINER_VECTOR: return MPY_REAL(Type_vector)(i[0], i[1], i[2], old, real);
    case MPI_COMBINER_HVECTOR: return MPY_REAL(Type_create_hvector)(i[0], i[1], a[0], old, real);
    case MPI_COMBINER_INDEXED: return MPY_REAL(Type_indexed)(i[0], i + 1, i + 1 + (d->nints - 1) / 2, old, real);
    case MPI_COMBINER_HINDEXED: return MPY_REAL(Type_create_hindexed)(i[0], i + 1, a, old, real);
    case MPI_COMBINER_INDEXED_BLOCK: return MPY_REAL(Type_create_indexed_block)(i[0], i[1], i + 2, old, real);
    case MPI_COMBINER_HINDEXED_BLOCK: return MPY_REAL(Type_create_hindexed_block)(i[0], i[1], a, old, real);
    case MPI_COMBINER_RESIZED: return MPY_REAL(Type_create_resized)(old, a[0], a[1], real);
    case MPI_COMBINER_SUBARRAY: {
        int n = (d->nints - 2) / 3, order = mpy_abi_mpich(MPY_ABI_ORDER, i[d->nints - 1]);
        return MPY_REAL(Type_create_subarray)(i[0], i + 1, i + 1 + n, i + 1 + 2 * n, order, old, real);
    }
    case MPI_COMBINER_F90_REAL: return MPY_REAL(Type_create_f90_real)(i[0], i[1], real);
    case MPI_COMBINER_F90_COMPLEX: return MPY_REAL(Type_create_f90_complex)(i[0], i[1], real);
    case MPI_COMBINER_F90_INTEGER: return MPY_REAL(Type_create_f90_integer)(i[0], real);
    case MPI_COMBINER_VALUE_INDEX: return MPY_REAL(Type_get_value_index)(old, real_base(d, 1), real);
    }
    return MPI_ERR_INTERN;
}

static int construct_big(mpy_datatype_t *d) {
    const MPI_Count *c = d->counts;
    int *real = &d->obj.real, old = real_base(d, 0);
    switch (mpy_abi_mpich(MPY_ABI_COMBINER, d->combiner)) {
    case MPI_COMBINER_CONTIGUOUS: return MPY_REAL(Type_contiguous_c)(c[0], old, real);
    case MPI_COMBINER_VECTOR: return MPY_REAL(Type_vector_c)(c[0], c[1], c[2], old, real);
    case MPI_COMBINER_HVECTOR: return MPY_REAL(Type_create_hvector_c)(c[0], c[1], c[2], old, real);
    case MPI_COMBINER_INDEXED: return MPY_REAL(Type_indexed_c)(c[0], c + 1, c + 1 + (d->ncounts - 1) / 2, old, real);
    case MPI_COMBINER_HINDEXED:
        return MPY_REAL(Type_create_hindexed_c)(c[0], c + 1, c + 1 + (d->ncounts - 1) / 2, old, real);
    case MPI_COMBINER_INDEXED_BLOCK: return MPY_REAL(Type_create_indexed_block_c)(c[0], c[1], c + 2, old, real);
    case MPI_COMBINER_HINDEXED_BLOCK: return MPY_REAL(Type_create_hindexed_block_c)(c[0], c[1], c + 2, old, real);
    case MPI_COMBINER_RESIZED: return MPY_REAL(Type_create_resized_c)(old, c[0], c[1], real);
    case MPI_COMBINER_SUBARRAY: {
        int n = d->ncounts / 3, order = mpy_abi_mpich(MPY_ABI_ORDER, d->ints[1]);
        return MPY_REAL(Type_create_subarray_c)(d->ints[0], c, c + n, c + 2 * n, order, old, real);
    }
    }
    return MPI_ERR_INTERN;
}

static int construct(mpy_datatype_t *d) {
    int combiner = mpy_abi_mpich(MPY_ABI_COMBINER, d->combiner);
    if (combiner == MPI_COMBINER_STRUCT) return construct_struct(d);
    if (combiner == MPI_COMBINER_DARRAY) return construct_darray(d);
    return d->big ? construct_big(d) : construct_small(d);
}

int mpy_datatype_construct(mpy_datatype_t *d) {
    int rc = construct(d), small = 0;
    /* older libraries have no Type_size_c */
    if (rc == 0 && MPY_REAL(Type_size)(d->obj.real, &small) == 0) d->size = small;
    /* MPI_UNDEFINED: the size doesn't fit into an int */
    if (rc == 0 && small < 0) MPY_REAL(Type_size_c)(d->obj.real, &d->size);
    return rc;
}

/* ---- the program's calls ---- */

typedef struct making {
    mpy_thread_t *t;
    mpy_datatype_t *d;
} making_t;

/* Lengths of arrays may be invalid (negative): the real library returns the error. */
static int length(int64_t n) { return n < 0 ? 0 : (int)n; }

static making_t begin(int combiner, bool big, int nints, int naints, int ncounts, int ntypes) {
    making_t m = {.t = mpy_self()};
    mpy_cross_in(m.t);
    m.d = mpy_datatype_blank(combiner, big, nints, naints, ncounts, ntypes);
    return m;
}

static int end(making_t m, MPI_Datatype *newtype, const char *name) {
    int rc = newtype != NULL ? mpy_datatype_construct(m.d) : MPI_ERR_ARG;
    if (rc == 0)
        *newtype = mpy_datatype_add(m.d);
    else
        mpy_datatype_destroy(m.d);
    mpy_cross_out(m.t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, mpy_or_null(rc, newtype, MPI_DATATYPE_NULL), name);
}

static void ints(mpy_datatype_t *d, int at, const int *values, int64_t n) {
    if (n > 0) __builtin_memcpy(d->ints + at, values, (size_t)n * sizeof *values);
}
static void aints(mpy_datatype_t *d, const MPI_Aint *values, int64_t n) {
    if (n > 0) __builtin_memcpy(d->aints, values, (size_t)n * sizeof *values);
}
static void counts(mpy_datatype_t *d, int at, const MPI_Count *values, int64_t n) {
    if (n > 0) __builtin_memcpy(d->counts + at, values, (size_t)n * sizeof *values);
}

/* The callbacks run first, as with communicators: if one fails, no type is created. */
int PMPI_Type_dup(MPI_Datatype oldtype, MPI_Datatype *newtype) {
    static const char name[] = "MPI_Type_dup";
    mpy_attr_t **list = mpy_datatype_attrs(oldtype), *attrs = NULL;
    int rc = list != NULL ? mpy_attrs_copy(oldtype, list, &attrs) : MPI_SUCCESS;
    if (rc != 0) return mpy_error(NULL, mpy_or_null(rc, newtype, MPI_DATATYPE_NULL), name);
    making_t m = begin(MPI_COMBINER_DUP, false, 0, 0, 0, 1);
    mpy_datatype_base(m.d, 0, oldtype);
    m.d->committed = m.d->bases[0] == NULL || m.d->bases[0]->committed;
    m.d->attrs = attrs;
    rc = end(m, newtype, name);
    if (rc != 0) mpy_attrs_delete(oldtype, &attrs);
    return rc;
}

int PMPI_Type_contiguous(int count, MPI_Datatype oldtype, MPI_Datatype *newtype) {
    making_t m = begin(MPI_COMBINER_CONTIGUOUS, false, 1, 0, 0, 1);
    m.d->ints[0] = count;
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_contiguous");
}

int PMPI_Type_contiguous_c(MPI_Count count, MPI_Datatype oldtype, MPI_Datatype *newtype) {
    making_t m = begin(MPI_COMBINER_CONTIGUOUS, true, 0, 0, 1, 1);
    m.d->counts[0] = count;
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_contiguous_c");
}

int PMPI_Type_vector(int count, int blocklength, int stride, MPI_Datatype oldtype, MPI_Datatype *newtype) {
    making_t m = begin(MPI_COMBINER_VECTOR, false, 3, 0, 0, 1);
    ints(m.d, 0, (int[]){count, blocklength, stride}, 3);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_vector");
}

int PMPI_Type_vector_c(MPI_Count count, MPI_Count blocklength, MPI_Count stride, MPI_Datatype oldtype,
                       MPI_Datatype *newtype) {
    making_t m = begin(MPI_COMBINER_VECTOR, true, 0, 0, 3, 1);
    counts(m.d, 0, (MPI_Count[]){count, blocklength, stride}, 3);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_vector_c");
}

int PMPI_Type_create_hvector(int count, int blocklength, MPI_Aint stride, MPI_Datatype oldtype, MPI_Datatype *newtype) {
    making_t m = begin(MPI_COMBINER_HVECTOR, false, 2, 1, 0, 1);
    ints(m.d, 0, (int[]){count, blocklength}, 2);
    m.d->aints[0] = stride;
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_hvector");
}
int PMPI_Type_hvector(int count, int blocklength, MPI_Aint stride, MPI_Datatype oldtype, MPI_Datatype *newtype) {
    return PMPI_Type_create_hvector(count, blocklength, stride, oldtype, newtype);
}

int PMPI_Type_create_hvector_c(MPI_Count count, MPI_Count blocklength, MPI_Count stride, MPI_Datatype oldtype,
                               MPI_Datatype *newtype) {
    making_t m = begin(MPI_COMBINER_HVECTOR, true, 0, 0, 3, 1);
    counts(m.d, 0, (MPI_Count[]){count, blocklength, stride}, 3);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_hvector_c");
}

int PMPI_Type_indexed(int count, const int blocklengths[], const int displacements[], MPI_Datatype oldtype,
                      MPI_Datatype *newtype) {
    int n = length(count);
    making_t m = begin(MPI_COMBINER_INDEXED, false, 1 + 2 * n, 0, 0, 1);
    m.d->ints[0] = count;
    ints(m.d, 1, blocklengths, n);
    ints(m.d, 1 + n, displacements, n);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_indexed");
}

static int indexed_big(int combiner, MPI_Count count, const MPI_Count *blocklengths, const MPI_Count *displacements,
                       MPI_Datatype oldtype, MPI_Datatype *newtype, const char *name) {
    int n = length(count);
    making_t m = begin(combiner, true, 0, 0, 1 + 2 * n, 1);
    m.d->counts[0] = count;
    counts(m.d, 1, blocklengths, n);
    counts(m.d, 1 + n, displacements, n);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, name);
}
int PMPI_Type_indexed_c(MPI_Count count, const MPI_Count blocklengths[], const MPI_Count displacements[],
                        MPI_Datatype oldtype, MPI_Datatype *newtype) {
    return indexed_big(MPI_COMBINER_INDEXED, count, blocklengths, displacements, oldtype, newtype,
                       "MPI_Type_indexed_c");
}
int PMPI_Type_create_hindexed_c(MPI_Count count, const MPI_Count blocklengths[], const MPI_Count displacements[],
                                MPI_Datatype oldtype, MPI_Datatype *newtype) {
    return indexed_big(MPI_COMBINER_HINDEXED, count, blocklengths, displacements, oldtype, newtype,
                       "MPI_Type_create_hindexed_c");
}

int PMPI_Type_create_hindexed(int count, const int blocklengths[], const MPI_Aint displacements[], MPI_Datatype oldtype,
                              MPI_Datatype *newtype) {
    int n = length(count);
    making_t m = begin(MPI_COMBINER_HINDEXED, false, 1 + n, n, 0, 1);
    m.d->ints[0] = count;
    ints(m.d, 1, blocklengths, n);
    aints(m.d, displacements, n);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_hindexed");
}
int PMPI_Type_hindexed(int count, int blocklengths[], MPI_Aint displacements[], MPI_Datatype oldtype,
                       MPI_Datatype *newtype) {
    return PMPI_Type_create_hindexed(count, blocklengths, displacements, oldtype, newtype);
}

int PMPI_Type_create_indexed_block(int count, int blocklength, const int displacements[], MPI_Datatype oldtype,
                                   MPI_Datatype *newtype) {
    int n = length(count);
    making_t m = begin(MPI_COMBINER_INDEXED_BLOCK, false, 2 + n, 0, 0, 1);
    ints(m.d, 0, (int[]){count, blocklength}, 2);
    ints(m.d, 2, displacements, n);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_indexed_block");
}

int PMPI_Type_create_hindexed_block(int count, int blocklength, const MPI_Aint displacements[], MPI_Datatype oldtype,
                                    MPI_Datatype *newtype) {
    int n = length(count);
    making_t m = begin(MPI_COMBINER_HINDEXED_BLOCK, false, 2, n, 0, 1);
    ints(m.d, 0, (int[]){count, blocklength}, 2);
    aints(m.d, displacements, n);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_hindexed_block");
}

static int block_big(int combiner, MPI_Count count, MPI_Count blocklength, const MPI_Count *displacements,
                     MPI_Datatype oldtype, MPI_Datatype *newtype, const char *name) {
    int n = length(count);
    making_t m = begin(combiner, true, 0, 0, 2 + n, 1);
    counts(m.d, 0, (MPI_Count[]){count, blocklength}, 2);
    counts(m.d, 2, displacements, n);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, name);
}
int PMPI_Type_create_indexed_block_c(MPI_Count count, MPI_Count blocklength, const MPI_Count displacements[],
                                     MPI_Datatype oldtype, MPI_Datatype *newtype) {
    return block_big(MPI_COMBINER_INDEXED_BLOCK, count, blocklength, displacements, oldtype, newtype,
                     "MPI_Type_create_indexed_block_c");
}
int PMPI_Type_create_hindexed_block_c(MPI_Count count, MPI_Count blocklength, const MPI_Count displacements[],
                                      MPI_Datatype oldtype, MPI_Datatype *newtype) {
    return block_big(MPI_COMBINER_HINDEXED_BLOCK, count, blocklength, displacements, oldtype, newtype,
                     "MPI_Type_create_hindexed_block_c");
}

int PMPI_Type_create_struct(int count, const int blocklengths[], const MPI_Aint displacements[],
                            const MPI_Datatype types[], MPI_Datatype *newtype) {
    int n = length(count);
    making_t m = begin(MPI_COMBINER_STRUCT, false, 1 + n, n, 0, n);
    m.d->ints[0] = count;
    ints(m.d, 1, blocklengths, n);
    aints(m.d, displacements, n);
    for (int i = 0; i < n; i++) mpy_datatype_base(m.d, i, types[i]);
    return end(m, newtype, "MPI_Type_create_struct");
}
int PMPI_Type_struct(int count, int blocklengths[], MPI_Aint displacements[], MPI_Datatype types[],
                     MPI_Datatype *newtype) {
    return PMPI_Type_create_struct(count, blocklengths, displacements, types, newtype);
}

int PMPI_Type_create_struct_c(MPI_Count count, const MPI_Count blocklengths[], const MPI_Count displacements[],
                              const MPI_Datatype types[], MPI_Datatype *newtype) {
    int n = length(count);
    making_t m = begin(MPI_COMBINER_STRUCT, true, 0, 0, 1 + 2 * n, n);
    m.d->counts[0] = count;
    counts(m.d, 1, blocklengths, n);
    counts(m.d, 1 + n, displacements, n);
    for (int i = 0; i < n; i++) mpy_datatype_base(m.d, i, types[i]);
    return end(m, newtype, "MPI_Type_create_struct_c");
}

int PMPI_Type_create_resized(MPI_Datatype oldtype, MPI_Aint lb, MPI_Aint extent, MPI_Datatype *newtype) {
    making_t m = begin(MPI_COMBINER_RESIZED, false, 0, 2, 0, 1);
    aints(m.d, (MPI_Aint[]){lb, extent}, 2);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_resized");
}

int PMPI_Type_create_resized_c(MPI_Datatype oldtype, MPI_Count lb, MPI_Count extent, MPI_Datatype *newtype) {
    making_t m = begin(MPI_COMBINER_RESIZED, true, 0, 0, 2, 1);
    counts(m.d, 0, (MPI_Count[]){lb, extent}, 2);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_resized_c");
}

int PMPI_Type_create_subarray(int ndims, const int sizes[], const int subsizes[], const int starts[], int order,
                              MPI_Datatype oldtype, MPI_Datatype *newtype) {
    int n = length(ndims);
    making_t m = begin(MPI_COMBINER_SUBARRAY, false, 2 + 3 * n, 0, 0, 1);
    m.d->ints[0] = ndims;
    ints(m.d, 1, sizes, n);
    ints(m.d, 1 + n, subsizes, n);
    ints(m.d, 1 + 2 * n, starts, n);
    m.d->ints[1 + 3 * n] = mpy_abi_standard(MPY_ABI_ORDER, order);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_subarray");
}

int PMPI_Type_create_subarray_c(int ndims, const MPI_Count sizes[], const MPI_Count subsizes[],
                                const MPI_Count starts[], int order, MPI_Datatype oldtype, MPI_Datatype *newtype) {
    int n = length(ndims);
    making_t m = begin(MPI_COMBINER_SUBARRAY, true, 2, 0, 3 * n, 1);
    m.d->ints[0] = ndims;
    m.d->ints[1] = mpy_abi_standard(MPY_ABI_ORDER, order);
    counts(m.d, 0, sizes, n);
    counts(m.d, n, subsizes, n);
    counts(m.d, 2 * n, starts, n);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_subarray_c");
}

/* Converts distributions and the default argument (recorded as -1, which is no valid argument) to standard values. */
static void distribution(int *to, int n, const int *distribs, const int *dargs, const int *psizes, int order) {
    for (int i = 0; i < n; i++) {
        to[i] = mpy_abi_standard(MPY_ABI_DISTRIBUTE, distribs[i]);
        to[n + i] = dargs[i] == MPI_DISTRIBUTE_DFLT_DARG ? -1 : dargs[i];
        to[2 * n + i] = psizes[i];
    }
    to[3 * n] = mpy_abi_standard(MPY_ABI_ORDER, order);
}

int PMPI_Type_create_darray(int size, int rank, int ndims, const int gsizes[], const int distribs[], const int dargs[],
                            const int psizes[], int order, MPI_Datatype oldtype, MPI_Datatype *newtype) {
    int n = length(ndims);
    if (n > DIMS_MAX) return mpy_error(NULL, MPI_ERR_ARG, "MPI_Type_create_darray");
    making_t m = begin(MPI_COMBINER_DARRAY, false, 4 + 4 * n, 0, 0, 1);
    ints(m.d, 0, (int[]){size, rank, ndims}, 3);
    ints(m.d, 3, gsizes, n);
    distribution(m.d->ints + 3 + n, n, distribs, dargs, psizes, order);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_darray");
}

int PMPI_Type_create_darray_c(int size, int rank, int ndims, const MPI_Count gsizes[], const int distribs[],
                              const int dargs[], const int psizes[], int order, MPI_Datatype oldtype,
                              MPI_Datatype *newtype) {
    int n = length(ndims);
    if (n > DIMS_MAX) return mpy_error(NULL, MPI_ERR_ARG, "MPI_Type_create_darray_c");
    making_t m = begin(MPI_COMBINER_DARRAY, true, 4 + 3 * n, 0, n, 1);
    ints(m.d, 0, (int[]){size, rank, ndims}, 3);
    counts(m.d, 0, gsizes, n);
    distribution(m.d->ints + 3, n, distribs, dargs, psizes, order);
    mpy_datatype_base(m.d, 0, oldtype);
    return end(m, newtype, "MPI_Type_create_darray_c");
}

/* ---- types that the library creates once and that are never freed: Fortran 90's, and pairs of value and index ---- */

static int permanent(making_t m, MPI_Datatype *newtype, const char *name) {
    mpy_datatype_t *known = mpy_datatype_find_permanent(m.d);
    if (known != NULL) {
        mpy_datatype_destroy(m.d);
        *newtype = known->obj.handle;
        mpy_cross_out(m.t);
        return MPI_SUCCESS;
    }
    m.d->permanent = m.d->committed = true;
    return end(m, newtype, name);
}

static int f90(int combiner, const int *values, int n, MPI_Datatype *newtype, const char *name) {
    making_t m = begin(combiner, false, n, 0, 0, 0);
    ints(m.d, 0, values, n);
    return permanent(m, newtype, name);
}
int PMPI_Type_create_f90_real(int p, int r, MPI_Datatype *newtype) {
    return f90(MPI_COMBINER_F90_REAL, (int[]){p, r}, 2, newtype, "MPI_Type_create_f90_real");
}
int PMPI_Type_create_f90_complex(int p, int r, MPI_Datatype *newtype) {
    return f90(MPI_COMBINER_F90_COMPLEX, (int[]){p, r}, 2, newtype, "MPI_Type_create_f90_complex");
}
int PMPI_Type_create_f90_integer(int r, MPI_Datatype *newtype) {
    return f90(MPI_COMBINER_F90_INTEGER, (int[]){r}, 1, newtype, "MPI_Type_create_f90_integer");
}

/* Returns MPI_DATATYPE_NULL, a predefined pair type, or a pair type that the library has created. */
int PMPI_Type_get_value_index(MPI_Datatype value_type, MPI_Datatype index_type, MPI_Datatype *pair_type) {
    making_t m = begin(MPI_COMBINER_VALUE_INDEX, false, 0, 0, 0, 2);
    mpy_datatype_base(m.d, 0, value_type);
    mpy_datatype_base(m.d, 1, index_type);
    int real, rc = MPY_REAL(Type_get_value_index)(mpy_real_datatype(value_type), mpy_real_datatype(index_type), &real);
    if (rc == 0 && real != MPI_DATATYPE_NULL && !mpy_datatype_predefined(real))
        return permanent(m, pair_type, "MPI_Type_get_value_index");
    mpy_datatype_destroy(m.d);
    if (rc == 0) *pair_type = real;
    mpy_cross_out(m.t);
    return rc == 0 ? rc : mpy_error(NULL, rc, "MPI_Type_get_value_index");
}
