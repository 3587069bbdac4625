/* attr.c - attributes and keyvals of communicators, datatypes and windows. They exist only here: the real objects have
 * none of the program's attributes, so that the lower half never calls a callback.
 *
 * Upper half, upper TLS; callbacks are the program's.
 *
 * Invariants
 *  1. A keyval exists as long as the program holds it or an attribute of it exists (obj.refs counts both).
 *     KEYVAL_FREED: only attributes hold it.
 *  2. Lists have the newest attribute first: MPI deletes attributes in the reverse order of setting (MPI-4 11.2.4).
 *     Copies keep the order.
 *  3. Callbacks run with in_lower = 0, between changes of the list: they may call MPI, or leave with longjmp.
 *  4. A value has the type of the language it was set in. C gets a pointer to an integer of Fortran. Fortran gets an
 *     address of C as an integer (MPI-4 19.3.7).
 *  5. Lists and the reference counts of keyvals change under attr_lock: several threads may create, read and copy
 *     attributes of one object at the same time.
 */
#include "attr.h"
#include "core/objects.h"
#include "datatype/datatype.h"
#include "environment/errors.h"
#include "window/win.h"

enum { KEYVAL_FREED = 1 };
/* MPIR_Attr_type of MPICH's Fortran library; odd values are integers */
typedef enum { ATTR_POINTER = 0, ATTR_AINT = 1, ATTR_INT = 3 } mpy_attr_type_t;
/* MPICH: kind of object in bits 22-25 */
enum { FOR_COMM = 1 << 22, FOR_TYPE = 3 << 22, FOR_WIN = 8 << 22, FOR_MASK = 15 << 22 };

static uint32_t attr_lock; /* protects lists and the flags of keyvals (invariant 5) */

static mpy_thread_t *lists_lock(void) {
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    mpy_lock(&attr_lock);
    return t;
}
static void lists_unlock(mpy_thread_t *t) {
    mpy_unlock(&attr_lock);
    mpy_guard_out(t);
}

/* ---- keyvals ---- */

/* Also finds a freed keyval: the program may use its handle while attributes of it exist (MPI-4 7.7.2). */
static mpy_keyval_t *find(int handle, int kind) {
    mpy_keyval_t *k = (mpy_keyval_t *)mpy_lookup(MPY_KEYVAL, handle);
    return k != NULL && (handle & FOR_MASK) == kind ? k : NULL;
}

/* With the lock. */
static void release(mpy_keyval_t *k) {
    if (--k->obj.refs > 0) return;
    mpy_object_remove(MPY_KEYVAL, k->obj.handle);
    mpy_free(k, sizeof *k);
}

static int keyval_create(MPI_Comm_copy_attr_function *copy, MPI_Comm_delete_attr_function *remove, int *keyval,
                         void *extra, int kind) {
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    mpy_keyval_t *k = mpy_alloc(sizeof *k);
    k->copy = copy;
    k->remove = remove;
    k->extra = extra;
    k->obj.refs = 1;
    k->obj.handle = kind;
    *keyval = mpy_object_add(MPY_KEYVAL, &k->obj);
    mpy_guard_out(t);
    return MPI_SUCCESS;
}

/* A second call does nothing, as in MPICH. */
static int keyval_free(int *keyval, int kind, const char *name) {
    mpy_thread_t *t = lists_lock();
    mpy_keyval_t *k = find(*keyval, kind);
    bool first = k != NULL && !(k->obj.flags & KEYVAL_FREED);
    if (first) {
        k->obj.flags |= KEYVAL_FREED;
        release(k);
    }
    lists_unlock(t);
    if (k == NULL) return mpy_error(NULL, MPI_ERR_KEYVAL, name);
    *keyval = MPI_KEYVAL_INVALID;
    return MPI_SUCCESS;
}

/* ---- lists ---- */

/* A copy of an attribute. Its keyval is kept meanwhile. */
typedef struct held {
    mpy_keyval_t *key; /* NULL: there is none */
    void *value;
    int type;
} held_t;

/* Call these three with the lock. */
static mpy_attr_t **attr_find(mpy_attr_t **list, const mpy_keyval_t *k) {
    while (*list != NULL && (*list)->key != k) list = &(*list)->next;
    return list;
}

