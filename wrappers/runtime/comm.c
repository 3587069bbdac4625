/* comm.c - intra-communicators: world and self, constructors, destructor, names, infos, rebuilding.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. Constructors and destructors of a communicator count on it (the parent): its identity, and the parent's SEQ of that call,
 *     name the child. MPI_Comm_create_group counts on the child; the group, the tag and how often name it.
 *  2. A new real communicator gets MPI_ERRORS_RETURN and its record (handle, members, row) before in_lower is cleared.
 *  3. A communicator freed by the program lives on, without handle (0) and row, while requests refer to it (refs); the real one
 *     is freed at the end. It isn't rebuilt: other members may have let go of it, and nothing can be sent on it any more.
 *  4. Rebuilding goes by ascending identity, the same order on all members: so the collective calls of different
 *     communicators can't wait for each other.
 */
#include "objects.h"
#include "abi.h"
#include "p2p.h"

typedef struct record {
    mpy_comm_t comm; /* first: records and communicators are the same address */
    mpy_link_t all;
    uint64_t cid;
} record_t;

#define RECORD(LINK) ((record_t *)((char *)(LINK) - offsetof(record_t, all)))

mpy_comm_t *mpy_world;
static mpy_link_t all = {&all, &all};

static const mpy_clock_row_t *row_of(const mpy_comm_t *c) { return &MPY_UPPER->clock.rows[c->row]; }

/* ---- records ---- */

enum { NEW_ROW = -1 };

/* Upper TLS, in_lower set. `world` becomes the record's. `row`: one that exists already, or NEW_ROW. */
static record_t *record_make(int real, int rank, int size, int32_t *world, uint64_t cid, int fixed_handle, long row) {
    record_t *r = mpy_alloc(sizeof *r);
    mpy_comm_t *c = &r->comm;
    c->obj.real = real;
    c->obj.refs = 1;
    c->rank = rank;
    c->size = size;
    c->world = world;
    c->errhandler = MPI_ERRORS_ARE_FATAL;
    c->topology = MPI_UNDEFINED;
    c->info = MPI_INFO_NULL;
    r->cid = cid;
    if (fixed_handle != 0) {
        c->obj.handle = fixed_handle;
        mpy_slots[MPY_COMM][fixed_handle & 1] = &c->obj;
    } else {
        mpy_object_add(MPY_COMM, &c->obj);
    }
    mpy_lock(&mpy_objects_lock);
    mpy_link_append(&all, &r->all);
    mpy_unlock(&mpy_objects_lock);
    if (row == NEW_ROW) {
        c->row = mpy_row_add(cid, world, size, c->obj.handle);
    } else {
        c->row = (uint32_t)row;
        MPY_UPPER->clock.rows[row].handle = (uint32_t)c->obj.handle;
    }
    return r;
}

static void name_set(mpy_comm_t *c, const char *name) {
    mpy_text_format(c->name, sizeof c->name, "%s", name);
    c->has_name = 1;
    MPY_UPPER->clock.rows[c->row].name = c->name;
}

void mpy_comm_init(void) {
    int size = MPY_LOWER->size, rank = MPY_LOWER->rank;
    int32_t *world = mpy_alloc((size_t)size * sizeof *world), *self = mpy_alloc(sizeof *self);
    for (int i = 0; i < size; i++) world[i] = i;
    *self = rank;
    uint64_t cid = mpy_child_cid(0, 0, 0);
    mpy_world = &record_make(MPI_COMM_WORLD, rank, size, world, cid, MPI_COMM_WORLD, NEW_ROW)->comm;
    name_set(mpy_world, "MPI_COMM_WORLD");
    name_set(&record_make(MPI_COMM_SELF, 0, 1, self, mpy_child_cid(cid, 0, rank), MPI_COMM_SELF, NEW_ROW)->comm, "MPI_COMM_SELF");
}

