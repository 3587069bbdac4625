/* comm.h - communicators: first the functions for all rooms, then what the files of comm/ and persistent.c share.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. Constructors count on the communicator (the parent): its identity and the parent's SEQ of that call name the
 *     child. Destructors don't count: they are local. Comm_create_group and Intercomm_create have no parent that
 *     includes all members. They count on the child, whose row exists before the communicator. The child is named by
 *     the communicators that they get, groups, tag and the number of earlier uses. So threads that do this at the same
 *     time from different communicators make the same children on all members.
 *  2. A new real communicator gets MPI_ERRORS_RETURN and its record (handle, groups, row) before in_lower is cleared.
 *  3. All members of a clock row have the same list of members: the group in its order. The list has instead all
 *     members that belong to the job, ascending, in three cases: there are two groups, there are members outside the
 *     job, or the row was made first.
 */
#ifndef MANAPY_COMM_H
#define MANAPY_COMM_H

#include "group.h"
#include "clock/clock.h"
#include "core/objects.h"

/* ---- for all rooms ---- */
typedef struct mpy_topology mpy_topology_t;
MPY_HIDDEN void mpy_comm_init(void);      /* creates world and self, before the real MPI_Init */
MPY_HIDDEN int mpy_comm_init_internal(void); /* in the lower half, after the real MPI_Init */
MPY_HIDDEN void mpy_comm_finalize(void);  /* forgets all communicators */
/* see mpy_object_unref; returns the error of the real MPI_Comm_free */
MPY_HIDDEN int mpy_comm_unref(mpy_comm_t *c);
MPY_HIDDEN bool mpy_comm_gone(const mpy_comm_t *c); /* all members have freed it and know this */
MPY_HIDDEN uint64_t mpy_comm_cid(const mpy_comm_t *c);

/* Gives a new real communicator, intra or inter, a handle, an error handler and a row. In the lower half. A
 * communicator with members outside the job is `foreign`, and counts on a row of the members inside. `cid`: new, and
 * the same on all members inside the job. */
MPY_HIDDEN mpy_comm_t *mpy_comm_adopt(int real, uint64_t cid, int errhandler);
/* A constructor that all members of one communicator call; in the lower half from begin to end (comm_new.c):
 *     mpy_construction_t k = mpy_construct_begin(comm);      counts on the parent
 *     k.rc = MPY_REAL(Comm_...)(mpy_real_comm(comm), ..., &k.real);
 *     return mpy_construct_end(&k, newcomm, "MPI_Comm_..."); */
typedef struct mpy_construction {
    mpy_thread_t *t;
    mpy_comm_t *parent; /* NULL: bad handle; the real library returns the error */
    uint64_t seq;       /* the parent's SEQ including this call: it names the child */
    int errhandler;     /* the parent's, unless the constructor needs another */
    int rc, real;
    uint64_t record;    /* in the trace */
} mpy_construction_t;
MPY_HIDDEN mpy_construction_t mpy_construct_begin(MPI_Comm comm);
MPY_HIDDEN int mpy_construct_end(mpy_construction_t *k, MPI_Comm *newcomm, const char *name);
/* After a restart. The last one makes the entries in the trace's table of communicators. */
MPY_HIDDEN int mpy_comm_rebuild(char *error, uint64_t n);
MPY_HIDDEN void mpy_comm_rebuild_trace(void);

/* ---- connections (dynamic.c); in the lower half or a guard ---- */
/* a foreign communicator was created, removed or named: updates the obstacle */
MPY_HIDDEN void mpy_connections_changed(void);
/* a file that was opened on a foreign communicator, which it may outlive */
typedef struct mpy_foreign_file { struct mpy_foreign_file *next; const char *name; } mpy_foreign_file_t;
MPY_HIDDEN void mpy_foreign_file_open(mpy_foreign_file_t *f);
MPY_HIDDEN void mpy_foreign_file_close(const mpy_foreign_file_t *f);
MPY_HIDDEN void mpy_parent_adopt(void);        /* after the real MPI_Init */
MPY_HIDDEN void mpy_obstacle(const char *line); /* from now on no checkpoint is possible, for this reason */
MPY_HIDDEN int mpy_port_rebuild(char *error, uint64_t n);

/* ---- for this room and persistent.c ---- */

typedef struct mpy_count mpy_count_t;
typedef struct mpy_comm_record {
    mpy_comm_t comm; /* first: records and communicators are the same address */
    mpy_link_t all;
    uint64_t cid;
    int32_t *members; /* members of the row (invariant 3); may be comm.world */
    int nmembers;
    mpy_topology_t *topology; /* NULL: none */
    const char *origin;       /* for a foreign communicator: the function that created it */
    /* successful constructors on it and its ancestors: the same number on all members */
    uint32_t made;
    uint32_t persistent;      /* references that records of persistent.c hold */
    mpy_count_t *counts;      /* mpy_comm_count; with mpy_objects_lock */
    bool left;                /* comm_freed.c: freed here, but perhaps not by all members; with mpy_objects_lock */
    bool asked;               /* likewise: a thread is in an agreement that includes it */
} mpy_comm_record_t;

