/* comm_new.c - constructors that make communicators from others: dup, idup, split, create.
 *
 * Upper half, no libc. Invariants: comm.h.
 */
#include "group.h"
#include "attr.h"
#include "comm.h"
#include "clock/clock.h"
#include "environment/errors.h"
#include "environment/info.h"
#include "environment/outside.h"
#include "p2p/request.h"
#include "tools/trace.h"

mpy_construction_t mpy_construct_begin(MPI_Comm comm) {
    mpy_construction_t k = {.t = mpy_self(), .parent = mpy_comm(comm), .real = MPI_COMM_NULL};
    if (k.parent == NULL) {
        mpy_cross_in(k.t);
        return k;
    }
    mpy_clock_row_t *row = mpy_row(k.parent->row);
    k.record = MPY_TRACE(k.t, .op = MPY_OP_COMM_CREATE, MPY_TRACE_COLLECTIVE(k.parent));
    mpy_clock_enter(k.t, row);
    k.seq = row->seq;
    k.errhandler = k.parent->errhandler;
    mpy_cross_in_collective(k.t);
    return k;
}

static mpy_comm_t *adopt(const mpy_construction_t *k, const char *name) {
    if (k->rc != 0 || k->real == MPI_COMM_NULL || k->parent == NULL) return NULL;
    mpy_comm_t *c = mpy_comm_read(k->real);
    mpy_comm_publish_child(c, k, name);
    return c;
}

int mpy_construct_leave(const mpy_construction_t *k, const mpy_comm_t *c, MPI_Comm *newcomm, const char *name) {
    if (k->parent != NULL)
        mpy_collective_leave(k->t, mpy_row(k->parent->row), k->rc);
    else
        mpy_cross_out(k->t);
    mpy_traced(k->t, k->record, k->rc);
    if (k->rc != 0) return mpy_error(k->parent, mpy_or_null(k->rc, newcomm, MPI_COMM_NULL), name);
    *newcomm = c != NULL ? c->obj.handle : MPI_COMM_NULL;
    return MPI_SUCCESS;
}

int mpy_construct_end(mpy_construction_t *k, MPI_Comm *newcomm, const char *name) {
    mpy_comm_t *c = adopt(k, name);
    if (k->rc == 0 && k->parent != NULL) mpy_comm_made(k->parent, c);
    return mpy_construct_leave(k, c, newcomm, name);
}

/* ---- duplicates: with the hints, and with the attributes whose copy functions say so ---- */

/* As in MPICH the callbacks run first: if one fails, no communicator is created. */
static int copy_attributes(MPI_Comm comm, mpy_attr_t **attrs) {
    mpy_comm_t *parent = mpy_comm(comm);
    *attrs = NULL;
    return parent != NULL ? mpy_attrs_copy(comm, &parent->attrs, attrs) : MPI_SUCCESS;
}

static int end_dup(mpy_construction_t *k, MPI_Info info, mpy_attr_t *attrs, MPI_Comm *newcomm, const char *name) {
    mpy_comm_t *c = adopt(k, name);
    if (c != NULL) {
        c->attrs = attrs;
        mpy_info_merge(&c->info, info);
        mpy_comm_made(k->parent, c);
    }
    int rc = mpy_construct_leave(k, c, newcomm, name);
    if (c == NULL) mpy_attrs_delete(MPI_COMM_NULL, &attrs);
    return rc;
}

int PMPI_Comm_dup(MPI_Comm comm, MPI_Comm *newcomm) {
    mpy_attr_t *attrs;
    int rc = copy_attributes(comm, &attrs);
    if (rc != 0) return mpy_error(mpy_comm(comm), mpy_or_null(rc, newcomm, MPI_COMM_NULL), "MPI_Comm_dup");
    mpy_construction_t k = mpy_construct_begin(comm);
    k.rc = MPY_REAL(Comm_dup)(mpy_real_comm(comm), &k.real);
    return end_dup(&k, MPI_INFO_NULL, attrs, newcomm, "MPI_Comm_dup");
}

int PMPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm) {
    mpy_attr_t *attrs;
    int rc = copy_attributes(comm, &attrs);
    if (rc != 0) return mpy_error(mpy_comm(comm), mpy_or_null(rc, newcomm, MPI_COMM_NULL), "MPI_Comm_dup_with_info");
    mpy_construction_t k = mpy_construct_begin(comm);
    k.rc = MPY_REAL(Comm_dup_with_info)(mpy_real_comm(comm), mpy_real_info(info), &k.real);
    return end_dup(&k, info, attrs, newcomm, "MPI_Comm_dup_with_info");
}