static held_t hold(const mpy_attr_t *a) {
    if (a == NULL) return (held_t){NULL, NULL, 0};
    a->key->obj.refs++;
    return (held_t){a->key, a->value, a->type};
}

static mpy_attr_t *attr_make(mpy_keyval_t *k, void *value, int type, mpy_attr_t *next) {
    mpy_attr_t *a = mpy_alloc(sizeof *a);
    a->key = k;
    a->value = value;
    a->type = type;
    a->next = next;
    k->obj.refs++;
    return a;
}

/* What C gets for a value: the value itself, or the address of an integer of Fortran. */
static void *seen_by_c(int type, void **value) { return type & 1 ? (void *)value : *value; }

/* The return value of the program's function is the call's error code, as in MPICH. */
static int call_delete(int handle, held_t *a) {
    const mpy_keyval_t *k = a->key;
    if (k->remove == NULL) return MPI_SUCCESS;
    if (k->remove_proxy != NULL) return k->remove_proxy(k->remove, handle, k->obj.handle, a->type, a->value, k->extra);
    return k->remove(handle, k->obj.handle, seen_by_c(a->type, &a->value), k->extra);
}

static int call_copy(int handle, held_t *a, void **copy, int *flag) {
    const mpy_keyval_t *k = a->key;
    *flag = 0;
    if (k->copy == NULL) return MPI_SUCCESS;
    if (k->copy_proxy != NULL)
        return k->copy_proxy(k->copy, handle, k->obj.handle, k->extra, a->type, a->value, copy, flag);
    return k->copy(handle, k->obj.handle, k->extra, seen_by_c(a->type, &a->value), copy, flag);
}

static int attr_set(int handle, mpy_attr_t **list, mpy_keyval_t *k, void *value, int type) {
    mpy_thread_t *t = lists_lock();
    held_t old = hold(*attr_find(list, k));
    if (old.key == NULL) *list = attr_make(k, value, type, *list);
    lists_unlock(t);
    if (old.key == NULL) return MPI_SUCCESS;
    int rc = call_delete(handle, &old);
    lists_lock();
    mpy_attr_t *a = *attr_find(list, k);
    if (rc == 0 && a == NULL) *list = attr_make(k, value, type, *list); /* the callback has deleted it */
    if (rc == 0 && a != NULL) {
        a->value = value;
        a->type = type;
    }
    release(old.key);
    lists_unlock(t);
    return rc;
}

static void attr_get(mpy_attr_t **list, const mpy_keyval_t *k, void *value, int *flag, int type) {
    mpy_thread_t *t = lists_lock();
    mpy_attr_t *a = *attr_find(list, k);
    *flag = a != NULL;
    if (a != NULL) *(void **)value = type == ATTR_POINTER ? seen_by_c(a->type, &a->value) : a->value;
    lists_unlock(t);
}

/* Calls the function for an attribute and then deletes the attribute. If the function fails and `kept` is true, the
 * attribute stays. Consumes `a`. */
static int attr_drop(int handle, mpy_attr_t **list, held_t a, bool kept) {
    int rc = call_delete(handle, &a);
    mpy_thread_t *t = lists_lock();
    mpy_attr_t **at = attr_find(list, a.key), *gone = *at;
    if (gone != NULL && !(rc != 0 && kept)) { /* otherwise the callback has deleted it itself */
        *at = gone->next;
        release(gone->key);
        mpy_free(gone, sizeof *gone);
    }
    release(a.key);
    lists_unlock(t);
    return rc;
}

static int attr_delete(int handle, mpy_attr_t **list, mpy_keyval_t *k) {
    mpy_thread_t *t = lists_lock();
    held_t a = hold(*attr_find(list, k));
    lists_unlock(t);
    return a.key != NULL ? attr_drop(handle, list, a, true) : MPI_SUCCESS;
}

int mpy_attrs_delete(int handle, mpy_attr_t **list) {
    int rc = MPI_SUCCESS;
    for (;;) {
        mpy_thread_t *t = lists_lock();
        held_t a = hold(*list);
        lists_unlock(t);
        if (a.key == NULL) return rc;
        int failed = attr_drop(handle, list, a, false);
        if (failed) rc = failed;
    }
}

