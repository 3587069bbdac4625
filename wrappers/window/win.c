/* win.c - windows as objects: constructors, destructor, queries, memory attached to dynamic ones.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. A constructor counts on the communicator. Later calls of all members together (fence, free, set_info) count on
 *     the window's own row. Its identity is that of a communicator that the same call would create, except for a salt.
 *  2. The program may free the communicator before the window: the window has a communicator of its own.
 */
#include "clock/clock.h"
#include "comm/attr.h"
#include "comm/group.h"
#include "environment/errors.h"
#include "environment/info.h"
#include "environment/outside.h"
#include "tools/trace.h"
#include "win.h"

#define WIN(LINK) ((mpy_win_t *)((char *)(LINK) - offsetof(mpy_win_t, all)))

static mpy_link_t all = {&all, &all};

/* As in MPICH, errors of a window whose handler was never set are treated as errors without an object. */
int mpy_win_error(mpy_win_t *w, int code, const char *function) {
    if (w == NULL || w->team.errhandler == MPI_ERRHANDLER_NULL) return mpy_error(NULL, code, function);
    MPI_Win handle = w->obj.handle;
    return mpy_error_of(&handle, w->team.errhandler, code, function);
}

mpy_win_t *mpy_win_next(uint64_t last) { /* there are few windows: quadratic is fine */
    mpy_win_t *best = NULL;
    for (mpy_link_t *l = all.next; l != &all; l = l->next)
        if (WIN(l)->cid > last && (best == NULL || WIN(l)->cid < best->cid)) best = WIN(l);
    return best;
}

/* ---- constructors ---- */

typedef struct wanted {
    int flavor;
    void *base;
    MPI_Aint size, disp_unit;
    MPI_Info info;
} wanted_t;

static mpy_win_t *win_alloc(const wanted_t *q, const mpy_comm_t *c) {
    mpy_win_t *w = mpy_alloc(sizeof *w);
    size_t n = (size_t)c->size;
    w->obj.refs = 1;
    w->flavor = q->flavor;
    w->base = q->base;
    w->size = q->size;
    w->disp_unit = q->disp_unit;
    w->team.rank = c->rank;
    w->team.size = c->size;
    w->team.world = __builtin_memcpy(mpy_alloc(n * sizeof(int32_t)), c->world, n * sizeof(int32_t));
    w->team.errhandler = MPI_ERRHANDLER_NULL;
    w->team.topology = MPI_UNDEFINED;
    w->team.info = MPI_INFO_NULL;
    w->team.foreign = c->foreign;
    w->team.session = c->session;
    w->target = mpy_alloc(n);
    w->posts_used = mpy_alloc(4 * n * sizeof(uint64_t));
    w->completes_used = w->posts_used + n;
    w->accesses = w->completes_used + n;
    w->exposures = w->accesses + n;
    w->saved = mpy_alloc(mpy_board_bytes(w));
    return w;
}

static void win_release(mpy_win_t *w) {
    size_t n = (size_t)w->team.size;
    mpy_free(w->saved, mpy_board_bytes(w));
    mpy_free(w->posts_used, 4 * n * sizeof(uint64_t));
    mpy_free(w->target, n);
    mpy_free(w->team.world, n * sizeof(int32_t));
    mpy_free(w, sizeof *w);
}

static uint64_t identity(const mpy_comm_t *parent, uint64_t seq) {
    int32_t smallest = parent->world[0];
    for (int i = 1; i < parent->size; i++)
        if (parent->world[i] < smallest) smallest = parent->world[i];
    /* the salt: no communicator has a negative rank here */
    return mpy_child_cid(mpy_row(parent->row)->cid, seq, ~smallest);
}

/* In the lower half. */
static void adopt(mpy_win_t *w, uint64_t cid, MPI_Info info) {
    w->cid = cid;
    mpy_info_merge(&w->team.info, info);
    mpy_object_add(MPY_WIN, &w->obj);
    mpy_lock(&mpy_objects_lock);
    mpy_link_append(&all, &w->all);
    mpy_unlock(&mpy_objects_lock);
}