void mpy_comm_finalize(void) {
    for (uint32_t i = 0; i < 1u << MPY_INDEX_BITS; i++)
        if (mpy_slots[MPY_COMM][i] != NULL) mpy_slots[MPY_COMM][i] = NULL;
}

/* Last reference: see mpy_object_unref. */
void mpy_comm_destroy(mpy_comm_t *c) {
    record_t *r = (record_t *)c;
    if (c->obj.real != MPI_COMM_NULL) MPY_REAL(Comm_free)(&c->obj.real);
    mpy_lock(&mpy_objects_lock);
    mpy_link_remove(&r->all);
    mpy_unlock(&mpy_objects_lock);
    mpy_free(c->world, (size_t)c->size * sizeof *c->world);
    mpy_free(r, sizeof *r);
}

/* World ranks of the members of a new real communicator. In the lower half. */
static int32_t *members(int real, int size) {
    size_t bytes = (size_t)size * sizeof(int32_t);
    int *ranks = mpy_alloc(bytes), group;
    int32_t *world = mpy_alloc(bytes);
    for (int i = 0; i < size; i++) ranks[i] = i;
    MPY_REAL(Comm_group)(real, &group);
    MPY_REAL(Group_translate_ranks)(group, size, ranks, mpy_world_group(), world);
    MPY_REAL(Group_free)(&group);
    mpy_free(ranks, bytes);
    return world;
}

static int32_t smallest(const int32_t *world, int n) {
    int32_t least = world[0];
    for (int i = 1; i < n; i++)
        if (world[i] < least) least = world[i];
    return least;
}

/* ---- constructors ---- */

typedef struct construction {
    mpy_thread_t *t;
    mpy_comm_t *parent; /* NULL: bad handle, the real library will say so */
    uint64_t seq;       /* the parent's, this call included */
    int rc, real;
} construction_t;

/* Count on the parent and enter the lower half. */
static construction_t begin(MPI_Comm comm) {
    construction_t k = {.t = mpy_self(), .parent = mpy_comm(comm), .real = MPI_COMM_NULL};
    if (k.parent == NULL) {
        mpy_cross_in(k.t);
        return k;
    }
    mpy_clock_row_t *row = &MPY_UPPER->clock.rows[k.parent->row];
    mpy_clock_enter(k.t, row);
    k.seq = row->seq;
    mpy_cross_in_collective(k.t);
    return k;
}

/* In the lower half; returns with the upper TLS and in_lower still set. */
static mpy_comm_t *adopt(mpy_thread_t *t, int real, const mpy_comm_t *parent, uint64_t seq) {
    int rank, size;
    MPY_REAL(Comm_set_errhandler)(real, MPI_ERRORS_RETURN);
    MPY_REAL(Comm_rank)(real, &rank);
    MPY_REAL(Comm_size)(real, &size);
    int32_t *world = members(real, size);
    mpy_hook_out(t);
    uint64_t cid = mpy_child_cid(row_of(parent)->cid, seq, smallest(world, size));
    mpy_comm_t *c = &record_make(real, rank, size, world, cid, 0, NEW_ROW)->comm;
    c->errhandler = parent->errhandler;
    mpy_errhandler_ref(c->errhandler);
    return c;
}

static int end(construction_t *k, MPI_Comm *newcomm, const char *name) {
    mpy_comm_t *c = NULL;
    if (k->rc == 0 && k->real != MPI_COMM_NULL && k->parent != NULL) c = adopt(k->t, k->real, k->parent, k->seq);
    if (k->parent != NULL)
        mpy_cross_out_collective(k->t);
    else
        mpy_cross_out(k->t);
    if (k->rc != 0) return mpy_error(k->parent, k->rc, name);
    *newcomm = c != NULL ? c->obj.handle : MPI_COMM_NULL;
    return MPI_SUCCESS;
}

