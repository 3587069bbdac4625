/* attr.c - attributes and keyvals of communicators and datatypes. They live here alone: the real objects have none of the
 * program's attributes, so no callback is ever called from the lower half.
 *
 * Upper half, upper TLS; callbacks are the program's.
 *
 * Invariants
 *  1. A keyval lives while the program holds it or an attribute of it exists (obj.refs counts both). KEYVAL_FREED: only
 *     attributes hold it; the program can't use it any more.
 *  2. Lists are newest first: MPI deletes attributes in the reverse order of setting (MPI-4 11.2.4), and copies keep it.
 *  3. Callbacks run with in_lower = 0, between changes of the list.
 */
#include "objects.h"

enum { KEYVAL_FREED = 1 };
enum { FOR_COMM = 1 << 22, FOR_TYPE = 3 << 22, FOR_WIN = 8 << 22, FOR_MASK = 15 << 22 }; /* MPICH: kind of object in bits 22-25 */

/* ---- keyvals ---- */

static mpy_keyval_t *find(int handle, int kind) {
    mpy_keyval_t *k = (mpy_keyval_t *)mpy_lookup(MPY_KEYVAL, handle);
    return k != NULL && !(k->obj.flags & KEYVAL_FREED) && (handle & FOR_MASK) == kind ? k : NULL;
}

static void release(mpy_keyval_t *k) {
    if (--k->obj.refs > 0) return;
    mpy_object_remove(MPY_KEYVAL, k->obj.handle);
    mpy_free(k, sizeof *k);
}

