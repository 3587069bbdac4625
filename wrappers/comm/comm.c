/* comm.c - records of communicators: world and self, adoption of new ones, destructors.
 *
 * Upper half, no libc.
 *
 * Invariants, besides those of comm.h
 *  1. A communicator that the program has freed stays, without handle (0), as long as requests refer to it (refs). So
 *     does the real one. Its record stays as long as another member may hold the communicator (comm_freed.c).
 */
#include "group.h"
#include "attr.h"
#include "comm.h"
#include "clock/clock.h"
#include "collective/persistent.h"
#include "environment/errors.h"
#include "environment/info.h"
#include "messages/store.h"
#include "p2p/p2p.h"
#include "tools/trace.h"

mpy_link_t mpy_comms = {&mpy_comms, &mpy_comms};

/* ---- records ---- */

static mpy_comm_record_t *record_make(int real, int rank, int size, int32_t *world) {
    mpy_comm_record_t *r = mpy_alloc(sizeof *r);
    mpy_comm_t *c = &r->comm;
    c->obj.real = real;
    c->obj.refs = 1;
    c->rank = rank;
    c->size = size;
    c->world = r->members = world;
    r->nmembers = size;
    c->topology = MPI_UNDEFINED;
    c->info = MPI_INFO_NULL;
    return r;
}

void mpy_comm_name(mpy_comm_t *c, const char *name) {
    mpy_text_format(c->name, sizeof c->name, "%s", name);
    c->has_name = 1;
    mpy_row(c->row)->name = c->name;
}

/* Assigns a handle and a row: NEW_ROW, or a row that exists already for the same members. */
enum { NEW_ROW = -1 };
static void publish(mpy_comm_t *c, uint64_t cid, int errhandler, long row) {
    mpy_comm_record_t *r = (mpy_comm_record_t *)c;
    r->cid = cid;
    c->errhandler = errhandler;
    mpy_errhandler_ref(errhandler);
    if (mpy_is_builtin(c->obj.handle))
        mpy_slots[MPY_COMM][c->obj.handle & 1] = &c->obj;
    else
        mpy_object_add(MPY_COMM, &c->obj);
    mpy_lock(&mpy_objects_lock);
    mpy_link_append(&mpy_comms, &r->all);
    mpy_unlock(&mpy_objects_lock);
    if (row == NEW_ROW) {
        c->row = mpy_row_add(cid, r->members, r->nmembers, c->obj.handle);
    } else {
        c->row = (uint32_t)row;
        mpy_row(row)->handle = (uint32_t)c->obj.handle;
    }
    mpy_trace_comm_enter(c, cid);
}

void mpy_comm_publish(mpy_comm_t *c, uint64_t cid, int errhandler) { publish(c, cid, errhandler, NEW_ROW); }

static mpy_comm_t *predefined(int handle, int rank, int size, int32_t first, uint64_t cid, const char *name) {
    int32_t *world = mpy_alloc((size_t)size * sizeof *world);
    for (int i = 0; i < size; i++) world[i] = first + i;
    mpy_comm_record_t *r = record_make(handle, rank, size, world);
    r->comm.obj.handle = handle;
    mpy_text_format(r->comm.name, sizeof r->comm.name, "%s", name); /* the trace needs the name at once */
    r->comm.has_name = 1;
    mpy_comm_publish(&r->comm, cid, MPI_ERRHANDLER_NULL);
    mpy_comm_name(&r->comm, name);
    return &r->comm;
}

void mpy_comm_init(void) {
    int size = MPY_LOWER->size, rank = MPY_LOWER->rank;
    uint64_t cid = mpy_child_cid(0, 0, 0);
    mpy_world = predefined(MPI_COMM_WORLD, rank, size, 0, cid, "MPI_COMM_WORLD");
    predefined(MPI_COMM_SELF, 0, 1, rank, mpy_child_cid(cid, 0, rank), "MPI_COMM_SELF");
}

int mpy_comm_init_internal(void) {
    int real, rc = MPY_REAL(Comm_dup)(MPI_COMM_WORLD, &real);
    if (rc != 0) return rc;
    uint64_t cid = mpy_child_cid(mpy_row(mpy_world->row)->cid, 0, -1);
    mpy_internal_world = mpy_comm_adopt(real, cid, MPI_ERRORS_RETURN);
    mpy_comm_name(mpy_internal_world, "manapy");
    return rc;
}