/* Copies of all attributes of a list; allocated by mpy_alloc, *n + 1 of them. */
static held_t *hold_all(mpy_attr_t *const *list, size_t *n) {
    mpy_thread_t *t = lists_lock();
    *n = 0;
    for (const mpy_attr_t *a = *list; a != NULL; a = a->next) ++*n;
    held_t *all = mpy_alloc((*n + 1) * sizeof *all);
    size_t i = 0;
    for (const mpy_attr_t *a = *list; a != NULL; a = a->next) all[i++] = hold(a);
    lists_unlock(t);
    return all;
}

static void release_all(held_t *all, size_t n) {
    mpy_thread_t *t = lists_lock();
    for (size_t i = 0; i < n; i++) release(all[i].key);
    mpy_free(all, (n + 1) * sizeof *all);
    lists_unlock(t);
}

int mpy_attrs_copy(int from_handle, mpy_attr_t *const *from, mpy_attr_t **to) {
    size_t n;
    int rc = MPI_SUCCESS;
    if (*from == NULL) return rc;
    held_t *all = hold_all(from, &n);
    mpy_attr_t **end = to;
    for (size_t i = 0; i < n && rc == 0; i++) {
        void *value = NULL;
        int flag;
        rc = call_copy(from_handle, &all[i], &value, &flag);
        if (rc != 0 || !flag) continue;
        mpy_thread_t *t = lists_lock();
        *end = attr_make(all[i].key, value, all[i].type, NULL); /* append: invariant 2 */
        end = &(*end)->next;
        lists_unlock(t);
    }
    release_all(all, n);
    if (rc != 0) mpy_attrs_delete(from_handle, to);
    return rc;
}

/* ---- predefined attributes: values of the real library, kept over a restart ----
 *
 * Without a process manager MPICH starts an mpiexec of its own to learn the size of the universe. This mpiexec takes
 * the end of the program for a crash and kills the process group, including the script that contains us. So in this
 * case MPICH isn't asked, and the attribute isn't set. */

static struct { int keyval, value, set;
} predefined[] = {
    {MPI_TAG_UB, 0, 0},        {MPI_HOST, 0, 0},         {MPI_IO, 0, 0},     {MPI_WTIME_IS_GLOBAL, 0, 0},
    {MPI_UNIVERSE_SIZE, 0, 0}, {MPI_LASTUSEDCODE, 0, 0}, {MPI_APPNUM, 0, 0},
};

/* The largest tag that every known library accepts, so that a program that asks can be restarted under another one:
 * PETSc takes its tags from the top. Intel MPI 2021.18 on OFI's tcp provider has this bound, MPICH 4.0.2 has 2^28 - 1,
 * MPICH 5.0.2 2^29 - 1, Open MPI 2^31 - 1. */
enum { PORTABLE_TAG_BOUND = (1 << 19) - 1 };

static int for_program(int keyval, int value) {
    if (keyval == MPI_LASTUSEDCODE) return mpy_error_virtual(value);
    return keyval == MPI_TAG_UB && value > PORTABLE_TAG_BOUND ? PORTABLE_TAG_BOUND : value;
}

static void read_predefined(size_t i) {
    int *value = NULL, set = 0;
    if (MPY_REAL(Comm_get_attr)(MPI_COMM_WORLD, predefined[i].keyval, &value, &set) != 0) return;
    predefined[i].set = set;
    if (set) predefined[i].value = for_program(predefined[i].keyval, *value);
}

int mpy_real_tag_bound(void) {
    int *value = NULL, set = 0;
    bool known = MPY_REAL(Comm_get_attr)(MPI_COMM_WORLD, MPI_TAG_UB, &value, &set) == 0 && set;
    return known ? *value : 32767; /* the least that MPI-4 9.1.2 allows */
}

void mpy_attr_read_predefined(void) {
    for (size_t i = 0; i < sizeof predefined / sizeof *predefined; i++)
        if (!MPY_LOWER->singleton || predefined[i].keyval != MPI_UNIVERSE_SIZE) read_predefined(i);
}

