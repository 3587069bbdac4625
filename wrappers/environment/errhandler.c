/* errhandler.c - error handlers as objects. They exist only here: every real communicator has MPI_ERRORS_RETURN, and
 * errors.c calls the handler that the program has set.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. An object lives while the program holds a handle of it or an object has it as its handler (obj.refs counts both).
 *     The handle is valid only while handles > 0; find() checks this. Both counts are atomic: the thread that drops the
 *     last reference frees the object.
 */
#include "errors.h"
#include "comm/session.h"
#include "core/objects.h"

static mpy_errhandler_t *find(int handle) {
    mpy_errhandler_t *e = (mpy_errhandler_t *)mpy_lookup(MPY_ERRHANDLER, handle);
    return e != NULL && __atomic_load_n(&e->handles, __ATOMIC_RELAXED) > 0 ? e : NULL;
}

static void unref(mpy_errhandler_t *e) {
    if (__atomic_sub_fetch(&e->obj.refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    mpy_object_remove(MPY_ERRHANDLER, e->obj.handle);
    mpy_free(e, sizeof *e);
}

void mpy_errhandler_ref(int handle) {
    mpy_errhandler_t *e = (mpy_errhandler_t *)mpy_lookup(MPY_ERRHANDLER, handle);
    if (e != NULL) mpy_object_ref(&e->obj);
}

void mpy_errhandler_unref(int handle) {
    mpy_errhandler_t *e = (mpy_errhandler_t *)mpy_lookup(MPY_ERRHANDLER, handle);
    if (e != NULL) unref(e);
}

bool mpy_errhandler_valid(int handle, mpy_errhandler_kind_t kind) {
    if (handle == MPI_ERRORS_ARE_FATAL || handle == MPI_ERRORS_RETURN || handle == MPI_ERRORS_ABORT) return true;
    if (handle == MPY_ERRORS_THROW_EXCEPTIONS) return true;
    mpy_errhandler_t *e = find(handle);
    return e != NULL && e->kind == kind;
}

static int create(mpy_errhandler_kind_t kind, void *function, MPI_Errhandler *handle, const char *name) {
    if (function == NULL || handle == NULL)
        return mpy_error(NULL, mpy_or_null(MPI_ERR_ARG, handle, MPI_ERRHANDLER_NULL), name);
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    mpy_errhandler_t *e = mpy_alloc(sizeof *e);
    e->kind = kind;
    e->function = function;
    e->handles = e->obj.refs = 1;
    *handle = mpy_object_add(MPY_ERRHANDLER, &e->obj);
    mpy_guard_out(t);
    return MPI_SUCCESS;
}

int mpy_errhandler_put(int *slot, int handle, mpy_errhandler_kind_t kind) {
    if (!mpy_errhandler_valid(handle, kind)) return MPI_ERR_ERRHANDLER;
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    mpy_errhandler_ref(handle);
    /* If several threads set it at the same time, each drops a different old handler. */
    mpy_errhandler_unref(__atomic_exchange_n(slot, handle, __ATOMIC_ACQ_REL));
    mpy_guard_out(t);
    return MPI_SUCCESS;
}

/* The program gets a reference, so it may free it. */
int mpy_errhandler_get(int slot, MPI_Errhandler *handle) {
    mpy_errhandler_t *e = (mpy_errhandler_t *)mpy_lookup(MPY_ERRHANDLER, slot);
    if (e != NULL) {
        mpy_object_ref(&e->obj);
        __atomic_add_fetch(&e->handles, 1, __ATOMIC_RELAXED);
    }
    *handle = slot == MPI_ERRHANDLER_NULL ? MPI_ERRORS_ARE_FATAL : slot; /* never set */
    return MPI_SUCCESS;
}

int PMPI_Comm_create_errhandler(MPI_Comm_errhandler_function *function, MPI_Errhandler *errhandler) {
    return create(MPY_ERRHANDLER_COMM, (void *)function, errhandler, "MPI_Comm_create_errhandler");
}
int PMPI_Errhandler_create(MPI_Comm_errhandler_function *function, MPI_Errhandler *errhandler) {
    return create(MPY_ERRHANDLER_COMM, (void *)function, errhandler, "MPI_Errhandler_create");
}
int PMPI_File_create_errhandler(MPI_File_errhandler_function *function, MPI_Errhandler *errhandler) {
    return create(MPY_ERRHANDLER_FILE, (void *)function, errhandler, "MPI_File_create_errhandler");
}
int PMPI_Win_create_errhandler(MPI_Win_errhandler_function *function, MPI_Errhandler *errhandler) {
    return create(MPY_ERRHANDLER_WIN, (void *)function, errhandler, "MPI_Win_create_errhandler");
}
int PMPI_Session_create_errhandler(MPI_Session_errhandler_function *function, MPI_Errhandler *errhandler) {
    return create(MPY_ERRHANDLER_SESSION, (void *)function, errhandler, "MPI_Session_create_errhandler");
}

/* MPICH's C++ library calls this right after MPI_X_create_errhandler. */
extern __attribute__((visibility("default"))) void MPII_Errhandler_set_cxx(MPI_Errhandler, void (*)(void));
void MPII_Errhandler_set_cxx(MPI_Errhandler errhandler, void (*proxy)(void)) {
    mpy_errhandler_t *e = find(errhandler);
    if (e != NULL) e->proxy = (mpy_errhandler_proxy_t *)proxy;
}

int PMPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler errhandler) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, "MPI_Comm_set_errhandler");
    return mpy_error(c, mpy_errhandler_put(&c->errhandler, errhandler, MPY_ERRHANDLER_COMM), "MPI_Comm_set_errhandler");
}
int PMPI_Errhandler_set(MPI_Comm comm, MPI_Errhandler errhandler) { return PMPI_Comm_set_errhandler(comm, errhandler); }

