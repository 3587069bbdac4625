/* intercomm.c - inter-communicators: create and merge. Everything else is as with other communicators.
 *
 * Upper half, no libc.
 *
 * Intercomm_create. The two groups don't know each other before the call. So there is no row on which all members could
 * count at its entry. Therefore the leaders first exchange their groups by messages. Each leader then broadcasts the
 * result to its own group; this counts on the local communicator. Now every member knows the union, makes its row,
 * counts there, and makes the real call. At each of these steps a checkpoint finds a rank that is parked, counted, or
 * waiting for a message of a rank that it can name.
 *
 * Invariants
 *  1. The messages are calls of our own interface on mpy_internal_world, so no receive of the program matches them.
 *  2. A group with members outside the job can't be informed: its leader sends NONE, and both sides then count on their
 *     local communicators only.
 */
#include "attr.h"
#include "comm.h"
#include "clock/clock.h"
#include "environment/errors.h"
#include "p2p/request.h"
#include "tools/trace.h"

enum { NONE = -1 };

/* A local communicator, and its group in world ranks. */
typedef struct side {
    uint64_t cid;
    int64_t n; /* size, or NONE */
    int32_t *world;
} side_t;
enum { HEAD = 2 }; /* words before `world` */

static side_t side_of(const mpy_comm_t *local) {
    return (side_t){mpy_comm_cid(local), local->foreign ? NONE : local->size, local->world};
}

static void side_make(mpy_thread_t *t, side_t *side) {
    mpy_guard_in(t);
    if (side->n > 0) side->world = mpy_alloc((size_t)side->n * sizeof *side->world);
    mpy_guard_out(t);
}

static void side_free(mpy_thread_t *t, side_t *side) {
    mpy_guard_in(t);
    if (side->n > 0) mpy_free(side->world, (size_t)side->n * sizeof *side->world);
    mpy_guard_out(t);
}

/* The tag of the leaders' messages. Threads may use several communicators at the same time, with the same tag. Any MPI
 * library has these tags, so a restart in between changes nothing. */
static int tag_for(const mpy_comm_t *peer, int tag) { return (int)((mpy_comm_cid(peer) + (uint64_t)tag) % 32768); }

/* Called by the leaders: which group does the other leader, `leader` of `peer`, have? */
static int exchange(mpy_thread_t *t, const mpy_comm_t *local, const mpy_comm_t *peer, int leader, int tag,
                    side_t *remote) {
    int internal = mpy_internal_world->obj.handle, world = mpy_peer_world(peer, leader);
    side_t own = side_of(local);
    *remote = (side_t){.n = NONE};
    if (world == MPY_FOREIGN) return MPI_SUCCESS;
    int rc = PMPI_Sendrecv(&own, HEAD, MPI_INT64_T, world, tag, remote, HEAD, MPI_INT64_T, world, tag, internal,
                           MPI_STATUS_IGNORE);
    if (rc != 0 || remote->n == NONE || own.n == NONE) {
        remote->n = NONE;
        return rc;
    }
    side_make(t, remote);
    return PMPI_Sendrecv(own.world, (int)own.n, MPI_INT32_T, world, tag, remote->world, (int)remote->n, MPI_INT32_T,
                         world, tag, internal, MPI_STATUS_IGNORE);
}

/* The leader broadcasts the other group to its own. */
static int tell(mpy_thread_t *t, const mpy_comm_t *local, int leader, side_t *remote) {
    if (local->foreign) return MPI_SUCCESS;
    int rc = PMPI_Bcast(remote, HEAD, MPI_INT64_T, leader, local->obj.handle);
    if (rc != 0 || remote->n == NONE) return rc;
    if (local->rank != leader) side_make(t, remote);
    return PMPI_Bcast(remote->world, (int)remote->n, MPI_INT32_T, leader, local->obj.handle);
}

/* Does not depend on which group is local. Uses ~tag, because no tag of Comm_create_group is negative. */
static uint64_t identity(mpy_comm_t *local, const side_t *remote, int tag) {
    uint64_t both = mpy_comm_pair_id(mpy_comm_cid(local), remote->cid);
    return mpy_group_cid(both, ~tag, mpy_comm_count(local, both, ~tag));
}

/* True for errors that the real library finds before it communicates. Then the real library reports them at once, and
 * no other rank is involved. */
