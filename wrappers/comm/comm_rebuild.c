/* comm_rebuild.c - makes the communicators again after a restart.
 *
 * Upper half, no libc; a hook, in the lower half.
 *
 * Invariants
 *  1. Communicators are rebuilt in the order of ascending identity, which is the same on all members. So the collective
 *     calls of different communicators can't wait for each other.
 *  2. Every communicator is made from MPI_COMM_WORLD and the world ranks of its groups, whatever call of the program
 *     made it. Its ranks stay the same.
 *  3. A sum of floating-point numbers has the same bits after a restart as without one. If ranks share a node and MPI
 *     is used by one thread, MPICH adds in another order from a communicator's fifth reduction on
 *     (MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD). MPI_Allreduce counts on the communicator; MPI_Reduce, MPI_Bcast and
 *     MPI_Barrier count on one of the node below it. So a new communicator gets as many of each call as the old one has
 *     had, or ENOUGH. Nonblocking calls don't count. So our own agreements are nonblocking calls (mpy_comm_reduce), for
 *     example that on the numbers, because the members may differ in failed calls.
 */
#include "group.h"
#include "comm.h"
#include "tools/trace.h"

enum { ENOUGH = 8 };

/* Tags separate different communicators of the same group while not all members have arrived. */
static int tag_of(const mpy_comm_record_t *r) { return (int)(r->cid & 0x7fff); }

static int make_intra(const mpy_comm_record_t *r, int *real) {
    int group, rc = MPY_REAL(Group_incl)(mpy_world_group(), r->comm.size, r->comm.world, &group);
    if (rc != 0) return rc;
    rc = MPY_REAL(Comm_create_group)(MPI_COMM_WORLD, group, tag_of(r), real);
    MPY_REAL(Group_free)(&group);
    return rc;
}

static int make_inter(const mpy_comm_record_t *r, int local, int *real) {
    return MPY_REAL(Intercomm_create)(local, 0, MPI_COMM_WORLD, r->comm.remote_world[0], tag_of(r), real);
}

static int call_again(mpy_aging_t which, int real) {
    int32_t one = 0, sum;
    switch (which) {
    case MPY_AGING_ALLREDUCE: return MPY_REAL(Allreduce)(&one, &sum, 1, MPI_INT32_T, MPI_MAX, real);
    case MPY_AGING_REDUCE: return MPY_REAL(Reduce)(&one, &sum, 1, MPI_INT32_T, MPI_MAX, 0, real);
    case MPY_AGING_BCAST: return MPY_REAL(Bcast)(&one, 1, MPI_INT32_T, 0, real);
    default: return MPY_REAL(Barrier)(real);
    }
}

/* Makes as many calls as the old communicator has had (invariant 3). */
static int age(const mpy_comm_t *c) {
    uint64_t had[MPY_AGINGS];
    if (c->remote_world != NULL || c->size == 1) return 0;
    int rc = mpy_comm_reduce(c->had, had, MPY_AGINGS, MPI_UINT64_T, MPI_MAX, c);
    for (int which = 0; which < MPY_AGINGS; which++)
        for (uint64_t i = 0; rc == 0 && i < had[which] && i < ENOUGH; i++)
            rc = call_again((mpy_aging_t)which, c->obj.real);
    return rc;
}

static int rebuild_one(mpy_comm_record_t *r) {
    mpy_comm_t *c = &r->comm;
    int plain = MPI_COMM_NULL, rc = make_intra(r, &plain);
    if (rc != 0) return rc;
    if (c->remote_world == NULL && r->topology == NULL) {
        c->obj.real = plain;
    } else {
        rc = c->remote_world != NULL ? make_inter(r, plain, &c->obj.real)
                                     : mpy_topology_rebuild(r->topology, plain, &c->obj.real);
        MPY_REAL(Comm_free)(&plain);
    }
    return rc == 0 ? MPY_REAL(Comm_set_errhandler)(c->obj.real, MPI_ERRORS_RETURN) : rc;
}

static int rebuild_details(mpy_comm_t *c) {
    int rc = 0;
    if (c->has_name) rc = MPY_REAL(Comm_set_name)(c->obj.real, c->name);
    if (rc == 0 && c->info != MPI_INFO_NULL) rc = MPY_REAL(Comm_set_info)(c->obj.real, mpy_real_info(c->info));
    return rc;
}

static uint64_t cid_of(const void *record) { return ((const mpy_comm_record_t *)record)->cid; }

static bool predefined(const mpy_comm_record_t *r) { return mpy_is_builtin(r->comm.obj.real); }

/* The communicators to recreate, sorted. The others lose their real handle. */
static mpy_comm_record_t **collect(uint32_t *n, uint32_t *allocated) {
    *n = *allocated = 0;
    for (mpy_link_t *l = mpy_comms.next; l != &mpy_comms; l = l->next) ++*allocated;
    mpy_comm_record_t **records = mpy_alloc(*allocated * sizeof *records);
    for (mpy_link_t *l = mpy_comms.next; l != &mpy_comms; l = l->next) {
        mpy_comm_record_t *r = MPY_COMM_RECORD(l);
        if (mpy_comm_gone(&r->comm))
            r->comm.obj.real = MPI_COMM_NULL; /* nothing can be sent on it any more */
        else if (!predefined(r))
            records[(*n)++] = r;
    }
    mpy_sort((void **)records, *n, cid_of);
    return records;
}

int mpy_comm_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    mpy_comm_t *failed = mpy_world;
    mpy_hook_in(t);
    int rc = MPY_REAL(Comm_set_errhandler)(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rc == 0) rc = MPY_REAL(Comm_set_errhandler)(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    uint32_t count, allocated;
    mpy_comm_record_t **records = collect(&count, &allocated);
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        failed = &records[i]->comm;
        rc = rebuild_one(records[i]);
        if (rc == 0) rc = age(failed);
        if (rc == 0 && failed->obj.handle != 0) rc = rebuild_details(failed);
        /* it was left: made only for the other members */
        if (rc == 0 && failed->obj.refs == 0) rc = MPY_REAL(Comm_free)(&failed->obj.real);
    }
    if (rc == 0) rc = age(failed = mpy_world);
    mpy_free(records, allocated * sizeof *records);
    for (mpy_link_t *l = mpy_comms.next; rc == 0 && l != &mpy_comms; l = l->next)
        if (predefined(MPY_COMM_RECORD(l))) rc = rebuild_details(failed = &MPY_COMM_RECORD(l)->comm);
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild the communicator '%s' (MPI error %d)", failed->name, rc);
    return -1;
}

void mpy_comm_rebuild_trace(void) {
    for (mpy_link_t *l = mpy_comms.next; l != &mpy_comms; l = l->next)
        mpy_trace_comm_enter(&MPY_COMM_RECORD(l)->comm, MPY_COMM_RECORD(l)->cid);
}