int PMPI_Comm_get_errhandler(MPI_Comm comm, MPI_Errhandler *errhandler) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, "MPI_Comm_get_errhandler");
    return mpy_error(c, mpy_errhandler_get(c->errhandler, errhandler), "MPI_Comm_get_errhandler");
}
int PMPI_Errhandler_get(MPI_Comm comm, MPI_Errhandler *errhandler) {
    return PMPI_Comm_get_errhandler(comm, errhandler);
}

int PMPI_Session_set_errhandler(MPI_Session session, MPI_Errhandler errhandler) {
    mpy_session_t *s = mpy_session(session);
    if (s == NULL) return mpy_error(NULL, MPI_ERR_SESSION, "MPI_Session_set_errhandler");
    return mpy_session_error(s, mpy_errhandler_put(&s->errhandler, errhandler, MPY_ERRHANDLER_SESSION),
                             "MPI_Session_set_errhandler");
}
int PMPI_Session_get_errhandler(MPI_Session session, MPI_Errhandler *errhandler) {
    mpy_session_t *s = mpy_session(session);
    if (s == NULL) return mpy_error(NULL, MPI_ERR_SESSION, "MPI_Session_get_errhandler");
    return mpy_session_error(s, mpy_errhandler_get(s->errhandler, errhandler), "MPI_Session_get_errhandler");
}
int PMPI_Session_call_errhandler(MPI_Session session, int errorcode) {
    mpy_session_t *s = mpy_session(session);
    if (s == NULL) return mpy_error(NULL, MPI_ERR_SESSION, "MPI_Session_call_errhandler");
    mpy_session_error(s, errorcode, "MPI_Session_call_errhandler");
    return MPI_SUCCESS;
}

int PMPI_Comm_call_errhandler(MPI_Comm comm, int errorcode) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, "MPI_Comm_call_errhandler");
    mpy_error(c, errorcode, "MPI_Comm_call_errhandler");
    return MPI_SUCCESS;
}

int PMPI_Errhandler_free(MPI_Errhandler *errhandler) {
    mpy_errhandler_t *e = find(*errhandler);
    if (e == NULL && !(mpy_is_builtin(*errhandler) && mpy_errhandler_valid(*errhandler, MPY_ERRHANDLER_COMM)))
        return mpy_error(NULL, MPI_ERR_ERRHANDLER, "MPI_Errhandler_free");
    if (e != NULL) {
        mpy_thread_t *t = mpy_self();
        mpy_guard_in(t);
        __atomic_sub_fetch(&e->handles, 1, __ATOMIC_RELAXED);
        unref(e);
        mpy_guard_out(t);
    }
    *errhandler = MPI_ERRHANDLER_NULL;
    return MPI_SUCCESS;
}