static int keyval_create(MPI_Comm_copy_attr_function *copy, MPI_Comm_delete_attr_function *remove, int *keyval, void *extra, int kind) {
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

static int keyval_free(int *keyval, int kind, const char *name) {
    mpy_keyval_t *k = find(*keyval, kind);
    if (k == NULL) return mpy_error(NULL, MPI_ERR_KEYVAL, name);
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    k->obj.flags |= KEYVAL_FREED;
    release(k);
    mpy_guard_out(t);
    *keyval = MPI_KEYVAL_INVALID;
    return MPI_SUCCESS;
}

/* ---- lists ---- */

static mpy_attr_t **attr_find(mpy_attr_t **list, const mpy_keyval_t *k) {
    while (*list != NULL && (*list)->key != k) list = &(*list)->next;
    return list;
}

static int attr_set(int handle, mpy_attr_t **list, mpy_keyval_t *k, void *value) {
    mpy_attr_t *a = *attr_find(list, k);
    if (a != NULL) {
        int rc = k->remove != NULL ? k->remove(handle, k->obj.handle, a->value, k->extra) : 0;
        if (rc == 0) a->value = value;
        return rc;
    }
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    a = mpy_alloc(sizeof *a);
    a->key = k;
    a->value = value;
    a->next = *list;
    k->obj.refs++;
    *list = a;
    mpy_guard_out(t);
    return 0;
}

static int attr_delete(int handle, mpy_attr_t **list, mpy_keyval_t *k) {
    mpy_attr_t *a = *attr_find(list, k);
    if (a == NULL) return 0;
    int rc = k->remove != NULL ? k->remove(handle, k->obj.handle, a->value, k->extra) : 0;
    mpy_attr_t **at = attr_find(list, k); /* the callback may have changed the list */
    if (rc != 0 || *at == NULL) return rc;
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    a = *at;
    *at = a->next;
    mpy_free(a, sizeof *a);
    release(k);
    mpy_guard_out(t);
    return 0;
}

int mpy_attrs_delete(int handle, mpy_attr_t **list) {
    while (*list != NULL) {
        int rc = attr_delete(handle, list, (*list)->key);
        if (rc != 0) return rc;
    }
    return 0;
}

int mpy_attrs_copy(int from_handle, mpy_attr_t *from, mpy_attr_t **to) {
    for (; from != NULL; from = from->next) {
        void *value = NULL;
        int flag = 0;
        mpy_keyval_t *k = from->key;
        int rc = k->copy != NULL ? k->copy(from_handle, k->obj.handle, k->extra, from->value, &value, &flag) : 0;
        if (rc != 0) return rc;
        if (!flag) continue;
        mpy_thread_t *t = mpy_self();
        mpy_guard_in(t);
        mpy_attr_t *a = mpy_alloc(sizeof *a);
        a->key = k;
        a->value = value;
        k->obj.refs++;
        *to = a; /* appended: invariant 2 */
        to = &a->next;
        mpy_guard_out(t);
    }
    return 0;
}

extern int MPIR_Dup_fn(int, int, void *, void *, void *, int *) __attribute__((visibility("default")));
int MPIR_Dup_fn(int handle, int keyval, void *extra, void *in, void *out, int *flag) {
    (void)handle, (void)keyval, (void)extra;
    *(void **)out = in;
    *flag = 1;
    return MPI_SUCCESS;
}

/* ---- predefined attributes: values of the real library, kept over a restart ---- */

static struct { int keyval, value, set; } predefined[] = {
    {MPI_TAG_UB, 0, 0}, {MPI_HOST, 0, 0}, {MPI_IO, 0, 0}, {MPI_WTIME_IS_GLOBAL, 0, 0}, {MPI_UNIVERSE_SIZE, 0, 0}, {MPI_LASTUSEDCODE, 0, 0}, {MPI_APPNUM, 0, 0},
};

void mpy_attr_read_predefined(void) {
    for (size_t i = 0; i < sizeof predefined / sizeof *predefined; i++) {
        int *value = NULL, set = 0;
        if (MPY_REAL(Comm_get_attr)(MPI_COMM_WORLD, predefined[i].keyval, &value, &set) != 0) continue;
        predefined[i].set = set;
        if (set) predefined[i].value = predefined[i].keyval == MPI_LASTUSEDCODE ? mpy_error_virtual(*value) : *value;
    }
}

/* ---- communicators ---- */

int PMPI_Comm_create_keyval(MPI_Comm_copy_attr_function *copy, MPI_Comm_delete_attr_function *remove, int *keyval, void *extra) {
    return keyval_create(copy, remove, keyval, extra, FOR_COMM);
}
int PMPI_Keyval_create(MPI_Copy_function *copy, MPI_Delete_function *remove, int *keyval, void *extra) {
    return keyval_create(copy, remove, keyval, extra, FOR_COMM);
}
int PMPI_Comm_free_keyval(int *keyval) { return keyval_free(keyval, FOR_COMM, "MPI_Comm_free_keyval"); }
int PMPI_Keyval_free(int *keyval) { return keyval_free(keyval, FOR_COMM, "MPI_Keyval_free"); }

int PMPI_Comm_set_attr(MPI_Comm comm, int keyval, void *value) {
    mpy_comm_t *c = mpy_comm(comm);
    mpy_keyval_t *k = find(keyval, FOR_COMM);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, "MPI_Comm_set_attr");
    if (k == NULL) return mpy_error(c, MPI_ERR_KEYVAL, "MPI_Comm_set_attr");
    int rc = attr_set(comm, &c->attrs, k, value);
    return rc == 0 ? rc : mpy_error(c, rc, "MPI_Comm_set_attr");
}
int PMPI_Attr_put(MPI_Comm comm, int keyval, void *value) { return PMPI_Comm_set_attr(comm, keyval, value); }

int PMPI_Comm_get_attr(MPI_Comm comm, int keyval, void *value, int *flag) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, "MPI_Comm_get_attr");
    for (size_t i = 0; i < sizeof predefined / sizeof *predefined; i++) {
        if (predefined[i].keyval != keyval) continue;
        *flag = predefined[i].set;
        if (*flag) *(int **)value = &predefined[i].value;
        return MPI_SUCCESS;
    }
    mpy_keyval_t *k = find(keyval, FOR_COMM);
    if (k == NULL) return mpy_error(c, MPI_ERR_KEYVAL, "MPI_Comm_get_attr");
    mpy_attr_t *a = *attr_find(&c->attrs, k);
    *flag = a != NULL;
    if (a != NULL) *(void **)value = a->value;
    return MPI_SUCCESS;
}
int PMPI_Attr_get(MPI_Comm comm, int keyval, void *value, int *flag) { return PMPI_Comm_get_attr(comm, keyval, value, flag); }