/* A duplicate also gets the attributes whose copy functions say so, and the hints. */
static int end_dup(construction_t *k, MPI_Info info, MPI_Comm *newcomm, const char *name) {
    int rc = end(k, newcomm, name);
    if (rc != 0 || k->parent == NULL) return rc;
    mpy_comm_t *c = mpy_comm(*newcomm);
    mpy_cross_in(k->t);
    mpy_info_merge(&c->info, info);
    mpy_cross_out(k->t);
    rc = mpy_attrs_copy(k->parent->obj.handle, k->parent->attrs, &c->attrs);
    return rc == 0 ? rc : mpy_error(k->parent, rc, name);
}

int PMPI_Comm_dup(MPI_Comm comm, MPI_Comm *newcomm) {
    construction_t k = begin(comm);
    k.rc = MPY_REAL(Comm_dup)(mpy_real_comm(comm), &k.real);
    return end_dup(&k, k.parent != NULL ? k.parent->info : MPI_INFO_NULL, newcomm, "MPI_Comm_dup");
}

int PMPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm) {
    construction_t k = begin(comm);
    k.rc = MPY_REAL(Comm_dup_with_info)(mpy_real_comm(comm), mpy_real_info(info), &k.real);
    return end_dup(&k, info, newcomm, "MPI_Comm_dup_with_info");
}

int PMPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *newcomm) {
    construction_t k = begin(comm);
    k.rc = MPY_REAL(Comm_split)(mpy_real_comm(comm), color, key, &k.real);
    return end(&k, newcomm, "MPI_Comm_split");
}

int PMPI_Comm_split_type(MPI_Comm comm, int split_type, int key, MPI_Info info, MPI_Comm *newcomm) {
    construction_t k = begin(comm);
    k.rc = MPY_REAL(Comm_split_type)(mpy_real_comm(comm), split_type, key, mpy_real_info(info), &k.real);
    return end(&k, newcomm, "MPI_Comm_split_type");
}

int PMPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *newcomm) {
    construction_t k = begin(comm);
    k.rc = MPY_REAL(Comm_create)(mpy_real_comm(comm), mpy_real_group(group), &k.real);
    return end(&k, newcomm, "MPI_Comm_create");
}

/* How often a group and tag have been used: part of the identity, the same on all members. */
static uint64_t group_count(uint64_t ggid, int tag) {
    typedef struct count { struct count *next; uint64_t ggid, n; int tag; } count_t;
    static count_t *counts;
    mpy_lock(&mpy_objects_lock);
    count_t *c = counts;
    while (c != NULL && (c->ggid != ggid || c->tag != tag)) c = c->next;
    if (c == NULL) {
        c = mpy_alloc(sizeof *c);
        c->ggid = ggid;
        c->tag = tag;
        c->next = counts;
        counts = c;
    }
    uint64_t n = ++c->n;
    mpy_unlock(&mpy_objects_lock);
    return n;
}

/* Collective over the group only, so it counts on a row of its own: that of the communicator it makes, which exists (with
 * handle 0) from the entry on. A member that hasn't come yet is below target there and can't be frozen before it has. */
int PMPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *newcomm) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *parent = mpy_comm(comm), *c = NULL;
    const mpy_group_t *g = mpy_group(group);
    int real = MPI_COMM_NULL, rc, rank = 0;
    while (g != NULL && rank < g->size && g->world[rank] != MPY_LOWER->rank) rank++;
    if (parent == NULL || g == NULL || rank == g->size) { /* wrong arguments: the native error */
        mpy_cross_in(t);
        rc = MPY_REAL(Comm_create_group)(mpy_real_comm(comm), mpy_real_group(group), tag, &real);
        mpy_cross_out(t);
        *newcomm = MPI_COMM_NULL;
        return rc == 0 ? rc : mpy_error(parent, rc, "MPI_Comm_create_group");
    }
    mpy_guard_in(t);
    size_t bytes = (size_t)g->size * sizeof(int32_t);
    int32_t *world = mpy_alloc(bytes);
    __builtin_memcpy(world, g->world, bytes);
    int size = g->size;
    uint64_t ggid = mpy_ggid(world, size), cid = mpy_group_cid(ggid, tag, group_count(ggid, tag));
    uint32_t row = mpy_row_add(cid, world, size, 0);
    mpy_guard_out(t);

    mpy_clock_enter(t, &MPY_UPPER->clock.rows[row]);
    mpy_cross_in_collective(t);
    rc = MPY_REAL(Comm_create_group)(mpy_real_comm(comm), mpy_real_group(group), tag, &real);
    if (rc == 0) MPY_REAL(Comm_set_errhandler)(real, MPI_ERRORS_RETURN);
    mpy_hook_out(t);
    if (rc == 0) {
        c = &record_make(real, rank, size, world, cid, 0, row)->comm;
        c->errhandler = parent->errhandler;
        mpy_errhandler_ref(c->errhandler);
    } else {
        mpy_row_remove(row);
        mpy_free(world, bytes);
    }
    mpy_hook_in(t);
    mpy_cross_out_collective(t);
    *newcomm = c != NULL ? c->obj.handle : MPI_COMM_NULL;
    return rc == 0 ? rc : mpy_error(parent, rc, "MPI_Comm_create_group");
}

/* ---- destructor ---- */

static int comm_free(MPI_Comm *comm, const char *name) {
    mpy_comm_t *c = mpy_comm(*comm);
    mpy_thread_t *t = mpy_self();
    int rc = 0;
    if (c == NULL || mpy_is_builtin(*comm)) { /* bad or predefined: the native error */
        mpy_cross_in(t);
        int real = mpy_real_comm(*comm);
        rc = MPY_REAL(Comm_free)(&real);
        mpy_cross_out(t);
        return mpy_error(c, rc, name);
    }
    rc = mpy_attrs_delete(*comm, &c->attrs);
    if (rc != 0) return mpy_error(c, rc, name);
    mpy_clock_enter(t, &MPY_UPPER->clock.rows[c->row]);
    mpy_cross_in_collective(t);
    /* All members leave it together: none may drop its row while another's request for a checkpoint still counts on it, and
     * after a restart either all of them or none make it again. */
    MPY_REAL(Barrier)(c->obj.real);
    mpy_p2p_comm_free(c);
    mpy_info_drop(c->info);
    c->info = MPI_INFO_NULL;
    mpy_object_remove(MPY_COMM, c->obj.handle);
    c->obj.handle = 0;
    mpy_errhandler_unref(c->errhandler);
    c->errhandler = MPI_ERRORS_RETURN;
    mpy_hook_out(t);
    mpy_row_remove(c->row);
    mpy_hook_in(t);
    mpy_object_unref(MPY_COMM, &c->obj);
    mpy_cross_out_collective(t);
    *comm = MPI_COMM_NULL;
    return MPI_SUCCESS;
}

int PMPI_Comm_free(MPI_Comm *comm) { return comm_free(comm, "MPI_Comm_free"); }
int PMPI_Comm_disconnect(MPI_Comm *comm) { return comm_free(comm, "MPI_Comm_disconnect"); }

/* ---- questions ---- */

int PMPI_Comm_rank(MPI_Comm comm, int *rank) {
    const mpy_comm_t *c = mpy_comm(comm);
    if (MPY_LIKELY(c != NULL)) {
        *rank = c->rank;
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_rank)(mpy_real_comm(comm), rank);
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Comm_rank");
}

int PMPI_Comm_size(MPI_Comm comm, int *size) {
    const mpy_comm_t *c = mpy_comm(comm);
    if (MPY_LIKELY(c != NULL)) {
        *size = c->size;
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_size)(mpy_real_comm(comm), size);
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Comm_size");
}

int PMPI_Comm_get_parent(MPI_Comm *parent) {
    *parent = MPI_COMM_NULL; /* spawned processes are not supported yet */
    return MPI_SUCCESS;
}

