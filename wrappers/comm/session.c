/* session.c - sessions, emulated on the world. The real MPI is initialized once, with MPI_Init, when the first session
 * or the world model of the program needs it. A session has a real session that answers queries, but its groups and
 * communicators are made from those of the world.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. A session, its real one and its place in the table are created and removed together, with in_lower set.
 *  2. Communicators and groups store the handle of the session they come from (0: none, the world model). The handle of
 *     a finalized session is not found any more.
 *  3. While a session is open the real MPI isn't finalized (init.c).
 */
#include "session.h"
#include "group.h"
#include "comm.h"
#include "environment/errors.h"
#include "environment/info.h"
#include "environment/outside.h"
#include "lifetime/init.h"
#include "p2p/p2p.h"

static uint32_t open_sessions;

mpy_session_t *mpy_session(int handle) { return handle != 0 ? (mpy_session_t *)mpy_lookup(MPY_SESSION, handle) : NULL; }

bool mpy_session_any(void) { return open_sessions > 0; }

int mpy_session_error(mpy_session_t *s, int code, const char *name) {
    if (s == NULL) return mpy_error(NULL, code, name);
    MPI_Session handle = s->obj.handle;
    return mpy_error_of(&handle, s->errhandler, code, name);
}

static int real_session(MPI_Session session) {
    const mpy_session_t *s = mpy_session(session);
    return s != NULL ? s->obj.real : session == MPI_SESSION_NULL ? session : 0;
}

/* ---- begin and end ---- */

/* The thread level that the program asks for in its info, read before the real library can do so. MPI-4.1 11.3.1
 * recommends the default. */
static int thread_level(int real_info) {
    static const char *const names[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED",
                                        "MPI_THREAD_MULTIPLE"};
    char value[MPI_MAX_INFO_VAL + 1];
    int found = 0;
    if (real_info != MPI_INFO_NULL) MPY_REAL(Info_get)(real_info, "thread_level", MPI_MAX_INFO_VAL, value, &found);
    for (int i = MPI_THREAD_SINGLE; found && i < MPI_THREAD_MULTIPLE; i++)
        if (mpy_text_equal(value, names[i])) return i;
    return MPI_THREAD_MULTIPLE;
}

static int is_strict(int real_info) {
    char value[MPI_MAX_INFO_VAL + 1];
    int found = 0;
    if (real_info != MPI_INFO_NULL) MPY_REAL(Info_get)(real_info, "strict_finalize", MPI_MAX_INFO_VAL, value, &found);
    return found && (mpy_text_equal(value, "1") || mpy_text_equal(value, "true"));
}

/* After a restart the library has another level: that of the restarted process. */
static void note_level(mpy_session_t *s) {
    int real, found;
    if (MPY_REAL(Session_get_info)(s->obj.real, &real) != 0) return;
    MPY_REAL(Info_get)(real, "thread_level", sizeof s->level - 1, s->level, &found);
    MPY_REAL(Info_free)(&real);
}

