/* group.c - groups. A virtual group keeps the world ranks of its members in order. The real library makes the real
 * group, so that it checks the arguments; after a restart the real group is recreated from the list. Members outside
 * the job (MPY_FOREIGN) don't exist then: no connection to them is left.
 *
 * Upper half, no libc.
 */
#include "group.h"
#include "core/objects.h"
#include "environment/errors.h"

mpy_group_t *mpy_group(int handle) { return (mpy_group_t *)mpy_lookup(MPY_GROUP, handle); }

/* The real world group; valid until the next restart. In the lower half. */
int mpy_world_group(void) {
    static int real;
    static uint32_t generation = UINT32_MAX;
    if (generation != MPY_LOWER->generation) {
        MPY_REAL(Comm_group)(MPI_COMM_WORLD, &real);
        generation = MPY_LOWER->generation;
    }
    return real;
}

int32_t *mpy_group_world(int real, int size, bool *foreign) {
    size_t bytes = (size_t)size * sizeof(int32_t);
    int *ranks = mpy_alloc(bytes);
    int32_t *world = mpy_alloc(bytes);
    for (int i = 0; i < size; i++) ranks[i] = i;
    MPY_REAL(Group_translate_ranks)(real, size, ranks, mpy_world_group(), world);
    mpy_free(ranks, bytes);
    for (int i = 0; i < size; i++) {
        if (world[i] != MPI_UNDEFINED) continue;
        world[i] = MPY_FOREIGN;
        *foreign = true;
    }
    return world;
}

int mpy_group_session(int handle) {
    const mpy_group_t *g = mpy_group(handle);
    return g != NULL ? g->session : 0;
}

int mpy_group_adopt(int real, int session) {
    /* other predefined groups are internal to MPICH */
    if (real == MPI_GROUP_EMPTY || real == MPI_GROUP_NULL) return real;
    mpy_group_t *g = mpy_alloc(sizeof *g);
    MPY_REAL(Group_size)(real, &g->size);
    g->world = mpy_group_world(real, g->size, &g->foreign);
    g->session = session;
    g->obj.real = real;
    g->obj.refs = 1;
    return mpy_object_add(MPY_GROUP, &g->obj);
}

int PMPI_Group_free(MPI_Group *group) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_group_t *g = mpy_group(*group);
    int real = g != NULL ? g->obj.real : mpy_real_group(*group);
    int rc = MPY_REAL(Group_free)(&real);
    if (rc == 0) {
        *group = MPI_GROUP_NULL;
        if (g != NULL) {
            mpy_object_remove(MPY_GROUP, g->obj.handle);
            mpy_free(g->world, (size_t)g->size * sizeof *g->world);
            mpy_free(g, sizeof *g);
        }
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Group_free");
}

static int rebuild_one(mpy_group_t *g) {
    if (!g->foreign) return MPY_REAL(Group_incl)(mpy_world_group(), g->size, g->world, &g->obj.real);
    size_t bytes = (size_t)g->size * sizeof *g->world;
    int32_t *left = mpy_alloc(bytes);
    int n = 0;
    for (int i = 0; i < g->size; i++)
        if (g->world[i] != MPY_FOREIGN) left[n++] = g->world[i];
    int rc = MPY_REAL(Group_incl)(mpy_world_group(), n, left, &g->obj.real);
    mpy_free(left, bytes);
    return rc;
}

int mpy_group_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    int rc = 0;
    mpy_hook_in(t);
    for (uint32_t i = 0; i < 1u << MPY_INDEX_BITS && rc == 0; i++)
        if (mpy_slots[MPY_GROUP][i] != NULL) rc = rebuild_one((mpy_group_t *)mpy_slots[MPY_GROUP][i]);
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild a group (MPI error %d)", rc);
    return -1;
}