int PMPI_Comm_set_name(MPI_Comm comm, const char *name) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, "MPI_Comm_set_name");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_set_name)(c->obj.real, name);
    if (rc == 0) name_set(c, name);
    mpy_cross_out(t);
    return rc == 0 ? rc : mpy_error(c, rc, "MPI_Comm_set_name");
}

int PMPI_Comm_get_name(MPI_Comm comm, char *name, int *resultlen) {
    const mpy_comm_t *c = mpy_comm(comm);
    if (c != NULL) {
        mpy_text_format(name, MPI_MAX_OBJECT_NAME, "%s", c->name);
        *resultlen = (int)mpy_text_length(name);
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_get_name)(mpy_real_comm(comm), name, resultlen);
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Comm_get_name");
}

int PMPI_Comm_set_info(MPI_Comm comm, MPI_Info info) {
    construction_t k = begin(comm);
    k.rc = MPY_REAL(Comm_set_info)(mpy_real_comm(comm), mpy_real_info(info));
    if (k.rc == 0 && k.parent != NULL) mpy_info_merge(&k.parent->info, info);
    if (k.parent != NULL)
        mpy_cross_out_collective(k.t);
    else
        mpy_cross_out(k.t);
    return k.rc == 0 ? 0 : mpy_error(k.parent, k.rc, "MPI_Comm_set_info");
}

/* ---- rebuild ---- */

static bool predefined(const record_t *r) { return mpy_is_builtin(r->comm.obj.real); }
static bool freed(const record_t *r) { return r->comm.obj.handle == 0; }

/* The record with the smallest identity above `last`. Communicators are few: quadratic is fine. */
static record_t *next_record(uint64_t last) {
    record_t *best = NULL;
    for (mpy_link_t *l = all.next; l != &all; l = l->next) {
        record_t *r = RECORD(l);
        if (!predefined(r) && !freed(r) && r->cid > last && (best == NULL || r->cid < best->cid)) best = r;
    }
    return best;
}

static int rebuild_one(record_t *r) {
    mpy_comm_t *c = &r->comm;
    int group, rc = MPY_REAL(Group_incl)(mpy_world_group(), c->size, c->world, &group);
    if (rc != 0) return rc;
    rc = MPY_REAL(Comm_create_group)(MPI_COMM_WORLD, group, (int)(r->cid & 0x7fff), &c->obj.real);
    MPY_REAL(Group_free)(&group);
    if (rc == 0) rc = MPY_REAL(Comm_set_errhandler)(c->obj.real, MPI_ERRORS_RETURN);
    return rc;
}

static int rebuild_details(mpy_comm_t *c) {
    int rc = 0;
    if (c->has_name) rc = MPY_REAL(Comm_set_name)(c->obj.real, c->name);
    if (rc == 0 && c->info != MPI_INFO_NULL) rc = MPY_REAL(Comm_set_info)(c->obj.real, mpy_real_info(c->info));
    return rc;
}

int mpy_comm_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    const char *name = "MPI_COMM_WORLD";
    mpy_hook_in(t);
    int rc = MPY_REAL(Comm_set_errhandler)(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rc == 0) rc = MPY_REAL(Comm_set_errhandler)(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    uint64_t last = 0;
    for (record_t *r; rc == 0 && (r = next_record(last)) != NULL; last = r->cid) {
        name = r->comm.name;
        rc = rebuild_one(r);
    }
    for (mpy_link_t *l = all.next; rc == 0 && l != &all; l = l->next) {
        name = RECORD(l)->comm.name;
        if (freed(RECORD(l)))
            RECORD(l)->comm.obj.real = MPI_COMM_NULL; /* invariant 3 */
        else
            rc = rebuild_details(&RECORD(l)->comm);
    }
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild the communicator '%s' (MPI error %d)", name, rc);
    return -1;
}
