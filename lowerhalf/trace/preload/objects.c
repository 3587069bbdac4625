/* objects.c - communicators, windows and files of a recorded program: their members, and the number of collectives on
 * them. See preload.h.
 *
 * Invariants
 *  1. A table is read without a lock while another thread adds an entry. So an entry's object is stored before its
 *     handle, and a larger table is filled before it replaces the old one. Old tables stay in memory; together they are
 *     smaller than the new one.
 *  2. An object that was freed keeps its memory (threads or requests may still refer to it) and its entry in the side
 *     table.
 */
#include "preload.h"
#include <manapy/fnv.h>
#include <manapy/lock.h>
#include <stdlib.h>
#include <string.h>

mpy_trace_t mpy_trace;
bool mpy_multiple;

enum { FIRST_TABLE = 64 };

/* handle 0: free; object NULL: removed, can be reused for the same handle */
typedef struct slot { uint64_t handle; mpy_object_t *object; } slot_t;
typedef struct table { uint64_t mask, used; slot_t slots[]; } table_t;
static table_t *comms, *windows, *files;
static uint32_t lock;

static uint64_t place(uint64_t handle, uint64_t mask) { return (handle * 0x9e3779b97f4a7c15ul >> 20) & mask; }

static slot_t *find(table_t *t, uint64_t handle) { /* returns its slot, or the free slot where it would be */
    uint64_t i = place(handle, t->mask);
    while (t->slots[i].handle != 0 && __atomic_load_n(&t->slots[i].handle, __ATOMIC_ACQUIRE) != handle)
        i = (i + 1) & t->mask;
    return &t->slots[i];
}

static mpy_object_t *get(table_t *const *table, uint64_t handle) {
    table_t *t = __atomic_load_n(table, __ATOMIC_ACQUIRE);
    return t == NULL ? NULL : find(t, handle)->object;
}

static table_t *new_table(uint64_t slots) {
    table_t *t = calloc(1, sizeof *t + slots * sizeof *t->slots);
    if (t != NULL) t->mask = slots - 1;
    return t;
}

static void put(table_t **table, uint64_t handle, mpy_object_t *object) {
    mpy_lock_acquire(&lock);
    table_t *t = *table;
    if (t == NULL || 2 * t->used >= t->mask) {
        table_t *larger = new_table(t == NULL ? FIRST_TABLE : 2 * (t->mask + 1));
        if (larger == NULL) goto out;
        for (uint64_t i = 0; t != NULL && i <= t->mask; i++) {
            if (t->slots[i].object == NULL) continue;
            *find(larger, t->slots[i].handle) = t->slots[i];
            larger->used++;
        }
        t = larger;
        __atomic_store_n(table, t, __ATOMIC_RELEASE);
    }
    slot_t *slot = find(t, handle);
    if (slot->handle == 0) t->used++;
    __atomic_store_n(&slot->object, object, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->handle, handle, __ATOMIC_RELEASE);
out:
    mpy_lock_release(&lock);
}

static void gone(table_t *const *table, uint64_t handle) {
    table_t *t = *table;
    if (t != NULL) find(t, handle)->object = NULL;
}

/* ---- identities: those of wrappers/clock/clock.c, which has no libc to sort with ---- */