static int construct(const wanted_t *q, MPI_Comm comm, void *baseptr, MPI_Win *win, const char *name) {
    mpy_comm_t *c = mpy_comm(comm);
    if (c == NULL || c->remote_size != 0) return mpy_error(c, mpy_or_null(MPI_ERR_COMM, win, MPI_WIN_NULL), name);
    mpy_thread_t *t = mpy_self();
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_WIN_CREATE, MPY_TRACE_COLLECTIVE(c));
    mpy_clock_enter(t, mpy_row(c->row));
    uint64_t cid = identity(c, mpy_row(c->row)->seq);
    mpy_win_t *w = win_alloc(q, c);
    mpy_cross_in_collective(t);
    int rc = mpy_win_make(w, c->obj.real, mpy_real_info(q->info));
    if (rc == 0 && (rc = MPY_REAL(Comm_dup)(c->obj.real, &w->team.obj.real)) != 0) mpy_win_unmake(w);
    if (rc == 0) rc = MPY_REAL(Comm_set_errhandler)(w->team.obj.real, MPI_ERRORS_RETURN);
    if (rc == 0) adopt(w, cid, q->info);
    mpy_hook_out(t);
    if (rc == 0) {
        w->team.row = mpy_row_add(cid, w->team.world, w->team.size, w->obj.handle);
        mpy_trace_comm_enter(&w->team, cid);
        *win = w->obj.handle;
        if (baseptr != NULL) *(void **)baseptr = w->base;
    } else {
        win_release(w);
    }
    mpy_hook_in(t);
    mpy_collective_leave(t, mpy_row(c->row), rc);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(c, mpy_or_null(rc, win, MPI_WIN_NULL), name);
}

int PMPI_Win_create(void *base, MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win *win) {
    return construct(&(wanted_t){MPI_WIN_FLAVOR_CREATE, base, size, disp_unit, info}, comm, NULL, win,
                     "MPI_Win_create");
}
int PMPI_Win_create_c(void *base, MPI_Aint size, MPI_Aint disp_unit, MPI_Info info, MPI_Comm comm, MPI_Win *win) {
    return construct(&(wanted_t){MPI_WIN_FLAVOR_CREATE, base, size, disp_unit, info}, comm, NULL, win,
                     "MPI_Win_create_c");
}
int PMPI_Win_allocate(MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win) {
    return construct(&(wanted_t){MPI_WIN_FLAVOR_ALLOCATE, NULL, size, disp_unit, info}, comm, baseptr, win,
                     "MPI_Win_allocate");
}
int PMPI_Win_allocate_c(MPI_Aint size, MPI_Aint disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win) {
    return construct(&(wanted_t){MPI_WIN_FLAVOR_ALLOCATE, NULL, size, disp_unit, info}, comm, baseptr, win,
                     "MPI_Win_allocate_c");
}
int PMPI_Win_allocate_shared(MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr, MPI_Win *win) {
    return construct(&(wanted_t){MPI_WIN_FLAVOR_SHARED, NULL, size, disp_unit, info}, comm, baseptr, win,
                     "MPI_Win_allocate_shared");
}
int PMPI_Win_allocate_shared_c(MPI_Aint size, MPI_Aint disp_unit, MPI_Info info, MPI_Comm comm, void *baseptr,
                               MPI_Win *win) {
    return construct(&(wanted_t){MPI_WIN_FLAVOR_SHARED, NULL, size, disp_unit, info}, comm, baseptr, win,
                     "MPI_Win_allocate_shared_c");
}
int PMPI_Win_create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win *win) {
    return construct(&(wanted_t){MPI_WIN_FLAVOR_DYNAMIC, MPI_BOTTOM, 0, 1, info}, comm, NULL, win,
                     "MPI_Win_create_dynamic");
}

/* ---- destructor ---- */

