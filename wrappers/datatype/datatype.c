/* datatype.c - datatypes as objects: life cycle, names, attributes, rebuilding. Constructors are in datatype_new.c,
 * queries of their structure in datatype_query.c.
 *
 * Upper half, no libc.
 *
 * A derived type is its recipe (combiner, integers, addresses, counts, base types), kept in standard-ABI values. The
 * real type is made from the recipe, both at the constructor's call and at a rebuild.
 *
 * Invariants
 *  1. A type lives while the program holds it (handles) or one of our objects refers to it (obj.refs: 1 for all the
 *     program's references, 1 for each type made from it, 1 for each pending request). The real type lives equally
 *     long.
 *  2. The list `all` is in order of creation: base types come before types that are made from them.
 *  3. Predefined types have no object. What the program attaches to them (names, attributes) is in `predefined`.
 */
#include "datatype.h"
#include "comm/attr.h"
#include "core/objects.h"
#include "core/abi.h"
#include "environment/errors.h"

typedef struct predefined { struct predefined *next; int handle; mpy_attr_t *attrs; char *name; } predefined_t;

static mpy_link_t all = {&all, &all};
static predefined_t *predefined;

#define TYPE(LINK) ((mpy_datatype_t *)((char *)(LINK) - offsetof(mpy_datatype_t, all)))

mpy_datatype_t *mpy_datatype(int handle) { return (mpy_datatype_t *)mpy_lookup(MPY_DATATYPE, handle); }

bool mpy_datatype_predefined(int handle) {
    return mpy_is_builtin(handle) || ((uint32_t)handle >= 0x8c000000u && (uint32_t)handle <= 0x8c000004u);
}

/* ---- recipes ---- */

mpy_datatype_t *mpy_datatype_blank(int combiner, bool big, int nints, int naints, int ncounts, int ntypes) {
    mpy_datatype_t *d = mpy_alloc(sizeof *d);
    d->combiner = mpy_abi_standard(MPY_ABI_COMBINER, combiner);
    d->big = big;
    d->nints = nints;
    d->naints = naints;
    d->ncounts = ncounts;
    d->ntypes = ntypes;
    d->ints = mpy_alloc((size_t)nints * sizeof *d->ints);
    d->aints = mpy_alloc((size_t)naints * sizeof *d->aints);
    d->counts = mpy_alloc((size_t)ncounts * sizeof *d->counts);
    d->types = mpy_alloc((size_t)ntypes * sizeof *d->types);
    d->bases = mpy_alloc((size_t)ntypes * sizeof *d->bases);
    return d;
}

void mpy_datatype_base(mpy_datatype_t *d, int i, int handle) {
    mpy_datatype_t *base = mpy_datatype(handle);
    if (base != NULL) {
        mpy_object_ref(&base->obj);
        d->bases[i] = base;
    } else {
        d->types[i] = (uint32_t)handle >> 30 <= 1 || mpy_datatype_predefined(handle)
                          ? mpy_abi_standard(MPY_ABI_DATATYPE, handle)
                          : 0;
    }
}

int mpy_datatype_add(mpy_datatype_t *d) {
    d->obj.refs = 1;
    d->handles = 1;
    mpy_lock(&mpy_objects_lock);
    mpy_link_append(&all, &d->all);
    mpy_unlock(&mpy_objects_lock);
    return mpy_object_add(MPY_DATATYPE, &d->obj);
}

/* Called for the last reference (mpy_object_unref), or for a recipe that failed (no real type, not in the list). In the
 * lower half. */
void mpy_datatype_destroy(mpy_datatype_t *d) {
    if (d->all.next != NULL) {
        MPY_REAL(Type_free)(&d->obj.real);
        mpy_lock(&mpy_objects_lock);
        mpy_link_remove(&d->all);
        mpy_unlock(&mpy_objects_lock);
    }
    for (int i = 0; i < d->ntypes; i++)
        if (d->bases[i] != NULL) mpy_object_unref(MPY_DATATYPE, &d->bases[i]->obj);
    mpy_text_free(d->name);
    mpy_free(d->ints, (size_t)d->nints * sizeof *d->ints);
    mpy_free(d->aints, (size_t)d->naints * sizeof *d->aints);
    mpy_free(d->counts, (size_t)d->ncounts * sizeof *d->counts);
    mpy_free(d->types, (size_t)d->ntypes * sizeof *d->types);
    mpy_free(d->bases, (size_t)d->ntypes * sizeof *d->bases);
    mpy_free(d, sizeof *d);
}

/* Finds a permanent type with the same recipe. */
mpy_datatype_t *mpy_datatype_find_permanent(const mpy_datatype_t *like) {
    mpy_datatype_t *found = NULL;
    mpy_lock(&mpy_objects_lock);
    for (mpy_link_t *l = all.next; l != &all && found == NULL; l = l->next) {
        mpy_datatype_t *d = TYPE(l);
        if (d->permanent && d->combiner == like->combiner &&
            __builtin_memcmp(d->ints, like->ints, (size_t)like->nints * sizeof *d->ints) == 0 &&
            __builtin_memcmp(d->types, like->types, (size_t)like->ntypes * sizeof *d->types) == 0 &&
            __builtin_memcmp(d->bases, like->bases, (size_t)like->ntypes * sizeof *d->bases) == 0)
            found = d;
    }
    mpy_unlock(&mpy_objects_lock);
    return found;
}