static int by_rank(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static uint64_t ggid_of(const int32_t *world, int n) { /* doesn't depend on the order */
    int32_t *copy = malloc((size_t)n * sizeof *copy + 1);
    if (copy == NULL) return 0;
    memcpy(copy, world, (size_t)n * sizeof *copy);
    qsort(copy, (size_t)n, sizeof *copy, by_rank);
    uint64_t hash = mpy_fnv1a(copy, (size_t)n * sizeof *copy);
    free(copy);
    return hash;
}

/* How many communicators of these groups have been made in the same way. */
static uint64_t count_of(uint64_t both, int64_t salt) {
    static struct { uint64_t key, count; } *counts;
    static uint64_t n, room;
    uint64_t key = mpy_fnv1a_words(both, (uint64_t)salt, 0), result = 0;
    mpy_lock_acquire(&lock);
    uint64_t i = 0;
    while (i < n && counts[i].key != key) i++;
    if (i == n && n == room) {
        void *larger = realloc(counts, (2 * room + 16) * sizeof *counts);
        if (larger != NULL) counts = larger, room = 2 * room + 16;
    }
    if (i == n && n < room) {
        counts[n].key = key;
        counts[n++].count = 0;
    }
    if (i < n) result = ++counts[i].count;
    mpy_lock_release(&lock);
    return result;
}

/* ---- members ---- */

typedef int (*ask_t)(mpy_word_t, int *);
typedef int (*group_of_t)(mpy_word_t, void *);
#define MPI(NAME) mpy_library_function("PMPI_" #NAME)

/* Stores the world ranks of the group that PMPI_`get` returns for the communicator in `out`, unless it is NULL. Returns
 * their number. */
static int group_members(const char *get, mpy_word_t comm, int32_t *out) {
    group_of_t group_of = (group_of_t)mpy_library_function(get);
    int (*translate)(mpy_word_t, int, const int *, mpy_word_t, int *) = MPI(Group_translate_ranks);
    int (*release)(void *) = MPI(Group_free);
    mpy_word_t group = 0, world = 0;
    int n = 0;
    if (group_of(comm, &group) != 0) return 0;
    ((ask_t)MPI(Group_size))(group, &n);
    int *ranks = out == NULL ? NULL : malloc((size_t)n * sizeof *ranks + 1);
    if (ranks != NULL) {
        for (int i = 0; i < n; i++) ranks[i] = i;
        ((group_of_t)MPI(Comm_group))(mpy_abi.comm_world, &world);
        translate(group, n, ranks, world, out);
        for (int i = 0; i < n; i++)
            if (out[i] < 0) out[i] = -1; /* a process of another world */
        release(&world);
        free(ranks);
    }
    release(&group);
    return n;
}

/* Number of neighbors that this process sends to. */
static int outdegree_of(mpy_word_t comm) {
    int kind = 0, n = 0, in, weighted, rank;
    if (((ask_t)MPI(Topo_test))(comm, &kind) != 0) return 0;
    if (kind == mpy_abi.cart) {
        ((ask_t)MPI(Cartdim_get))(comm, &n);
        n *= 2;
    } else if (kind == mpy_abi.graph) {
        ((ask_t)MPI(Comm_rank))(comm, &rank);
        ((int (*)(mpy_word_t, int, int *))MPI(Graph_neighbors_count))(comm, rank, &n);
    } else if (kind == mpy_abi.dist_graph) {
        ((int (*)(mpy_word_t, int *, int *, int *))MPI(Dist_graph_neighbors_count))(comm, &in, &n, &weighted);
    }
    return n;
}

/* Describes a communicator by querying it. The caller sets cid. NULL: no memory. */
static mpy_object_t *describe(mpy_word_t comm) {
    mpy_object_t *o = calloc(1, sizeof *o);
    if (o == NULL) return NULL;
    int inter = 0;
    ((ask_t)MPI(Comm_test_inter))(comm, &inter);
    o->size = group_members("PMPI_Comm_group", comm, NULL);
    o->remote_size = inter ? group_members("PMPI_Comm_remote_group", comm, NULL) : 0;
    o->outdegree = inter ? 0 : outdegree_of(comm);
    int n = o->size + o->remote_size;
    o->members = malloc((size_t)n * sizeof *o->members + 1);
    if (o->members == NULL) {
        free(o);
        return NULL;
    }
    group_members("PMPI_Comm_group", comm, o->members);
    if (inter) group_members("PMPI_Comm_remote_group", comm, o->members + o->size);
    o->ggid = ggid_of(o->members, n);
    for (int i = 0; i < n; i++)
        if (i == 0 || o->members[i] < o->smallest) o->smallest = o->members[i];
    return o;
}

static uint32_t add(const mpy_object_t *o, const char *name) {
    return mpy_trace_comm_add(&mpy_trace, o->cid, o->ggid, o->members, (uint32_t)(o->size + o->remote_size),
                              (uint32_t)o->remote_size, name);
}

static mpy_object_t *enter(table_t **table, uint64_t handle, mpy_object_t *o, uint64_t cid, const char *name) {
    o->cid = cid;
    o->index = add(o, name);
    put(table, handle, o);
    return o;
}

/* ---- communicators ---- */

void mpy_objects_start(void) {
    mpy_object_t *world = describe(mpy_abi.comm_world), *self = describe(mpy_abi.comm_self);
    uint64_t cid = mpy_fnv1a_words(0, 0, 0);
    if (world == NULL || self == NULL) return;
    enter(&comms, mpy_abi.comm_world, world, cid, "MPI_COMM_WORLD");
    enter(&comms, mpy_abi.comm_self, self, mpy_fnv1a_words(cid, 0, (uint64_t)(int64_t)self->members[0]),
          "MPI_COMM_SELF");
}

/* A communicator that was created in a way that isn't tracked (a spawned job's parent, sessions): identified by its
 * groups. */
static mpy_object_t *stranger(uint64_t handle) {
    mpy_object_t *o = describe(handle);
    return o == NULL ? NULL : enter(&comms, handle, o, mpy_fnv1a_words(o->ggid, 0, count_of(o->ggid, 0)), NULL);
}

mpy_object_t *mpy_comm_of(mpy_word_t comm) {
    uint64_t handle = mpy_handle(comm);
    if (handle == mpy_abi.comm_null || handle == 0) return NULL;
    mpy_object_t *o = get(&comms, handle);
    return __builtin_expect(o != NULL, 1) ? o : stranger(handle);
}

void mpy_comm_made(const mpy_object_t *parent, uint64_t seq, const void *out) {
    uint64_t handle = mpy_handle_at(out, 0);
    mpy_object_t *o;
    if (parent == NULL || handle == mpy_abi.comm_null || (o = describe(handle)) == NULL) return;
    enter(&comms, handle, o, mpy_fnv1a_words(parent->cid, seq, (uint64_t)(int64_t)o->smallest), NULL);
}

void mpy_comm_made_of_groups(const void *out, int64_t salt) {
    uint64_t handle = mpy_handle_at(out, 0);
    mpy_object_t *o;
    if (handle == mpy_abi.comm_null || (o = describe(handle)) == NULL) return;
    uint64_t a = ggid_of(o->members, o->size), b = ggid_of(o->members + o->size, o->remote_size);
    uint64_t both = o->remote_size == 0 ? a : a < b ? mpy_fnv1a_words(a, b, 0) : mpy_fnv1a_words(b, a, 0);
    enter(&comms, handle, o, mpy_fnv1a_words(both, (uint64_t)salt, count_of(both, salt)), NULL);
}

void mpy_comm_gone(uint64_t handle) { gone(&comms, handle); }

void mpy_comm_named(mpy_word_t comm, const char *name) {
    mpy_object_t *o = mpy_comm_of(comm);
    if (o != NULL) o->index = add(o, name);
}

/* ---- windows and files: they have the members of the communicator that they were made on, and a SEQ of their own
 * ---- */

static mpy_object_t *of_parent(const mpy_object_t *parent) {
    mpy_object_t *o = parent == NULL ? NULL : malloc(sizeof *o);
    if (o == NULL) return NULL;
    *o = *parent; /* shares its members, which are never freed */
    o->seq = 0;
    o->access = o->exposure = NULL;
    return o;
}

static mpy_object_t *lookup(table_t *const *table, uint64_t handle, uint64_t null) {
    return handle == null || handle == 0 ? NULL : get(table, handle);
}

mpy_object_t *mpy_win_of(mpy_word_t win) { return lookup(&windows, mpy_handle(win), mpy_abi.win_null); }
mpy_object_t *mpy_file_of(mpy_word_t file) { return lookup(&files, file, mpy_abi.file_null); }

void mpy_win_made(const mpy_object_t *parent, uint64_t seq, const void *handle) {
    mpy_object_t *o = of_parent(parent);
    if (o != NULL)
        enter(&windows, mpy_handle_at(handle, 0), o, mpy_fnv1a_words(parent->cid, seq, ~(uint64_t)(int64_t)o->smallest),
              "window");
}

void mpy_file_made(const mpy_object_t *parent, uint64_t seq, const void *handle) {
    mpy_object_t *o = of_parent(parent);
    if (o != NULL)
        enter(&files, *(const uint64_t *)handle, o, mpy_fnv1a_words(parent->cid, seq, (uint64_t)(int64_t)o->smallest),
              "file");
}

void mpy_win_gone(uint64_t handle) { gone(&windows, handle); }
void mpy_file_gone(uint64_t handle) { gone(&files, handle); }
