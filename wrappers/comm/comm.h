/* comm.h - shared declarations of the communicators' files. For comm/ and persistent.c; objects.h has the functions for
 * other files.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. Constructors count on the communicator (the parent): its identity, and the parent's SEQ of that call,
 *     name the child. Destructors don't count: they are local. Comm_create_group and Intercomm_create have no parent of
 *     all members: they count on the child, whose row is there before the communicator; groups, tag and how often name
 *     it.
 *  2. A new real communicator gets MPI_ERRORS_RETURN and its record (handle, groups, row) before in_lower is cleared.
 *  3. A clock row's members are the same list on all of them: the group in its order, or, where there are two groups,
 *     members outside the job, or the row came first, all that belong to the job, ascending.
 */
#ifndef MANAPY_COMM_H
#define MANAPY_COMM_H

#include "core/objects.h"

typedef struct mpy_comm_record {
    mpy_comm_t comm; /* first: records and communicators are the same address */
    mpy_link_t all;
    uint64_t cid;
    int32_t *members; /* of the row (invariant 3); may be comm.world */
    int nmembers;
    mpy_topology_t *topology; /* NULL: none */
    const char *origin;       /* of a foreign one: the function that has made it */
    /* how many constructors on it and its ancestors have succeeded: the same on all members */
    uint32_t made;
    uint32_t persistent;      /* references that records of persistent.c hold */
    bool left;                /* comm_freed.c: freed here, perhaps not by all members; with mpy_objects_lock */
    bool asked;               /* likewise: a thread is in an agreement on it */
} mpy_comm_record_t;

#define MPY_COMM_RECORD(LINK) ((mpy_comm_record_t *)((char *)(LINK) - offsetof(mpy_comm_record_t, all)))
extern MPY_HIDDEN mpy_link_t mpy_comms; /* all records, the oldest first */

/* ---- records (comm.c); in the lower half ---- */
/* A record of what the real communicator says of itself: groups, topology. It has no handle yet. */
MPY_HIDDEN mpy_comm_t *mpy_comm_read(int real);
/* The same for a communicator that is like another one; its real handle is MPI_COMM_NULL yet. */
MPY_HIDDEN mpy_comm_t *mpy_comm_copy(const mpy_comm_t *from);
MPY_HIDDEN void mpy_comm_discard(mpy_comm_t *c); /* it gets none */
MPY_HIDDEN void mpy_comm_publish(mpy_comm_t *c, uint64_t cid, int errhandler); /* gives it a handle and a row */
/* The same, as that which the constructor `name` has made. */
MPY_HIDDEN void mpy_comm_publish_child(mpy_comm_t *c, const mpy_construction_t *k, const char *name);
MPY_HIDDEN void mpy_comm_name(mpy_comm_t *c, const char *name);
/* The end of a call that counted on a row made at its entry: the communicator gets the row and a handle, or
 * (MPI_COMM_NULL) the row goes. Returns the program's handle. */
MPY_HIDDEN int mpy_comm_adopt_row(int real, uint64_t cid, int errhandler, uint32_t row);
/* The processes of the job among the members of two groups, ascending; mpy_alloc(*n). */
MPY_HIDDEN int32_t *mpy_comm_union(const int32_t *a, int na, const int32_t *b, int nb, int *n);
/* How often this identity and tag have been used: part of an identity, the same on all members. */
MPY_HIDDEN uint64_t mpy_comm_count(uint64_t id, int tag);
MPY_HIDDEN void mpy_comm_count_back(uint64_t id, int tag); /* the last one isn't made */

/* ---- communicators freed here (comm_freed.c); in the lower half ---- */
/* The program has no handle of it any more. Returns the error of the real MPI_Comm_free. */
MPY_HIDDEN int mpy_comm_leave(mpy_comm_t *c);
/* At the end of a blocking constructor: all members of `parent` call it, or where there is none (NULL), all of `child`.
 */
MPY_HIDDEN void mpy_comm_made(mpy_comm_t *parent, mpy_comm_t *child_or_null);

/* The end of a constructor whose communicator (or NULL) has its handle already. */
MPY_HIDDEN int mpy_construct_leave(const mpy_construction_t *k, const mpy_comm_t *c, MPI_Comm *newcomm,
                                   const char *name);
/* Collective over a group only, to which this process belongs. Returns an MPI error code, and a handle. */
MPY_HIDDEN int mpy_comm_create_group(mpy_thread_t *t, const mpy_group_t *g, int tag, int errhandler, MPI_Comm comm,
                                     MPI_Comm *newcomm);

/* ---- persistent collectives (persistent.c) ---- */
/* MPI_Comm_free, in the lower half, when all members are in it. */
MPY_HIDDEN void mpy_persistent_comm_free(const mpy_comm_t *comm);

/* ---- topologies (topology.c); in the lower half ---- */
MPY_HIDDEN void mpy_topology_read(mpy_comm_record_t *r);
MPY_HIDDEN mpy_topology_t *mpy_topology_copy(const mpy_topology_t *from);
MPY_HIDDEN void mpy_topology_free(mpy_topology_t *topology);
/* Puts the topology on a copy of `base`, whose ranks stay. */
MPY_HIDDEN int mpy_topology_rebuild(const mpy_topology_t *topology, int base, int *real);

#endif