void mpy_comm_finalize(void) {
    for (uint32_t i = 0; i < 1u << MPY_INDEX_BITS; i++)
        if (mpy_slots[MPY_COMM][i] != NULL) mpy_slots[MPY_COMM][i] = NULL;
}

/* ---- how often an identity and a tag have been used with a communicator ---- */

enum { COUNT_LISTS = 4096 };
struct mpy_count { mpy_count_t *next, *sibling; uint64_t id, n; int tag; };
static mpy_count_t *counts[COUNT_LISTS];

static mpy_count_t **list_of(uint64_t id, int tag) {
    return &counts[((id ^ (uint64_t)(uint32_t)tag) * 0x9e3779b97f4a7c15ul >> 32) % COUNT_LISTS];
}

static mpy_count_t *count_of(mpy_comm_record_t *parent, uint64_t id, int tag) {
    mpy_count_t **list = list_of(id, tag), *c = *list;
    while (c != NULL && (c->id != id || c->tag != tag)) c = c->next;
    if (c == NULL) {
        c = mpy_alloc(sizeof *c);
        *c = (mpy_count_t){.next = *list, .sibling = parent->counts, .id = id, .tag = tag};
        *list = parent->counts = c;
    }
    return c;
}

uint64_t mpy_comm_count(mpy_comm_t *parent, uint64_t id, int tag) {
    mpy_lock(&mpy_objects_lock);
    uint64_t n = ++count_of((mpy_comm_record_t *)parent, id, tag)->n;
    mpy_unlock(&mpy_objects_lock);
    return n;
}

void mpy_comm_count_back(mpy_comm_t *parent, uint64_t id, int tag) {
    mpy_lock(&mpy_objects_lock);
    count_of((mpy_comm_record_t *)parent, id, tag)->n--;
    mpy_unlock(&mpy_objects_lock);
}

/* The communicator is no more; neither are its counts. */
static void free_counts(mpy_comm_record_t *parent) {
    mpy_lock(&mpy_objects_lock);
    for (mpy_count_t *c = parent->counts, *sibling; c != NULL; c = sibling) {
        sibling = c->sibling;
        mpy_count_t **link = list_of(c->id, c->tag);
        while (*link != c) link = &(*link)->next;
        *link = c->next;
        mpy_free(c, sizeof *c);
    }
    mpy_unlock(&mpy_objects_lock);
}

/* ---- the end of a record ---- */

static void set_members(mpy_comm_record_t *r, int32_t *members, int n) {
    if (r->members != r->comm.world) mpy_free(r->members, (size_t)r->nmembers * sizeof *r->members);
    r->members = members;
    r->nmembers = n;
}

void mpy_comm_discard(mpy_comm_t *c) {
    mpy_comm_record_t *r = (mpy_comm_record_t *)c;
    mpy_topology_free(r->topology);
    free_counts(r);
    set_members(r, NULL, 0);
    mpy_free(c->remote_world, (size_t)c->remote_size * sizeof *c->remote_world);
    mpy_free(c->world, (size_t)c->size * sizeof *c->world);
    mpy_free(r, sizeof *r);
}

/* Under the lock, so that only one thread takes the last reference or finds that the record may be removed. */
int mpy_comm_unref(mpy_comm_t *c) {
    mpy_comm_record_t *r = (mpy_comm_record_t *)c;
    int real = MPI_COMM_NULL;
    mpy_lock(&mpy_objects_lock);
    bool last = __atomic_sub_fetch(&c->obj.refs, 1, __ATOMIC_ACQ_REL) == 0, gone = last && !r->left;
    if (last) real = c->obj.real, c->obj.real = MPI_COMM_NULL;
    if (gone) mpy_link_remove(&r->all);
    mpy_unlock(&mpy_objects_lock);
    int rc = real != MPI_COMM_NULL ? MPY_REAL(Comm_free)(&real) : MPI_SUCCESS;
    if (gone) mpy_comm_discard(c);
    return rc;
}