/* For user operations, with the lower TLS. */
int mpy_datatype_virtual(int real) {
    if (mpy_datatype_predefined(real)) return real;
    int handle = MPI_DATATYPE_NULL;
    mpy_lock(&mpy_objects_lock);
    mpy_link_t *l = all.next;
    while (l != &all && TYPE(l)->obj.real != real) l = l->next;
    if (l != &all) handle = TYPE(l)->obj.handle;
    mpy_unlock(&mpy_objects_lock);
    return handle;
}

/* ---- life cycle ---- */

int PMPI_Type_commit(MPI_Datatype *datatype) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_datatype_t *d = mpy_datatype(*datatype);
    int real = mpy_real_datatype(*datatype);
    int rc = MPY_REAL(Type_commit)(&real);
    if (rc == 0 && d != NULL) d->committed = true;
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Type_commit");
}

int PMPI_Type_free(MPI_Datatype *datatype) {
    mpy_thread_t *t = mpy_self();
    mpy_datatype_t *d = mpy_datatype(*datatype);
    int rc = 0;
    if (d == NULL || d->permanent) { /* the real library returns the error */
        mpy_cross_in(t);
        int real = mpy_real_datatype(*datatype);
        rc = MPY_REAL(Type_free)(&real);
        mpy_cross_out(t);
        return mpy_error(NULL, rc, "MPI_Type_free");
    }
    mpy_cross_in(t);
    mpy_lock(&mpy_objects_lock); /* see mpy_datatype_give */
    if (d->handles == 1 && d->attrs != NULL) {
        mpy_unlock(&mpy_objects_lock);
        mpy_cross_out(t);
        if ((rc = mpy_attrs_delete(*datatype, &d->attrs)) != 0) return mpy_error(NULL, rc, "MPI_Type_free");
        mpy_cross_in(t);
        mpy_lock(&mpy_objects_lock);
    }
    bool last = --d->handles == 0;
    if (last && d->lent == 0) mpy_object_remove(MPY_DATATYPE, d->obj.handle);
    mpy_unlock(&mpy_objects_lock);
    if (last) mpy_object_unref(MPY_DATATYPE, &d->obj);
    mpy_cross_out(t);
    *datatype = MPI_DATATYPE_NULL;
    return MPI_SUCCESS;
}

/* With mpy_objects_lock. */
static void needs_handle(mpy_datatype_t *d) {
    if (d->handles == 0 && d->lent == 0) mpy_object_add(MPY_DATATYPE, &d->obj);
}

int mpy_datatype_give(mpy_datatype_t *d) {
    mpy_lock(&mpy_objects_lock);
    needs_handle(d);
    if (d->handles++ == 0) mpy_object_ref(&d->obj);
    mpy_unlock(&mpy_objects_lock);
    return d->obj.handle;
}

int mpy_datatype_lend(mpy_datatype_t *d) {
    mpy_lock(&mpy_objects_lock);
    needs_handle(d);
    d->lent++;
    mpy_unlock(&mpy_objects_lock);
    return d->obj.handle;
}

void mpy_datatype_take_back(mpy_datatype_t *d) {
    mpy_lock(&mpy_objects_lock);
    if (--d->lent == 0 && d->handles == 0) mpy_object_remove(MPY_DATATYPE, d->obj.handle);
    mpy_unlock(&mpy_objects_lock);
}

/* ---- names and attributes ---- */

/* What the program has attached to a predefined type; created at the first call for this type. In the lower half. */
static predefined_t *hung_on(int handle) {
    mpy_lock(&mpy_objects_lock);
    predefined_t *p = predefined;
    while (p != NULL && p->handle != handle) p = p->next;
    if (p == NULL) {
        p = mpy_alloc(sizeof *p);
        p->handle = handle;
        p->next = predefined;
        predefined = p;
    }
    mpy_unlock(&mpy_objects_lock);
    return p;
}

int PMPI_Type_set_name(MPI_Datatype datatype, const char *name) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_datatype_t *d = mpy_datatype(datatype);
    int rc = MPY_REAL(Type_set_name)(mpy_real_datatype(datatype), name);
    if (rc == 0) {
        char **kept = d != NULL ? &d->name : &hung_on(datatype)->name;
        mpy_text_free(*kept);
        *kept = mpy_text_copy(name);
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Type_set_name");
}

int PMPI_Type_get_name(MPI_Datatype datatype, char *name, int *resultlen) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Type_get_name)(mpy_real_datatype(datatype), name, resultlen);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Type_get_name");
}

mpy_attr_t **mpy_datatype_attrs(int handle) {
    mpy_datatype_t *d = mpy_datatype(handle);
    if (d != NULL) return &d->attrs;
    if (!mpy_datatype_predefined(handle)) return NULL;
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    predefined_t *p = hung_on(handle);
    mpy_guard_out(t);
    return &p->attrs;
}

/* ---- rebuild ---- */

static int rebuild_one(mpy_datatype_t *d) {
    int rc = mpy_datatype_construct(d);
    if (rc == 0 && d->committed) rc = MPY_REAL(Type_commit)(&d->obj.real);
    if (rc == 0 && d->name != NULL) rc = MPY_REAL(Type_set_name)(d->obj.real, d->name);
    return rc;
}

int mpy_datatype_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    int rc = 0, combiner = 0;
    mpy_hook_in(t);
    for (mpy_link_t *l = all.next; l != &all && rc == 0; l = l->next) {
        combiner = TYPE(l)->combiner;
        rc = rebuild_one(TYPE(l));
    }
    for (predefined_t *p = predefined; p != NULL && rc == 0; p = p->next)
        if (p->name != NULL) rc = MPY_REAL(Type_set_name)(p->handle, p->name);
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild a datatype (combiner %d, MPI error %d)", combiner, rc);
    return -1;
}