/* All members leave it together, as MPI requires. Then no member can access the window's memory any more, and no member
 * removes its row while a checkpoint request of another member still counts on it. */
int PMPI_Win_free(MPI_Win *win) {
    mpy_win_t *w = mpy_win(*win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_free");
    if (w->access > MPY_ACCESS_FENCED || w->exposed) return mpy_win_error(w, MPI_ERR_RMA_SYNC, "MPI_Win_free");
    mpy_thread_t *t = mpy_self();
    int rc = mpy_attrs_delete(*win, &w->team.attrs);
    if (rc != 0) return mpy_win_error(w, rc, "MPI_Win_free");
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_WIN_CREATE, MPY_TRACE_COLLECTIVE(&w->team));
    mpy_clock_enter(t, mpy_row(w->team.row));
    mpy_cross_in_collective(t);
    MPY_REAL(Win_flush_all)(w->obj.real);
    MPY_REAL(Win_flush_all)(w->board);
    MPY_REAL(Barrier)(w->team.obj.real);
    mpy_win_unmake(w);
    MPY_REAL(Comm_free)(&w->team.obj.real);
    mpy_info_drop(w->team.info);
    mpy_errhandler_unref(w->team.errhandler);
    for (mpy_attached_t *a = w->attached, *next; a != NULL; a = next) {
        next = a->next;
        mpy_free(a, sizeof *a);
    }
    mpy_object_remove(MPY_WIN, w->obj.handle);
    mpy_lock(&mpy_objects_lock);
    mpy_link_remove(&w->all);
    mpy_unlock(&mpy_objects_lock);
    mpy_hook_out(t);
    mpy_row_remove(w->team.row);
    mpy_hook_in(t);
    win_release(w);
    mpy_cross_out_collective(t);
    mpy_traced(t, record, MPI_SUCCESS);
    *win = MPI_WIN_NULL;
    return MPI_SUCCESS;
}

/* ---- memory of dynamic windows ---- */

int PMPI_Win_attach(MPI_Win win, void *base, MPI_Aint size) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_attach");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Win_attach)(w->obj.real, base, size);
    if (rc == 0) {
        mpy_attached_t *a = mpy_alloc(sizeof *a), **end = &w->attached;
        *a = (mpy_attached_t){.base = base, .size = size};
        mpy_lock(&w->lock);
        while (*end != NULL) end = &(*end)->next;
        *end = a;
        mpy_unlock(&w->lock);
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_attach");
}

int PMPI_Win_detach(MPI_Win win, const void *base) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_detach");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Win_detach)(w->obj.real, base);
    if (rc == 0) {
        mpy_lock(&w->lock);
        mpy_attached_t **a = &w->attached, *gone;
        while (*a != NULL && (*a)->base != base) a = &(*a)->next;
        if ((gone = *a) != NULL) {
            *a = gone->next;
            mpy_free(gone, sizeof *gone);
        }
        mpy_unlock(&w->lock);
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_detach");
}

/* ---- queries ---- */

/* Allocated memory of ours is not shared. MPICH 4 would not report this for the real window, which MPI_Win_create has
 * made. */
static int query_alone(const mpy_win_t *w, int rank, MPI_Aint *size, MPI_Aint *disp_unit, char **base) {
    if (rank < MPI_PROC_NULL || rank >= w->team.size) return MPI_ERR_RANK;
    /* MPI_PROC_NULL: the first rank with memory that this process can access */
    bool own = rank == MPI_PROC_NULL || rank == w->team.rank;
    *size = own ? w->size : 0;
    *disp_unit = own ? w->disp_unit : 0;
    *base = own ? w->base : NULL;
    return MPI_SUCCESS;
}