/* Only this one changes; reading others may cause a request to the process manager. */
void mpy_attr_read_last_code(void) {
    for (size_t i = 0; i < sizeof predefined / sizeof *predefined; i++)
        if (predefined[i].keyval == MPI_LASTUSEDCODE) read_predefined(i);
}

/* ---- communicators ---- */

int PMPI_Comm_create_keyval(MPI_Comm_copy_attr_function *copy, MPI_Comm_delete_attr_function *remove, int *keyval,
                            void *extra) {
    return keyval_create(copy, remove, keyval, extra, FOR_COMM);
}
int PMPI_Keyval_create(MPI_Copy_function *copy, MPI_Delete_function *remove, int *keyval, void *extra) {
    return keyval_create(copy, remove, keyval, extra, FOR_COMM);
}
int PMPI_Comm_free_keyval(int *keyval) { return keyval_free(keyval, FOR_COMM, "MPI_Comm_free_keyval"); }
int PMPI_Keyval_free(int *keyval) { return keyval_free(keyval, FOR_COMM, "MPI_Keyval_free"); }

static int comm_set(MPI_Comm comm, int keyval, void *value, int type, const char *name) {
    mpy_comm_t *c = mpy_comm(comm);
    mpy_keyval_t *k = find(keyval, FOR_COMM);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, name);
    if (k == NULL) return mpy_error(c, MPI_ERR_KEYVAL, name);
    return mpy_error(c, attr_set(comm, &c->attrs, k, value, type), name);
}

static int comm_get(MPI_Comm comm, int keyval, void *value, int *flag, int type, const char *name) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, name);
    for (size_t i = 0; i < sizeof predefined / sizeof *predefined; i++) {
        /* even keyvals are Fortran's */
        if (predefined[i].keyval != keyval && predefined[i].keyval + 1 != keyval) continue;
        *flag = predefined[i].set;
        if (*flag)
            *(void **)value =
                type == ATTR_POINTER ? (void *)&predefined[i].value : (void *)(intptr_t)predefined[i].value;
        return MPI_SUCCESS;
    }
    mpy_keyval_t *k = find(keyval, FOR_COMM);
    if (k == NULL) return mpy_error(c, MPI_ERR_KEYVAL, name);
    attr_get(&c->attrs, k, value, flag, type);
    return MPI_SUCCESS;
}

static int comm_delete(MPI_Comm comm, int keyval, const char *name) {
    mpy_comm_t *c = mpy_comm(comm);
    mpy_keyval_t *k = find(keyval, FOR_COMM);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, name);
    if (k == NULL) return mpy_error(c, MPI_ERR_KEYVAL, name);
    return mpy_error(c, attr_delete(comm, &c->attrs, k), name);
}

int PMPI_Comm_set_attr(MPI_Comm comm, int keyval, void *value) {
    return comm_set(comm, keyval, value, ATTR_POINTER, "MPI_Comm_set_attr");
}
int PMPI_Attr_put(MPI_Comm comm, int keyval, void *value) {
    return comm_set(comm, keyval, value, ATTR_POINTER, "MPI_Attr_put");
}
int PMPI_Comm_get_attr(MPI_Comm comm, int keyval, void *value, int *flag) {
    return comm_get(comm, keyval, value, flag, ATTR_POINTER, "MPI_Comm_get_attr");
}
int PMPI_Attr_get(MPI_Comm comm, int keyval, void *value, int *flag) {
    return comm_get(comm, keyval, value, flag, ATTR_POINTER, "MPI_Attr_get");
}
int PMPI_Comm_delete_attr(MPI_Comm comm, int keyval) { return comm_delete(comm, keyval, "MPI_Comm_delete_attr"); }
int PMPI_Attr_delete(MPI_Comm comm, int keyval) { return comm_delete(comm, keyval, "MPI_Attr_delete"); }

/* ---- datatypes ---- */