int PMPI_Comm_delete_attr(MPI_Comm comm, int keyval) {
    mpy_comm_t *c = mpy_comm(comm);
    mpy_keyval_t *k = find(keyval, FOR_COMM);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, "MPI_Comm_delete_attr");
    if (k == NULL) return mpy_error(c, MPI_ERR_KEYVAL, "MPI_Comm_delete_attr");
    int rc = attr_delete(comm, &c->attrs, k);
    return rc == 0 ? rc : mpy_error(c, rc, "MPI_Comm_delete_attr");
}
int PMPI_Attr_delete(MPI_Comm comm, int keyval) { return PMPI_Comm_delete_attr(comm, keyval); }

/* ---- datatypes ---- */

int PMPI_Type_create_keyval(MPI_Type_copy_attr_function *copy, MPI_Type_delete_attr_function *remove, int *keyval, void *extra) {
    return keyval_create(copy, remove, keyval, extra, FOR_TYPE);
}
int PMPI_Type_free_keyval(int *keyval) { return keyval_free(keyval, FOR_TYPE, "MPI_Type_free_keyval"); }

int PMPI_Type_set_attr(MPI_Datatype datatype, int keyval, void *value) {
    mpy_attr_t **list = mpy_datatype_attrs(datatype);
    mpy_keyval_t *k = find(keyval, FOR_TYPE);
    if (list == NULL) return mpy_error(NULL, MPI_ERR_TYPE, "MPI_Type_set_attr");
    if (k == NULL) return mpy_error(NULL, MPI_ERR_KEYVAL, "MPI_Type_set_attr");
    int rc = attr_set(datatype, list, k, value);
    return rc == 0 ? rc : mpy_error(NULL, rc, "MPI_Type_set_attr");
}

int PMPI_Type_get_attr(MPI_Datatype datatype, int keyval, void *value, int *flag) {
    mpy_attr_t **list = mpy_datatype_attrs(datatype);
    mpy_keyval_t *k = find(keyval, FOR_TYPE);
    if (list == NULL) return mpy_error(NULL, MPI_ERR_TYPE, "MPI_Type_get_attr");
    if (k == NULL) return mpy_error(NULL, MPI_ERR_KEYVAL, "MPI_Type_get_attr");
    mpy_attr_t *a = *attr_find(list, k);
    *flag = a != NULL;
    if (a != NULL) *(void **)value = a->value;
    return MPI_SUCCESS;
}

int PMPI_Type_delete_attr(MPI_Datatype datatype, int keyval) {
    mpy_attr_t **list = mpy_datatype_attrs(datatype);
    mpy_keyval_t *k = find(keyval, FOR_TYPE);
    if (list == NULL) return mpy_error(NULL, MPI_ERR_TYPE, "MPI_Type_delete_attr");
    if (k == NULL) return mpy_error(NULL, MPI_ERR_KEYVAL, "MPI_Type_delete_attr");
    int rc = attr_delete(datatype, list, k);
    return rc == 0 ? rc : mpy_error(NULL, rc, "MPI_Type_delete_attr");
}

/* ---- windows: no windows yet, but keyvals can be made ---- */

int PMPI_Win_create_keyval(MPI_Win_copy_attr_function *copy, MPI_Win_delete_attr_function *remove, int *keyval, void *extra) {
    return keyval_create(copy, remove, keyval, extra, FOR_WIN);
}
int PMPI_Win_free_keyval(int *keyval) { return keyval_free(keyval, FOR_WIN, "MPI_Win_free_keyval"); }
