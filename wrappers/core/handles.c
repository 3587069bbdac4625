/* handles.c - handles of the virtual objects. Upper half, either TLS, no libc.
 *
 * A handle looks like one of MPICH: bits 30-31 "direct" (2), bits 26-29 the kind of object. The bits below are our own:
 * bits 18-21 a generation that changes whenever an index is reused, bits 0-17 the index. So a freed handle is
 * recognised (up to 16 reuses), and a lookup is one access and one comparison (runtime.h). As in MPICH, bits 22-25 of a
 * keyval contain the kind of object that it belongs to.
 *
 * Invariants
 *  1. A slot points to a live object whose `handle` is the one given to the program, or is NULL.
 *  2. Indices that MPICH's predefined handles use are never given out: communicators 0 and 1, and the pair types
 *     (MPI_FLOAT_INT ...), which look like derived ones.
 */
#include "objects.h"
#include "collective/op.h"
#include "comm/comm.h"
#include "datatype/datatype.h"

mpy_object_t *mpy_slots[MPY_TABLE_KINDS][1 << MPY_INDEX_BITS];
mpy_comm_t *mpy_world, *mpy_internal_world;
uint32_t mpy_objects_lock;

enum { INDICES = 1 << MPY_INDEX_BITS };

static const uint32_t kind_bits[MPY_TABLE_KINDS] = {
    [MPY_COMM] = 0x84000000, [MPY_GROUP] = 0x88000000, [MPY_DATATYPE] = 0x8c000000,  [MPY_ERRHANDLER] = 0x94000000,
    [MPY_OP] = 0x98000000,   [MPY_INFO] = 0x9c000000,  [MPY_KEYVAL] = 0xa4000000,
    [MPY_WIN] = 0xa0000000,  [MPY_SESSION] = 0xb8000000,
};
static const uint32_t reserved[MPY_TABLE_KINDS] = {[MPY_COMM] = 2, [MPY_DATATYPE] = 5}; /* invariant 2 */

static uint32_t lock;
static uint32_t used[MPY_TABLE_KINDS];                 /* indices ever given out, not counting the reserved ones */
static uint32_t first_free[MPY_TABLE_KINDS];           /* index + 1 */
static uint32_t next_free[MPY_TABLE_KINDS][INDICES];   /* index + 1 */
static uint8_t generation[MPY_TABLE_KINDS][INDICES];

/* `obj->handle` may have bits of its own (keyvals: the kind of object that they belong to). */
int mpy_object_add(mpy_kind_t kind, mpy_object_t *obj) {
    uint32_t index;
    mpy_lock(&lock);
    if (first_free[kind] != 0) {
        index = first_free[kind] - 1;
        first_free[kind] = next_free[kind][index];
    } else {
        index = reserved[kind] + used[kind]++;
        if (index >= INDICES) MPY_LOWER->svc->die("too many MPI objects of one kind at once (262144)", 1);
    }
    uint32_t handle = kind_bits[kind] | ((uint32_t)obj->handle & 0x03c00000u) |
                      (uint32_t)(generation[kind][index] & 15) << MPY_INDEX_BITS | index;
    obj->handle = (int)handle;
    mpy_slots[kind][index] = obj;
    mpy_unlock(&lock);
    return obj->handle;
}

void mpy_object_remove(mpy_kind_t kind, int handle) {
    uint32_t index = (uint32_t)handle & (INDICES - 1);
    mpy_lock(&lock);
    mpy_slots[kind][index] = NULL;
    generation[kind][index]++;
    if (index >= reserved[kind]) {
        next_free[kind][index] = first_free[kind];
        first_free[kind] = index + 1;
    }
    mpy_unlock(&lock);
}

void mpy_object_unref(mpy_kind_t kind, mpy_object_t *obj) {
    if (kind == MPY_COMM) {
        mpy_comm_unref((mpy_comm_t *)obj);
        return;
    }
    if (__atomic_sub_fetch(&obj->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (kind == MPY_DATATYPE) mpy_datatype_destroy((mpy_datatype_t *)obj);
    if (kind == MPY_OP) mpy_op_destroy((mpy_op_t *)obj);
}

/* ---- translation: predefined and null handles pass; anything unknown becomes 0, which is no valid kind in MPICH
 * ---- */

static int real_handle(mpy_kind_t kind, int handle) {
    mpy_object_t *obj = mpy_lookup(kind, handle);
    if (obj != NULL) return obj->real;
    return (uint32_t)handle >> 30 <= 1 ? handle : 0;
}

int mpy_real_comm(int handle) { return real_handle(MPY_COMM, handle); }
int mpy_real_group(int handle) { return real_handle(MPY_GROUP, handle); }
int mpy_real_info(int handle) { return real_handle(MPY_INFO, handle); }
int mpy_real_op_slow(int handle) { return real_handle(MPY_OP, handle); }

int mpy_real_datatype_slow(int handle) {
    if ((uint32_t)handle - 0x8c000000u < reserved[MPY_DATATYPE]) return handle; /* pair types */
    return real_handle(MPY_DATATYPE, handle);
}

int *mpy_real_datatypes_to(const int *handles, int64_t n, int *real) {
    if (handles == NULL) return NULL;
    for (int64_t i = 0; i < n; i++) real[i] = mpy_real_datatype(handles[i]);
    return real;
}

int *mpy_real_datatypes(const int *handles, int64_t n, int *local) {
    if (handles == NULL || n <= 0) return NULL;
    return mpy_real_datatypes_to(handles, n, n <= MPY_LOCAL_TYPES ? local : mpy_alloc((size_t)n * sizeof *local));
}

void mpy_real_datatypes_free(int *real, int64_t n, int *local) {
    if (real != local && real != NULL) mpy_free(real, (size_t)n * sizeof *real);
}