int PMPI_Session_init(MPI_Info info, MPI_Errhandler errhandler, MPI_Session *session) {
    static const char name[] = "MPI_Session_init";
    mpy_require_boundary();
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int level = thread_level(mpy_real_info(info)), strict = is_strict(mpy_real_info(info)), real;
    mpy_cross_out(t);
    MPI_Session null = MPI_SESSION_NULL;
    mpy_or_null(MPI_ERR_OTHER, session, null); /* until the session exists */
    if (!mpy_errhandler_valid(errhandler, MPY_ERRHANDLER_SESSION)) return mpy_error(NULL, MPI_ERR_ERRHANDLER, name);
    int rc = mpy_init_for_sessions(level);
    if (rc != 0) return mpy_error_of(&null, errhandler, rc, name);
    t = mpy_self();
    mpy_cross_in(t);
    rc = MPY_REAL(Session_init)(mpy_real_info(info), MPI_ERRORS_RETURN, &real);
    if (rc == 0) {
        mpy_session_t *s = mpy_alloc(sizeof *s);
        s->obj.real = real;
        s->obj.refs = 1;
        s->info = MPI_INFO_NULL;
        s->strict = strict;
        s->errhandler = errhandler;
        mpy_errhandler_ref(errhandler);
        mpy_info_merge(&s->info, info);
        note_level(s);
        *session = mpy_object_add(MPY_SESSION, &s->obj);
        __atomic_add_fetch(&open_sessions, 1, __ATOMIC_RELAXED);
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error_of(&null, errhandler, rc, name);
}

/* Number of objects of the program that come from this session. */
static int users(int handle) {
    int n = 0;
    for (uint32_t i = 0; i < 1u << MPY_INDEX_BITS; i++) {
        const mpy_comm_t *c = (const mpy_comm_t *)mpy_slots[MPY_COMM][i];
        const mpy_group_t *g = (const mpy_group_t *)mpy_slots[MPY_GROUP][i];
        n += (c != NULL && c->session == handle) + (g != NULL && g->session == handle);
    }
    return n;
}

int PMPI_Session_finalize(MPI_Session *session) {
    static const char name[] = "MPI_Session_finalize";
    mpy_session_t *s = mpy_session(*session);
    mpy_thread_t *t = mpy_self();
    if (s == NULL) { /* the real library returns the error */
        mpy_cross_in(t);
        int real = real_session(*session), rc = MPY_REAL(Session_finalize)(&real);
        mpy_cross_out(t);
        return mpy_error(NULL, rc, name);
    }
    if (s->strict && users(*session) > 0) return mpy_session_error(s, MPI_ERR_PENDING, name);
    void *buffer;
    MPI_Count size;
    mpy_buffer_detach(&s->buffer, &buffer, &size);
    mpy_cross_in(t);
    int real = s->obj.real, rc = MPY_REAL(Session_finalize)(&real);
    if (rc == 0) {
        mpy_object_remove(MPY_SESSION, *session);
        mpy_errhandler_unref(s->errhandler);
        mpy_info_drop(s->info);
        mpy_free(s, sizeof *s);
        *session = MPI_SESSION_NULL;
        __atomic_sub_fetch(&open_sessions, 1, __ATOMIC_RELAXED);
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_session_error(s, rc, name);
}

/* ---- queries, which the real session answers ---- */

int PMPI_Session_get_info(MPI_Session session, MPI_Info *info_used) {
    mpy_session_t *s = mpy_session(session);
    mpy_thread_t *t = mpy_self();
    int real;
    mpy_cross_in(t);
    int rc = MPY_REAL(Session_get_info)(real_session(session), &real);
    if (rc == 0 && s != NULL && s->level[0]) rc = MPY_REAL(Info_set)(real, "thread_level", s->level);
    if (rc == 0) *info_used = mpy_info_adopt(real);
    mpy_cross_out(t);
    return mpy_session_error(s, rc, "MPI_Session_get_info");
}

int PMPI_Session_get_num_psets(MPI_Session session, MPI_Info info, int *npset_names) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Session_get_num_psets)(real_session(session), mpy_real_info(info), npset_names);
    mpy_cross_out(t);
    return mpy_session_error(mpy_session(session), rc, "MPI_Session_get_num_psets");
}

int PMPI_Session_get_nth_pset(MPI_Session session, MPI_Info info, int n, int *pset_len, char *pset_name) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Session_get_nth_pset)(real_session(session), mpy_real_info(info), n, pset_len, pset_name);
    mpy_cross_out(t);
    return mpy_session_error(mpy_session(session), rc, "MPI_Session_get_nth_pset");
}

int PMPI_Session_get_pset_info(MPI_Session session, const char *pset_name, MPI_Info *info) {
    mpy_thread_t *t = mpy_self();
    int real;
    mpy_cross_in(t);
    int rc = MPY_REAL(Session_get_pset_info)(real_session(session), pset_name, &real);
    if (rc == 0) *info = mpy_info_adopt(real);
    mpy_cross_out(t);
    return mpy_session_error(mpy_session(session), rc, "MPI_Session_get_pset_info");
}

/* ---- groups: made of the world's processes, so that they mix with those of communicators ---- */

int PMPI_Group_from_session_pset(MPI_Session session, const char *pset_name, MPI_Group *newgroup) {
    mpy_thread_t *t = mpy_self();
    int real;
    *newgroup = MPI_GROUP_NULL; /* as in MPICH, whatever happens next */
    mpy_cross_in(t);
    int rc = MPY_REAL(Group_from_session_pset)(real_session(session), pset_name, &real);
    if (rc == 0) {
        *newgroup = mpy_group_adopt(real, session);
        mpy_group_t *g = mpy_group(*newgroup);
        if (g != NULL) {
            MPY_REAL(Group_free)(&g->obj.real);
            rc = MPY_REAL(Group_incl)(mpy_world_group(), g->size, g->world, &g->obj.real);
        }
    }
    mpy_cross_out(t);
    return mpy_session_error(mpy_session(session), rc, "MPI_Group_from_session_pset");
}

/* ---- communicators ---- */

/* Converts a string tag into an integer tag below the program's bound, as MPICH does. */
static int number_of(const char *stringtag) {
    int *bound, set;
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *stringtag != 0; stringtag++) hash = (hash ^ (unsigned char)*stringtag) * 16777619u;
    PMPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &set);
    return (int)(hash % (uint32_t)(set ? *bound : 32767));
}

