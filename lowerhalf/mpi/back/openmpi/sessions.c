/* sessions.c - sessions for Open MPI 4.1, which has none. The core makes everything from the world; it needs from the
 * library only the names of process sets and their groups. See openmpi.h. */
#include "openmpi.h"

#include <stdio.h>
#include <string.h>

static char open_session; /* its address stands for each of them */
static const char *const names[] = {"mpi://WORLD", "mpi://SELF"};
static const MPI_Comm comms[] = {MPI_COMM_WORLD, MPI_COMM_SELF};
enum { SETS = sizeof names / sizeof *names };

static bool is_open(MPI_Session session) { return mpy_in(MPY_KIND_SESSION, session) == &open_session; }

static int set_of(const char *name) {
    int i = 0;
    while (i < SETS && strcasecmp(name, names[i]) != 0) i++;
    return i;
}

static int init(MPI_Info info, MPI_Errhandler errhandler, MPI_Session *session) {
    (void)info, (void)errhandler; /* the core has both */
    *session = mpy_handle_add(MPY_KIND_SESSION, &open_session);
    return MPI_SUCCESS;
}

static int finalize(MPI_Session *session) {
    if (!is_open(*session)) return MPI_ERR_SESSION;
    mpy_handle_remove(MPY_KIND_SESSION, *session);
    *session = MPI_SESSION_NULL;
    return MPI_SUCCESS;
}

static int get_info(MPI_Session session, MPI_Info *info) {
    static const char *const levels[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED",
                                         "MPI_THREAD_MULTIPLE"};
    int level = 0;
    if (!is_open(session)) return MPI_ERR_SESSION;
    MPY_THEIRS(Query_thread, &level);
    return mpy_info_with(info, 1, &(mpy_pair_t){"thread_level", levels[level & 3]});
}

static int get_num_psets(MPI_Session session, MPI_Info info, int *n) {
    (void)info;
    *n = SETS;
    return is_open(session) ? MPI_SUCCESS : MPI_ERR_SESSION;
}

static int get_nth_pset(MPI_Session session, MPI_Info info, int n, int *length, char *name) {
    (void)info;
    if (!is_open(session)) return MPI_ERR_SESSION;
    if (n < 0 || n >= SETS) return MPI_ERR_ARG;
    if (*length > 0) snprintf(name, (size_t)*length, "%s", names[n]);
    *length = (int)strlen(names[n]) + 1;
    return MPI_SUCCESS;
}

static int get_pset_info(MPI_Session session, const char *name, MPI_Info *info) {
    char number[16];
    int set = set_of(name), n = 0;
    if (!is_open(session)) return MPI_ERR_SESSION;
    if (set == SETS) return MPI_ERR_ARG;
    int rc = MPY_THEIRS(Comm_size, mpy_in(MPY_KIND_COMM, comms[set]), &n);
    snprintf(number, sizeof number, "%d", n);
    return rc == 0 ? mpy_info_with(info, 1, &(mpy_pair_t){"mpi_size", number}) : mpy_code_out(rc);
}

static int group_from_pset(MPI_Session session, const char *name, MPI_Group *group) {
    int set = set_of(name);
    if (!is_open(session)) return MPI_ERR_SESSION;
    if (set == SETS) return MPI_ERR_ARG;
    void *theirs = mpy_null[MPY_KIND_GROUP];
    int rc = MPY_THEIRS(Comm_group, mpy_in(MPY_KIND_COMM, comms[set]), &theirs);
    if (rc == 0) *group = mpy_out(MPY_KIND_GROUP, theirs);
    return mpy_code_out(rc);
}

const mpy_ours_t mpy_ours_sessions[] = {
    OURS(Session_init, Init, init),
    OURS(Session_finalize, Init, finalize),
    OURS(Session_get_info, Init, get_info),
    OURS(Session_get_num_psets, Init, get_num_psets),
    OURS(Session_get_nth_pset, Init, get_nth_pset),
    OURS(Session_get_pset_info, Init, get_pset_info),
    OURS(Group_from_session_pset, Init, group_from_pset),
};
const size_t mpy_ours_sessions_count = sizeof mpy_ours_sessions / sizeof *mpy_ours_sessions;