#define MPY_COMM_RECORD(LINK) ((mpy_comm_record_t *)((char *)(LINK) - offsetof(mpy_comm_record_t, all)))
extern MPY_HIDDEN mpy_link_t mpy_comms; /* all records, the oldest first */

/* ---- records (comm.c); in the lower half ---- */
/* Makes a record from the real communicator's own answers: groups, topology. It has no handle yet. */
MPY_HIDDEN mpy_comm_t *mpy_comm_read(int real);
/* The same for a communicator that is like another one. Its real handle is still MPI_COMM_NULL. */
MPY_HIDDEN mpy_comm_t *mpy_comm_copy(const mpy_comm_t *from);
MPY_HIDDEN void mpy_comm_discard(mpy_comm_t *c); /* the communicator gets no handle and is not needed */
MPY_HIDDEN void mpy_comm_publish(mpy_comm_t *c, uint64_t cid, int errhandler); /* gives it a handle and a row */
/* The same for a communicator that the constructor `name` has created. */
MPY_HIDDEN void mpy_comm_publish_child(mpy_comm_t *c, const mpy_construction_t *k, const char *name);
/* If the new communicator has members outside the job, it is an obstacle from now on. */
MPY_HIDDEN void mpy_comm_connects(mpy_comm_t *c, const char *name);
MPY_HIDDEN void mpy_comm_name(mpy_comm_t *c, const char *name);
/* Ends a call that counted on a row made at its entry. The communicator gets the row and a handle. If it is
 * MPI_COMM_NULL, the row is removed. Returns the program's handle. */
MPY_HIDDEN int mpy_comm_adopt_row(int real, uint64_t cid, int errhandler, uint32_t row);
/* The processes of the job that are members of either group, ascending; mpy_alloc(*n). */
MPY_HIDDEN int32_t *mpy_comm_union(const int32_t *a, int na, const int32_t *b, int nb, int *n);
/* Of two communicators, in any order. */
static inline uint64_t mpy_comm_pair_id(uint64_t a, uint64_t b) {
    return mpy_child_cid(a < b ? a : b, a < b ? b : a, 0);
}
/* How often this identity, which `parent` is part of, and this tag have been used. This is part of an identity and the
 * same on all members. */
MPY_HIDDEN uint64_t mpy_comm_count(mpy_comm_t *parent, uint64_t id, int tag);
/* undoes the last count: its communicator isn't created */
MPY_HIDDEN void mpy_comm_count_back(mpy_comm_t *parent, uint64_t id, int tag);

/* ---- communicators freed here (comm_freed.c); in the lower half ---- */
/* MPI_Allreduce for our own needs, of real types and operations; the communicator does not age by it (invariant 3 of
 * comm_rebuild.c). */
MPY_HIDDEN int mpy_comm_reduce(const void *in, void *out, int n, int type, int op, const mpy_comm_t *c);
/* The program has no handle of it any more. Returns the error of the real MPI_Comm_free. */
MPY_HIDDEN int mpy_comm_leave(mpy_comm_t *c);
/* At the end of a blocking constructor. All members of `parent` call it. If there is no parent (NULL), all members of
 * `child` call it. */
MPY_HIDDEN void mpy_comm_made(mpy_comm_t *parent, mpy_comm_t *child_or_null);

/* Ends a constructor whose communicator (or NULL) has its handle already. */
MPY_HIDDEN int mpy_construct_leave(const mpy_construction_t *k, const mpy_comm_t *c, MPI_Comm *newcomm,
                                   const char *name);
/* Collective over a group only; this process must belong to it. Returns an MPI error code, and a handle. */
MPY_HIDDEN int mpy_comm_create_group(mpy_thread_t *t, const mpy_group_t *g, int tag, int errhandler, MPI_Comm comm,
                                     MPI_Comm *newcomm);

/* ---- topologies (topology.c); in the lower half ---- */
MPY_HIDDEN void mpy_topology_read(mpy_comm_record_t *r);
MPY_HIDDEN mpy_topology_t *mpy_topology_copy(const mpy_topology_t *from);
MPY_HIDDEN void mpy_topology_free(mpy_topology_t *topology);
/* Applies the topology to a copy of `base`; all ranks stay the same. */
MPY_HIDDEN int mpy_topology_rebuild(const mpy_topology_t *topology, int base, int *real);

#endif