uint64_t mpy_comm_cid(const mpy_comm_t *c) { return ((const mpy_comm_record_t *)c)->cid; }

/* ---- groups of a real communicator ---- */

/* The members of a real group. Frees the group. */
static int32_t *world_ranks(int group, int size, bool *foreign) {
    int32_t *world = mpy_group_world(group, size, foreign);
    MPY_REAL(Group_free)(&group);
    return world;
}

int32_t *mpy_comm_union(const int32_t *a, int na, const int32_t *b, int nb, int *n) {
    int job = mpy_world->size;
    uint8_t *member = mpy_alloc((size_t)job + 1); /* one more, for MPY_FOREIGN */
    for (int i = 0; i < na; i++) member[a[i]] = 1;
    for (int i = 0; i < nb; i++) member[b[i]] = 1;
    *n = 0;
    for (int p = 0; p < job; p++) *n += member[p];
    int32_t *all = mpy_alloc((size_t)*n * sizeof *all);
    for (int p = 0, i = 0; p < job; p++)
        if (member[p]) all[i++] = p;
    mpy_free(member, (size_t)job + 1);
    return all;
}

mpy_comm_t *mpy_comm_read(int real) {
    int rank, size, inter, group;
    MPY_REAL(Comm_set_errhandler)(real, MPI_ERRORS_RETURN);
    MPY_REAL(Comm_rank)(real, &rank);
    MPY_REAL(Comm_size)(real, &size);
    MPY_REAL(Comm_test_inter)(real, &inter);
    MPY_REAL(Comm_group)(real, &group);
    bool foreign = false;
    mpy_comm_record_t *r = record_make(real, rank, size, world_ranks(group, size, &foreign));
    mpy_comm_t *c = &r->comm;
    if (inter) {
        MPY_REAL(Comm_remote_size)(real, &c->remote_size);
        MPY_REAL(Comm_remote_group)(real, &group);
        c->remote_world = world_ranks(group, c->remote_size, &foreign);
    } else {
        mpy_topology_read(r);
    }
    c->foreign = foreign;
    if (inter || foreign) {
        int n;
        int32_t *members = mpy_comm_union(c->world, c->size, c->remote_world, c->remote_size, &n);
        set_members(r, members, n);
    }
    return c;
}

static int32_t *ranks_copy(const int32_t *ranks, int n) {
    return ranks == NULL ? NULL
                         : __builtin_memcpy(mpy_alloc((size_t)n * sizeof *ranks), ranks, (size_t)n * sizeof *ranks);
}

mpy_comm_t *mpy_comm_copy(const mpy_comm_t *from) {
    const mpy_comm_record_t *f = (const mpy_comm_record_t *)from;
    mpy_comm_record_t *r = record_make(MPI_COMM_NULL, from->rank, from->size, ranks_copy(from->world, from->size));
    mpy_comm_t *c = &r->comm;
    c->remote_size = from->remote_size;
    c->remote_world = ranks_copy(from->remote_world, from->remote_size);
    c->foreign = from->foreign;
    if (f->members != from->world) set_members(r, ranks_copy(f->members, f->nmembers), f->nmembers);
    r->topology = mpy_topology_copy(f->topology);
    c->topology = from->topology;
    c->indegree = from->indegree;
    c->outdegree = from->outdegree;
    return c;
}

mpy_comm_t *mpy_comm_adopt(int real, uint64_t cid, int errhandler) {
    mpy_comm_t *c = mpy_comm_read(real);
    mpy_comm_publish(c, cid, errhandler);
    return c;
}

void mpy_comm_connects(mpy_comm_t *c, const char *name) {
    if (!c->foreign) return;
    ((mpy_comm_record_t *)c)->origin = name;
    mpy_connections_changed();
}

void mpy_comm_publish_child(mpy_comm_t *c, const mpy_construction_t *k, const char *name) {
    mpy_comm_record_t *r = (mpy_comm_record_t *)c;
    int32_t smallest = r->members[0];
    for (int i = 1; i < r->nmembers; i++)
        if (r->members[i] < smallest) smallest = r->members[i];
    mpy_comm_publish(c, mpy_child_cid(mpy_row(k->parent->row)->cid, k->seq, smallest), k->errhandler);
    c->session = k->parent->session;
    mpy_comm_connects(c, name);
}

