/* comm_freed.c - communicators that this process has freed, but other members may not have.
 *
 * Upper half, no libc; called in the lower half. MPI_Comm_free is local: members free a communicator at different
 * times, in different orders, and some perhaps never. Meanwhile its record and its row stay here ("left"). The row says
 * how many collectives this process has started there, which may be the target of other members. And a restart needs
 * all members to create the communicator again for those that hold it.
 *
 * A record that all members have left, and on which none has a request, is removed when the members agree on it. They
 * do so in some constructor calls: blocking collectives that include all of them. Each adds up what it has left. A
 * record is removed if as many processes have left it as it has members. So a member that does not have the
 * communicator yet (another of its threads is just creating it) keeps it.
 *
 * Invariants
 *  1. At a safe state all members of left communicators have the same records of them: records are removed inside a
 *     call that counts.
 *  2. A left communicator has no handle, and the program has nothing of it except requests (refs). Its real
 *     communicator is freed when no request is left.
 *  3. A record is in one agreement at a time (asked): threads may be in constructors of different communicators. If
 *     members have it in different agreements, it stays until the next one.
 */
#include "comm.h"
#include "clock/clock.h"
#include "collective/persistent.h"
#include "p2p/p2p.h"

enum {
    ASK_EVERY = 32,    /* agree after so many constructors; each time this costs one more MPI_Allreduce */
    WANTED_FROM = 64,  /* communicators left here since the last agreement that make one worthwhile */
    SLOTS_PER_RECORD = 4,
    SLOTS_MIN = 64,
};

static uint32_t since; /* communicators left since the last agreement; with mpy_objects_lock */

bool mpy_comm_gone(const mpy_comm_t *c) { return c->obj.handle == 0 && !((const mpy_comm_record_t *)c)->left; }

int mpy_comm_leave(mpy_comm_t *c) {
    mpy_comm_record_t *r = (mpy_comm_record_t *)c;
    mpy_row_leave(c->row);
    mpy_lock(&mpy_objects_lock);
    r->left = true;
    since++;
    mpy_unlock(&mpy_objects_lock);
    return mpy_comm_unref(c);
}

static void forget(mpy_comm_record_t *r) {
    mpy_comm_t *c = &r->comm;
    mpy_lock(&mpy_objects_lock);
    mpy_object_ref(&c->obj);
    r->left = false;
    mpy_unlock(&mpy_objects_lock);
    mpy_partitioned_comm_free(c);
    mpy_persistent_comm_free(c);
    mpy_row_remove(c->row);
    mpy_comm_unref(c);
}

/* ---- the agreement ---- */

int mpy_comm_reduce(const void *in, void *out, int n, int type, int op, const mpy_comm_t *c) {
    int request, rc = MPY_REAL(Iallreduce)(in, out, n, type, op, c->obj.real, &request);
    return rc == 0 ? MPY_REAL(Wait)(&request, MPI_STATUS_IGNORE) : rc;
}

/* Adds up the values of all members, in both groups if there are two: each group first gets the other's sum, then what
 * one of the others has got. */
static int add_up(uint64_t *values, int n, const mpy_comm_t *c) {
    if (c->remote_size == 0) return mpy_comm_reduce(MPI_IN_PLACE, values, n, MPI_UINT64_T, MPI_SUM, c);
    size_t bytes = (size_t)n * sizeof *values;
    uint64_t *others = mpy_alloc(2 * bytes), *ours = others + n;
    int rc = mpy_comm_reduce(values, others, n, MPI_UINT64_T, MPI_SUM, c);
    __builtin_memset(values, 0, bytes);
    if (rc == 0) rc = mpy_comm_reduce(c->rank == 0 ? others : values, ours, n, MPI_UINT64_T, MPI_SUM, c);
    for (int i = 0; i < n; i++) values[i] = others[i] + ours[i];
    mpy_free(others, 2 * bytes);
    return rc;
}

typedef struct list {
    mpy_comm_record_t **records;
    uint32_t n, allocated;
    /* number of records of which this process is the first member: summed over all ranks, the number of different
     * records */
    uint64_t firsts;
} list_t;