int PMPI_Type_create_keyval(MPI_Type_copy_attr_function *copy, MPI_Type_delete_attr_function *remove, int *keyval,
                            void *extra) {
    return keyval_create(copy, remove, keyval, extra, FOR_TYPE);
}
int PMPI_Type_free_keyval(int *keyval) { return keyval_free(keyval, FOR_TYPE, "MPI_Type_free_keyval"); }

static int type_set(MPI_Datatype datatype, int keyval, void *value, int type) {
    mpy_attr_t **list = mpy_datatype_attrs(datatype);
    mpy_keyval_t *k = find(keyval, FOR_TYPE);
    if (list == NULL) return mpy_error(NULL, MPI_ERR_TYPE, "MPI_Type_set_attr");
    if (k == NULL) return mpy_error(NULL, MPI_ERR_KEYVAL, "MPI_Type_set_attr");
    return mpy_error(NULL, attr_set(datatype, list, k, value, type), "MPI_Type_set_attr");
}

static int type_get(MPI_Datatype datatype, int keyval, void *value, int *flag, int type) {
    mpy_attr_t **list = mpy_datatype_attrs(datatype);
    mpy_keyval_t *k = find(keyval, FOR_TYPE);
    if (list == NULL) return mpy_error(NULL, MPI_ERR_TYPE, "MPI_Type_get_attr");
    if (k == NULL) return mpy_error(NULL, MPI_ERR_KEYVAL, "MPI_Type_get_attr");
    attr_get(list, k, value, flag, type);
    return MPI_SUCCESS;
}

int PMPI_Type_set_attr(MPI_Datatype datatype, int keyval, void *value) {
    return type_set(datatype, keyval, value, ATTR_POINTER);
}
int PMPI_Type_get_attr(MPI_Datatype datatype, int keyval, void *value, int *flag) {
    return type_get(datatype, keyval, value, flag, ATTR_POINTER);
}

int PMPI_Type_delete_attr(MPI_Datatype datatype, int keyval) {
    mpy_attr_t **list = mpy_datatype_attrs(datatype);
    mpy_keyval_t *k = find(keyval, FOR_TYPE);
    if (list == NULL) return mpy_error(NULL, MPI_ERR_TYPE, "MPI_Type_delete_attr");
    if (k == NULL) return mpy_error(NULL, MPI_ERR_KEYVAL, "MPI_Type_delete_attr");
    return mpy_error(NULL, attr_delete(datatype, list, k), "MPI_Type_delete_attr");
}

/* ---- windows ---- */

int PMPI_Win_create_keyval(MPI_Win_copy_attr_function *copy, MPI_Win_delete_attr_function *remove, int *keyval,
                           void *extra) {
    return keyval_create(copy, remove, keyval, extra, FOR_WIN);
}
int PMPI_Win_free_keyval(int *keyval) { return keyval_free(keyval, FOR_WIN, "MPI_Win_free_keyval"); }

static int win_set(MPI_Win win, int keyval, void *value, int type) {
    mpy_win_t *w = mpy_win(win);
    mpy_keyval_t *k = find(keyval, FOR_WIN);
    if (w == NULL) return mpy_error(NULL, MPI_ERR_WIN, "MPI_Win_set_attr");
    if (k == NULL) return mpy_win_error(w, MPI_ERR_KEYVAL, "MPI_Win_set_attr");
    return mpy_win_error(w, attr_set(win, &w->team.attrs, k, value, type), "MPI_Win_set_attr");
}

/* The base is the attribute's value itself. For the others C gets their address, Fortran the value (MPI-4 12.2.6).
 * Fortran's keyvals are even, each one more than C's. */
static bool win_predefined(mpy_win_t *w, int keyval, void **value, int type) {
    void *address;
    intptr_t integer;
    switch (keyval % 2 != 0 ? keyval : keyval - 1) {
    case MPI_WIN_BASE: address = w->base, integer = (intptr_t)w->base; break;
    case MPI_WIN_SIZE: address = &w->size, integer = w->size; break;
    /* C's int is the low half of intptr_t */
    case MPI_WIN_DISP_UNIT: address = &w->disp_unit, integer = w->disp_unit; break;
    case MPI_WIN_CREATE_FLAVOR: address = &w->flavor, integer = w->flavor; break;
    case MPI_WIN_MODEL: address = &w->model, integer = w->model; break;
    default: return false;
    }
    *value = type == ATTR_POINTER ? address : (void *)integer;
    return true;
}