static int shared_query(MPI_Win win, int rank, MPI_Aint *size, MPI_Aint *disp_unit, void *baseptr, const char *name) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, name);
    mpy_thread_t *t = mpy_self();
    char *base = NULL;
    mpy_cross_in(t);
    int rc = w->memory == MPY_MEMORY_ARENA ? query_alone(w, rank, size, disp_unit, &base)
                                           : MPY_REAL(Win_shared_query_c)(w->obj.real, rank, size, disp_unit, &base);
    if (w->memory == MPY_MEMORY_SHARED && base != NULL) base = w->segment + (base - w->lower);
    mpy_cross_out(t);
    if (rc == 0) *(void **)baseptr = base;
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, name);
}

int PMPI_Win_shared_query(MPI_Win win, int rank, MPI_Aint *size, int *disp_unit, void *baseptr) {
    MPI_Aint unit;
    int rc = shared_query(win, rank, size, &unit, baseptr, "MPI_Win_shared_query");
    if (rc == 0) *disp_unit = (int)unit;
    return rc;
}
int PMPI_Win_shared_query_c(MPI_Win win, int rank, MPI_Aint *size, MPI_Aint *disp_unit, void *baseptr) {
    return shared_query(win, rank, size, disp_unit, baseptr, "MPI_Win_shared_query_c");
}

int PMPI_Win_get_group(MPI_Win win, MPI_Group *group) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_get_group");
    mpy_thread_t *t = mpy_self();
    int real;
    mpy_cross_in(t);
    int rc = MPY_REAL(Win_get_group)(w->obj.real, &real);
    if (rc == 0) *group = mpy_group_adopt(real, w->team.session);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_get_group");
}

int PMPI_Win_get_info(MPI_Win win, MPI_Info *info) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_get_info");
    mpy_thread_t *t = mpy_self();
    int real;
    mpy_cross_in(t);
    int rc = MPY_REAL(Win_get_info)(w->obj.real, &real);
    if (rc == 0) *info = mpy_info_adopt(real);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_get_info");
}

int PMPI_Win_set_info(MPI_Win win, MPI_Info info) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_set_info");
    mpy_thread_t *t = mpy_self();
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_WIN_CREATE, MPY_TRACE_COLLECTIVE(&w->team));
    mpy_clock_enter(t, mpy_row(w->team.row));
    mpy_cross_in_collective(t);
    int rc = MPY_REAL(Win_set_info)(w->obj.real, mpy_real_info(info));
    if (rc == 0) mpy_info_merge(&w->team.info, info);
    mpy_collective_leave(t, mpy_row(w->team.row), rc);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_set_info");
}

int PMPI_Win_set_name(MPI_Win win, const char *name) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_set_name");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Win_set_name)(w->obj.real, name);
    if (rc == 0) {
        mpy_text_format(w->team.name, sizeof w->team.name, "%s", name);
        mpy_row(w->team.row)->name = w->team.name;
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_set_name");
}

int PMPI_Win_get_name(MPI_Win win, char *name, int *resultlen) {
    const mpy_win_t *w = mpy_win(win);
    mpy_require_mpi("MPI_Win_get_name");
    if (w == NULL && win != MPI_WIN_NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_get_name");
    mpy_text_format(name, MPI_MAX_OBJECT_NAME, "%s", w != NULL ? w->team.name : "MPI_WIN_NULL");
    *resultlen = (int)mpy_text_length(name);
    return MPI_SUCCESS;
}

/* ---- error handlers ---- */

int PMPI_Win_set_errhandler(MPI_Win win, MPI_Errhandler errhandler) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_set_errhandler");
    return mpy_win_error(w, mpy_errhandler_put(&w->team.errhandler, errhandler, MPY_ERRHANDLER_WIN),
                         "MPI_Win_set_errhandler");
}
int PMPI_Win_get_errhandler(MPI_Win win, MPI_Errhandler *errhandler) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_get_errhandler");
    return mpy_errhandler_get(w->team.errhandler, errhandler);
}
int PMPI_Win_call_errhandler(MPI_Win win, int errorcode) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_call_errhandler");
    mpy_win_error(w, errorcode, "MPI_Win_call_errhandler");
    return MPI_SUCCESS;
}