int mpy_comm_adopt_row(int real, uint64_t cid, int errhandler, uint32_t row) {
    int32_t *members = (int32_t *)mpy_row(row)->members;
    int n = (int)mpy_row(row)->nmembers;
    if (real == MPI_COMM_NULL) {
        mpy_row_remove(row);
        mpy_free(members, (size_t)n * sizeof *members);
        return MPI_COMM_NULL;
    }
    mpy_comm_t *c = mpy_comm_read(real);
    set_members((mpy_comm_record_t *)c, members, n);
    publish(c, cid, errhandler, row);
    return c->obj.handle;
}

/* ---- destructors ---- */

/* `slot`: MPI_Comm_free or MPI_Comm_disconnect, which have the same type. */
static int real_free(int slot, int *real) { return ((mpy_fn_Comm_free_t)MPY_LOWER->mpi[slot])(real); }

/* In the lower half: the program has freed its handle. */
static void forget_handle(mpy_comm_t *c) {
    mpy_p2p_comm_free(c);
    mpy_info_drop(c->info);
    c->info = MPI_INFO_NULL;
    mpy_object_remove(MPY_COMM, c->obj.handle);
    c->obj.handle = 0;
    mpy_errhandler_unref(c->errhandler);
    c->errhandler = MPI_ERRORS_RETURN;
}

/* Both sides give up a connection to processes outside the job at the same time. */
static int disconnect(mpy_thread_t *t, mpy_comm_t *c, int slot) {
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_COMM_CREATE, MPY_TRACE_COLLECTIVE(c));
    mpy_clock_enter(t, mpy_row(c->row));
    mpy_cross_in_collective(t);
    forget_handle(c);
    mpy_row_remove(c->row);
    mpy_connections_changed();
    int rc = real_free(slot, &c->obj.real);
    c->obj.real = MPI_COMM_NULL;
    mpy_partitioned_comm_free(c);
    mpy_persistent_comm_free(c);
    mpy_comm_unref(c);
    mpy_cross_out_collective(t);
    mpy_traced(t, record, rc);
    return rc;
}

/* Local, as in MPICH. MPI_Comm_disconnect from processes of the job is local, too, except that it waits until the sends
 * whose requests were freed have been received. */
static int leave(mpy_thread_t *t, mpy_comm_t *c) {
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_COMM_CREATE, MPY_TRACE_ALONE);
    mpy_cross_in(t);
    forget_handle(c);
    int rc = mpy_comm_leave(c);
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    return rc;
}

static int give_up(MPI_Comm *comm, int slot, const char *name) {
    mpy_comm_t *c = mpy_comm(*comm);
    mpy_thread_t *t = mpy_self();
    int rc = 0;
    if (c == NULL || mpy_is_builtin(*comm)) { /* bad or predefined: the real library returns the error */
        mpy_cross_in(t);
        int real = mpy_real_comm(*comm);
        rc = real_free(slot, &real);
        mpy_cross_out(t);
        return mpy_error(c, rc, name);
    }
    rc = mpy_attrs_delete(*comm, &c->attrs);
    /* as in MPICH: the communicator has lost its attributes, but still exists */
    if (rc != 0) return mpy_error(NULL, rc, name);
    void *buffer;
    MPI_Count size;
    mpy_buffer_detach(&c->buffer, &buffer, &size);
    if (slot == MPY_FN_Comm_disconnect) mpy_p2p_comm_flush(c);
    rc = c->foreign ? disconnect(t, c, slot) : leave(t, c);
    if (rc != 0) return mpy_error(NULL, rc, name);
    *comm = MPI_COMM_NULL;
    return MPI_SUCCESS;
}

int PMPI_Comm_free(MPI_Comm *comm) { return give_up(comm, MPY_FN_Comm_free, "MPI_Comm_free"); }
int PMPI_Comm_disconnect(MPI_Comm *comm) { return give_up(comm, MPY_FN_Comm_disconnect, "MPI_Comm_disconnect"); }
