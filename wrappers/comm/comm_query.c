/* comm_query.c - queries and settings of a communicator: rank, size, name, hints.
 *
 * Upper half, no libc.
 */
#include "comm.h"
#include "environment/errors.h"
#include "environment/info.h"
#include "front/front.h"

int mpy_core_members(MPI_Comm comm, mpy_members_t which) {
    const mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return 0;
    switch (which) {
    case MPY_PEERS: return c->remote_size != 0 ? c->remote_size : c->size;
    case MPY_SOURCES: return c->indegree;
    case MPY_DESTINATIONS: return c->outdegree;
    }
    return 0;
}

int PMPI_Comm_rank(MPI_Comm comm, int *rank) {
    const mpy_comm_t *c = mpy_comm(comm);
    if (MPY_LIKELY(c != NULL && rank != NULL)) {
        *rank = c->rank;
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_rank)(mpy_real_comm(comm), rank);
    mpy_cross_out(t);
    return mpy_error(c, rc, "MPI_Comm_rank");
}

int PMPI_Comm_size(MPI_Comm comm, int *size) {
    const mpy_comm_t *c = mpy_comm(comm);
    if (MPY_LIKELY(c != NULL && size != NULL)) {
        *size = c->size;
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_size)(mpy_real_comm(comm), size);
    mpy_cross_out(t);
    return mpy_error(c, rc, "MPI_Comm_size");
}

int PMPI_Comm_set_name(MPI_Comm comm, const char *name) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, "MPI_Comm_set_name");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_set_name)(c->obj.real, name);
    if (rc == 0) mpy_comm_name(c, name);
    if (c->foreign) mpy_connections_changed();
    mpy_cross_out(t);
    return rc == 0 ? rc : mpy_error(c, rc, "MPI_Comm_set_name");
}

int PMPI_Comm_get_name(MPI_Comm comm, char *name, int *resultlen) {
    const mpy_comm_t *c = mpy_comm(comm);
    if (c != NULL && name != NULL && resultlen != NULL) {
        mpy_text_format(name, MPI_MAX_OBJECT_NAME, "%s", c->name);
        *resultlen = (int)mpy_text_length(name);
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Comm_get_name)(mpy_real_comm(comm), name, resultlen);
    mpy_cross_out(t);
    return mpy_error(c, rc, "MPI_Comm_get_name");
}

int PMPI_Comm_set_info(MPI_Comm comm, MPI_Info info) {
    MPI_Comm none; /* nothing is constructed, but the call is as collective as a constructor */
    mpy_construction_t k = mpy_construct_begin(comm);
    k.rc = MPY_REAL(Comm_set_info)(mpy_real_comm(comm), mpy_real_info(info));
    if (k.rc == 0 && k.parent != NULL) mpy_info_merge(&k.parent->info, info);
    /* unlike the constructors it needn't wait for the other members */
    return mpy_construct_leave(&k, NULL, &none, "MPI_Comm_set_info");
}