static bool wrong(const mpy_comm_t *local, int leader, const mpy_comm_t *peer, int remote_leader, int tag) {
    if (local == NULL || local->remote_world != NULL || leader < 0 || leader >= local->size) return true;
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int tag_bound = mpy_real_tag_bound();
    mpy_cross_out(t);
    if (tag < 0 || tag > tag_bound) return true;
    if (local->rank != leader) return false;
    if (remote_leader < 0) return true;
    return peer->remote_world != NULL ? remote_leader >= peer->remote_size
                                      : remote_leader >= peer->size || remote_leader == peer->rank;
}

int PMPI_Intercomm_create(MPI_Comm local_comm, int local_leader, MPI_Comm peer_comm, int remote_leader, int tag,
                          MPI_Comm *newintercomm) {
    static const char name[] = "MPI_Intercomm_create";
    mpy_or_null(MPI_ERR_OTHER, newintercomm, MPI_COMM_NULL); /* until the communicator exists */
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *local = mpy_comm(local_comm), *peer = mpy_comm(peer_comm);
    int real = MPI_COMM_NULL, rc = 0;
    /* MPICH 5.0 crashes here */
    if (local != NULL && local->rank == local_leader && peer == NULL) return mpy_error(local, MPI_ERR_COMM, name);
    if (wrong(local, local_leader, peer, remote_leader, tag)) {
        mpy_cross_in(t);
        rc = MPY_REAL(Intercomm_create)(mpy_real_comm(local_comm), local_leader, mpy_real_comm(peer_comm),
                                        remote_leader, tag, &real);
        mpy_cross_out(t);
        return mpy_error(local, rc, name);
    }
    side_t remote = {.n = NONE};
    if (local->rank == local_leader)
        rc = exchange(t, local, peer, remote_leader, tag_for(peer, tag), &remote);
    if (rc != 0) {
        side_free(t, &remote);
        return mpy_error(local, rc, name);
    }
    if ((rc = tell(t, local, local_leader, &remote)) != 0) {
        side_free(t, &remote);
        return rc;
    }

    if (remote.n == NONE) {
        mpy_construction_t k = mpy_construct_begin(local_comm);
        k.rc = MPY_REAL(Intercomm_create)(local->obj.real, local_leader, mpy_real_comm(peer_comm), remote_leader, tag,
                                           &k.real);
        return mpy_construct_end(&k, newintercomm, name);
    }
    mpy_guard_in(t);
    int n;
    int32_t *members = mpy_comm_union(local->world, local->size, remote.world, (int)remote.n, &n);
    uint64_t cid = identity(local, &remote, tag);
    uint32_t row = mpy_row_add(cid, members, n, 0);
    mpy_guard_out(t);
    side_free(t, &remote);

    uint64_t record = MPY_TRACE(t, .op = MPY_OP_COMM_CREATE, MPY_TRACE_ALONE);
    mpy_clock_enter(t, mpy_row(row));
    mpy_cross_in_collective(t);
    rc = MPY_REAL(Intercomm_create)(local->obj.real, local_leader, mpy_real_comm(peer_comm), remote_leader, tag, &real);
    *newintercomm = mpy_comm_adopt_row(rc == 0 ? real : MPI_COMM_NULL, cid, local->errhandler, row);
    if (rc == 0) {
        mpy_comm(*newintercomm)->session = local->session;
        mpy_comm_made(NULL, mpy_comm(*newintercomm));
    }
    mpy_cross_out_collective(t);
    mpy_traced(t, record, rc);
    return mpy_error(local, rc, name);
}

int PMPI_Intercomm_merge(MPI_Comm intercomm, int high, MPI_Comm *newintracomm) {
    const mpy_comm_t *c = mpy_comm(intercomm);
    /* MPICH 5.0 crashes here */
    if (c != NULL && c->remote_world == NULL)
        return mpy_error(c, mpy_or_null(MPI_ERR_COMM, newintracomm, MPI_COMM_NULL), "MPI_Intercomm_merge");
    mpy_construction_t k = mpy_construct_begin(intercomm);
    k.errhandler = MPI_ERRHANDLER_NULL; /* as in MPICH */
    k.rc = MPY_REAL(Intercomm_merge)(mpy_real_comm(intercomm), high, &k.real);
    return mpy_construct_end(&k, newintracomm, "MPI_Intercomm_merge");
}