/* Neither the program nor one of its requests needs it any more. */
static bool is_done_with(const mpy_comm_record_t *r) { return r->left && r->comm.obj.refs == (int32_t)r->persistent; }

static bool is_first(const mpy_comm_record_t *r) {
    for (int i = 0; i < r->nmembers; i++)
        if (r->members[i] < MPY_LOWER->rank) return false;
    return true;
}

/* The records that this process has left, that have no request, and whose members all belong to `c`. */
static list_t list(const mpy_comm_t *c) {
    const mpy_comm_record_t *parent = (const mpy_comm_record_t *)c;
    uint8_t *member = mpy_alloc((size_t)mpy_world->size);
    list_t all = {0};
    for (int i = 0; i < parent->nmembers; i++) member[parent->members[i]] = 1;
    mpy_lock(&mpy_objects_lock);
    for (mpy_link_t *l = mpy_comms.next; l != &mpy_comms; l = l->next) all.allocated += MPY_COMM_RECORD(l)->left;
    all.records = mpy_alloc((size_t)(all.allocated + 1) * sizeof *all.records);
    for (mpy_link_t *l = mpy_comms.next; l != &mpy_comms; l = l->next) {
        mpy_comm_record_t *r = MPY_COMM_RECORD(l);
        bool inside = is_done_with(r) && !r->asked;
        for (int i = 0; i < r->nmembers && inside; i++) inside = member[r->members[i]];
        if (!inside) continue;
        r->asked = true;
        all.records[all.n++] = r;
        all.firsts += is_first(r);
    }
    mpy_unlock(&mpy_objects_lock);
    mpy_free(member, (size_t)mpy_world->size);
    return all;
}

typedef struct slot { uint64_t count, sum; } slot_t;

/* Removes the records that all members have left from the list and frees them. */
static void agree(const mpy_comm_t *c, const list_t *left) {
    /* the salt differs each time, so no two records share a slot for ever */
    struct { uint64_t firsts, salt; } all = {left->firsts, since};
    if (add_up(&all.firsts, 2, c) != 0) return;
    uint64_t slots_n = SLOTS_MIN;
    while (slots_n < SLOTS_PER_RECORD * all.firsts) slots_n *= 2;
    slot_t *slots = mpy_alloc(slots_n * sizeof *slots);
    for (uint32_t i = 0; i < left->n; i++) {
        uint64_t key = mpy_child_cid(left->records[i]->cid, all.salt, 0);
        slots[key % slots_n].count++;
        slots[key % slots_n].sum += key;
    }
    int rc = add_up(&slots->count, (int)(2 * slots_n), c);
    for (uint32_t i = 0; i < left->n && rc == 0; i++) {
        uint64_t key = mpy_child_cid(left->records[i]->cid, all.salt, 0),
                 members = (uint64_t)left->records[i]->nmembers;
        if (slots[key % slots_n].count != members || slots[key % slots_n].sum != members * key) continue;
        forget(left->records[i]);
        left->records[i] = NULL;
    }
    mpy_free(slots, slots_n * sizeof *slots);
}

static void ask(const mpy_comm_t *c) {
    uint64_t wanted = since >= WANTED_FROM;
    if (c->foreign || add_up(&wanted, 1, c) != 0 || wanted == 0) return;
    list_t left = list(c);
    agree(c, &left);
    mpy_lock(&mpy_objects_lock);
    for (uint32_t i = 0; i < left.n; i++)
        if (left.records[i] != NULL) left.records[i]->asked = false;
    since = 0;
    mpy_unlock(&mpy_objects_lock);
    mpy_free(left.records, (size_t)(left.allocated + 1) * sizeof *left.records);
}

void mpy_comm_made(mpy_comm_t *parent, mpy_comm_t *child) {
    mpy_comm_record_t *p = (mpy_comm_record_t *)parent, *c = (mpy_comm_record_t *)child;
    if (p != NULL) p->made++;
    /* so that a chain of duplicates, in which each is freed after the next is created, also reaches an agreement */
    if (p != NULL && c != NULL) c->made = p->made;
    if (p == NULL || p->made % ASK_EVERY == 0) ask(p != NULL ? parent : child);
}