static int win_get(MPI_Win win, int keyval, void *value, int *flag, int type) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_error(NULL, MPI_ERR_WIN, "MPI_Win_get_attr");
    if (win_predefined(w, keyval, value, type)) {
        *flag = 1;
        return MPI_SUCCESS;
    }
    mpy_keyval_t *k = find(keyval, FOR_WIN);
    if (k == NULL) return mpy_win_error(w, MPI_ERR_KEYVAL, "MPI_Win_get_attr");
    attr_get(&w->team.attrs, k, value, flag, type);
    return MPI_SUCCESS;
}

int PMPI_Win_set_attr(MPI_Win win, int keyval, void *value) { return win_set(win, keyval, value, ATTR_POINTER); }
int PMPI_Win_get_attr(MPI_Win win, int keyval, void *value, int *flag) {
    return win_get(win, keyval, value, flag, ATTR_POINTER);
}

int PMPI_Win_delete_attr(MPI_Win win, int keyval) {
    mpy_win_t *w = mpy_win(win);
    mpy_keyval_t *k = find(keyval, FOR_WIN);
    if (w == NULL) return mpy_error(NULL, MPI_ERR_WIN, "MPI_Win_delete_attr");
    if (k == NULL) return mpy_win_error(w, MPI_ERR_KEYVAL, "MPI_Win_delete_attr");
    return mpy_win_error(w, attr_delete(win, &w->team.attrs, k), "MPI_Win_delete_attr");
}

/* ---- called by MPICH's Fortran library: the same for its integers ---- */

#define INTERNAL __attribute__((visibility("default")))

extern INTERNAL int MPIR_Dup_fn(int, int, void *, void *, void *, int *);
int MPIR_Dup_fn(int handle, int keyval, void *extra, void *in, void *out, int *flag) {
    (void)handle, (void)keyval, (void)extra;
    *(void **)out = in;
    *flag = 1;
    return MPI_SUCCESS;
}

extern INTERNAL void MPII_Keyval_set_proxy(int, mpy_attr_copy_proxy_t *, mpy_attr_delete_proxy_t *);
void MPII_Keyval_set_proxy(int keyval, mpy_attr_copy_proxy_t *copy, mpy_attr_delete_proxy_t *remove) {
    mpy_keyval_t *k = (mpy_keyval_t *)mpy_lookup(MPY_KEYVAL, keyval);
    if (k == NULL) return;
    k->copy_proxy = copy;
    k->remove_proxy = remove;
}

extern INTERNAL int MPII_Comm_set_attr(MPI_Comm, int, void *, int),
    MPII_Comm_get_attr(MPI_Comm, int, void *, int *, int);
int MPII_Comm_set_attr(MPI_Comm comm, int keyval, void *value, int type) {
    return comm_set(comm, keyval, value, type, "MPI_Comm_set_attr");
}
int MPII_Comm_get_attr(MPI_Comm comm, int keyval, void *value, int *flag, int type) {
    return comm_get(comm, keyval, value, flag, type, "MPI_Comm_get_attr");
}

extern INTERNAL int MPII_Type_set_attr(MPI_Datatype, int, void *, int),
    MPII_Type_get_attr(MPI_Datatype, int, void *, int *, int);
int MPII_Type_set_attr(MPI_Datatype datatype, int keyval, void *value, int type) {
    return type_set(datatype, keyval, value, type);
}
int MPII_Type_get_attr(MPI_Datatype datatype, int keyval, void *value, int *flag, int type) {
    return type_get(datatype, keyval, value, flag, type);
}

extern INTERNAL int MPII_Win_set_attr(MPI_Win, int, void *, int), MPII_Win_get_attr(MPI_Win, int, void *, int *, int);
int MPII_Win_set_attr(MPI_Win win, int keyval, void *value, int type) { return win_set(win, keyval, value, type); }
int MPII_Win_get_attr(MPI_Win win, int keyval, void *value, int *flag, int type) {
    return win_get(win, keyval, value, flag, type);
}