static int failed(int errhandler, int code, const char *name) {
    MPI_Comm null = MPI_COMM_NULL;
    return mpy_error_of(&null, errhandler, code, name);
}

static int create_from_group(MPI_Group group, const char *stringtag, MPI_Info info, MPI_Errhandler errhandler,
                             MPI_Comm *newcomm) {
    mpy_thread_t *t = mpy_self();
    const mpy_group_t *g = mpy_group_with_us(group);
    *newcomm = MPI_COMM_NULL;
    if (group == MPI_GROUP_EMPTY) return MPI_SUCCESS;
    if (g == NULL) return MPI_ERR_GROUP;
    if (!mpy_errhandler_valid(errhandler, MPY_ERRHANDLER_COMM)) return MPI_ERR_ERRHANDLER;
    int rc = mpy_comm_create_group(t, g, number_of(stringtag), errhandler, MPI_COMM_WORLD, newcomm);
    if (rc != 0) return rc;
    mpy_comm_t *c = mpy_comm(*newcomm);
    c->session = g->session;
    mpy_cross_in(t);
    if (info != MPI_INFO_NULL) rc = MPY_REAL(Comm_set_info)(c->obj.real, mpy_real_info(info));
    if (rc == 0) mpy_info_merge(&c->info, info);
    mpy_cross_out(t);
    if (rc != 0) PMPI_Comm_free(newcomm);
    return rc;
}

int PMPI_Comm_create_from_group(MPI_Group group, const char *stringtag, MPI_Info info, MPI_Errhandler errhandler,
                                MPI_Comm *newcomm) {
    mpy_require_mpi("MPI_Comm_create_from_group"); /* the empty group is valid at any time */
    int rc = create_from_group(group, stringtag, info, errhandler, newcomm);
    return MPY_LIKELY(rc == 0) ? rc : failed(errhandler, rc, "MPI_Comm_create_from_group");
}

/* Uses a communicator of the local group, as in MPICH; the leaders find each other in the world. */
int PMPI_Intercomm_create_from_groups(MPI_Group local_group, int local_leader, MPI_Group remote_group,
                                      int remote_leader, const char *stringtag, MPI_Info info,
                                      MPI_Errhandler errhandler, MPI_Comm *newintercomm) {
    static const char name[] = "MPI_Intercomm_create_from_groups";
    mpy_require_mpi(name); /* the empty group is valid at any time */
    const mpy_group_t *remote = mpy_group(remote_group);
    MPI_Comm local = MPI_COMM_NULL;
    mpy_or_null(MPI_ERR_OTHER, newintercomm, MPI_COMM_NULL); /* until the communicator exists */
    if (local_group == MPI_GROUP_EMPTY || remote_group == MPI_GROUP_EMPTY) return MPI_SUCCESS;
    int rc = remote == NULL                                       ? MPI_ERR_GROUP
             : remote_leader < 0 || remote_leader >= remote->size ? MPI_ERR_RANK
                                                                  : MPI_SUCCESS;
    if (rc == 0 && !mpy_errhandler_valid(errhandler, MPY_ERRHANDLER_COMM)) rc = MPI_ERR_ERRHANDLER;
    if (rc == 0) rc = create_from_group(local_group, stringtag, info, MPI_ERRORS_RETURN, &local);
    if (rc == 0)
        rc = PMPI_Intercomm_create(local, local_leader, MPI_COMM_WORLD, remote->world[remote_leader],
                                   number_of(stringtag), newintercomm);
    if (rc == 0) {
        mpy_comm_t *c = mpy_comm(*newintercomm);
        mpy_thread_t *t = mpy_self();
        mpy_cross_in(t);
        mpy_info_merge(&c->info, info);
        mpy_cross_out(t);
        c->session = mpy_comm(local)->session;
        rc = mpy_errhandler_put(&c->errhandler, errhandler, MPY_ERRHANDLER_COMM);
    }
    if (local != MPI_COMM_NULL) PMPI_Comm_free(&local);
    return MPY_LIKELY(rc == 0) ? rc : failed(errhandler, rc, name);
}

/* ---- rebuild ---- */

int mpy_session_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    int rc = 0;
    mpy_hook_in(t);
    for (uint32_t i = 0; i < 1u << MPY_INDEX_BITS && rc == 0; i++) {
        mpy_session_t *s = (mpy_session_t *)mpy_slots[MPY_SESSION][i];
        if (s != NULL) rc = MPY_REAL(Session_init)(mpy_real_info(s->info), MPI_ERRORS_RETURN, &s->obj.real);
    }
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild a session (MPI error %d)", rc);
    return -1;
}