/* ---- nonblocking duplicates ----
 *
 * Handle, record and row exist from the initiation, as the program's handle does in MPICH: everything except the real
 * communicator is known then. Until the communicator is ready its row has no handle, so that the drain ignores it. */

static bool idup_poke(mpy_p2p_thread_t *th, mpy_request_t *r) {
    mpy_comm_t *c = r->more;
    int done = 0;
    (void)th;
    r->error = MPY_REAL(Test)(&r->real, &done, MPI_STATUS_IGNORE);
    if (!done && r->error == MPI_SUCCESS) return false;
    if (r->error == MPI_SUCCESS) {
        MPY_REAL(Comm_set_errhandler)(c->obj.real, MPI_ERRORS_RETURN);
        mpy_row(c->row)->handle = (uint32_t)c->obj.handle;
    }
    return true;
}

static const mpy_request_family_t idup_family = {.name = "Comm_idup", .in_drain = true, .poke = idup_poke};

typedef struct idup {
    mpy_construction_t k;
    mpy_p2p_thread_t *th;
    mpy_attr_t *attrs;
    mpy_comm_t *c;         /* NULL: bad handle */
    int *real, request;    /* where the real library stores its handles; it may store the first only at completion */
} idup_t;

/* False if the call has failed. Then the call must return *rc, which the program's error handler may have set to
 * MPI_SUCCESS. */
static bool begin_idup(idup_t *d, MPI_Comm comm, MPI_Comm *newcomm, MPI_Request *request, const char *name, int *rc) {
    mpy_require_mpi(name);
    *rc = copy_attributes(comm, &d->attrs);
    if (*rc != MPI_SUCCESS) {
        mpy_or_null(*rc, request, MPI_REQUEST_NULL);
        *rc = mpy_error(mpy_comm(comm), mpy_or_null(*rc, newcomm, MPI_COMM_NULL), name);
        return false;
    }
    d->th = mpy_p2p_self(mpy_self());
    d->k = mpy_construct_begin(comm);
    d->c = d->k.parent != NULL ? mpy_comm_copy(d->k.parent) : NULL;
    d->real = d->c != NULL ? &d->c->obj.real : &d->k.real;
    return true;
}

static int end_idup(idup_t *d, MPI_Info info, MPI_Comm *newcomm, MPI_Request *request, const char *name) {
    const mpy_construction_t *k = &d->k;
    mpy_comm_t *c = d->c;
    if (k->rc == 0) {
        mpy_comm_publish_child(c, k, name);
        mpy_row(c->row)->handle = 0;
        c->attrs = d->attrs;
        mpy_info_merge(&c->info, info);
        mpy_request_t *r = mpy_request_of_family(d->th, &idup_family, MPY_REQ_FAMILY, k->parent, c);
        r->real = d->request;
        *request = r->handle;
    } else {
        if (c != NULL) mpy_comm_discard(c);
        mpy_or_null(k->rc, request, MPI_REQUEST_NULL);
    }
    int rc = mpy_construct_leave(k, k->rc == 0 ? c : NULL, newcomm, name);
    if (k->rc != 0) mpy_attrs_delete(MPI_COMM_NULL, &d->attrs);
    return rc;
}

int PMPI_Comm_idup(MPI_Comm comm, MPI_Comm *newcomm, MPI_Request *request) {
    idup_t d;
    int rc;
    if (!begin_idup(&d, comm, newcomm, request, "MPI_Comm_idup", &rc)) return rc;
    d.k.rc = MPY_REAL(Comm_idup)(mpy_real_comm(comm), d.real, &d.request);
    return end_idup(&d, MPI_INFO_NULL, newcomm, request, "MPI_Comm_idup");
}

int PMPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm, MPI_Request *request) {
    idup_t d;
    int rc;
    if (!begin_idup(&d, comm, newcomm, request, "MPI_Comm_idup_with_info", &rc)) return rc;
    d.k.rc = MPY_REAL(Comm_idup_with_info)(mpy_real_comm(comm), mpy_real_info(info), d.real, &d.request);
    return end_idup(&d, info, newcomm, request, "MPI_Comm_idup_with_info");
}

/* ---- parts ---- */

int PMPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *newcomm) {
    mpy_construction_t k = mpy_construct_begin(comm);
    k.rc = MPY_REAL(Comm_split)(mpy_real_comm(comm), color, key, &k.real);
    return mpy_construct_end(&k, newcomm, "MPI_Comm_split");
}

int PMPI_Comm_split_type(MPI_Comm comm, int split_type, int key, MPI_Info info, MPI_Comm *newcomm) {
    mpy_construction_t k = mpy_construct_begin(comm);
    k.rc = MPY_REAL(Comm_split_type)(mpy_real_comm(comm), split_type, key, mpy_real_info(info),
                                     &k.real);
    mpy_info_reread(info); /* with MPI_COMM_TYPE_HW_UNGUIDED the library writes what it has found into the info */
    return mpy_construct_end(&k, newcomm, "MPI_Comm_split_type");
}

int PMPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *newcomm) {
    mpy_construction_t k = mpy_construct_begin(comm);
    k.errhandler = MPI_ERRHANDLER_NULL; /* here, in Comm_create_group and in Intercomm_merge MPICH doesn't pass it on */
    k.rc = MPY_REAL(Comm_create)(mpy_real_comm(comm), mpy_real_group(group), &k.real);
    return mpy_construct_end(&k, newcomm, "MPI_Comm_create");
}

/* Collective over the group only. So it counts on the row of the communicator that it makes. The row exists (with
 * handle 0) from the entry on. A member that hasn't arrived yet is below target there and can't be frozen before it has
 * arrived. */
int mpy_comm_create_group(mpy_thread_t *t, const mpy_group_t *g, int tag, int errhandler, MPI_Comm comm,
                          MPI_Comm *newcomm) {
    mpy_guard_in(t);
    int n, real = MPI_COMM_NULL;
    mpy_comm_t *parent = mpy_comm(comm);
    int32_t *members = mpy_comm_union(g->world, g->size, NULL, 0, &n);
    uint64_t id = mpy_child_cid(mpy_comm_cid(parent), mpy_ggid(members, n), 0);
    uint64_t cid = mpy_group_cid(id, tag, mpy_comm_count(parent, id, tag));
    uint32_t row = mpy_row_add(cid, members, n, 0);
    mpy_guard_out(t);

    uint64_t record = MPY_TRACE(t, .op = MPY_OP_COMM_CREATE, MPY_TRACE_ALONE);
    mpy_clock_enter(t, mpy_row(row));
    mpy_cross_in_collective(t);
    int rc = MPY_REAL(Comm_create_group)(parent->obj.real, g->obj.real, tag, &real);
    if (rc != 0 && mpy_clock_failed(mpy_row(row), rc)) mpy_comm_count_back(parent, id, tag);
    *newcomm = mpy_comm_adopt_row(rc == 0 ? real : MPI_COMM_NULL, cid, errhandler, row);
    if (rc == 0) {
        mpy_comm_connects(mpy_comm(*newcomm), "MPI_Comm_create_group");
        mpy_comm_made(NULL, mpy_comm(*newcomm));
    }
    mpy_cross_out_collective(t);
    mpy_traced(t, record, rc);
    return rc;
}

/* Returns the group if the handle is valid and this process belongs to the group, otherwise NULL. */
const mpy_group_t *mpy_group_with_us(MPI_Group group) {
    const mpy_group_t *g = mpy_group(group);
    for (int i = 0; g != NULL && i < g->size; i++)
        if (g->world[i] == MPY_LOWER->rank) return g;
    return NULL;
}

int PMPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *newcomm) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *parent = mpy_comm(comm);
    const mpy_group_t *g = mpy_group_with_us(group);
    int real = MPI_COMM_NULL, rc;
    if (parent != NULL && g != NULL && newcomm != NULL) {
        rc = mpy_comm_create_group(t, g, tag, MPI_ERRHANDLER_NULL, comm, newcomm);
        if (rc == 0) mpy_comm(*newcomm)->session = parent->session;
    } else { /* wrong arguments: the real library returns the error */
        mpy_cross_in(t);
        rc = MPY_REAL(Comm_create_group)(mpy_real_comm(comm), mpy_real_group(group), tag, &real);
        mpy_cross_out(t);
        if (newcomm != NULL) *newcomm = MPI_COMM_NULL;
    }
    return rc == 0 ? rc : mpy_error(parent, mpy_or_null(rc, newcomm, MPI_COMM_NULL), "MPI_Comm_create_group");
}
