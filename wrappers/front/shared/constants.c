/* constants.c - constants whose translation is not a plain list of pairs: errors and ranks; the version. */
#include "front_interface.h"

/* ---- errors. Codes that the program adds are the core's. A predefined code of the program is a class, or a class and
 * the core's details, from which the core makes a text. ---- */

enum {
    CORE_CLASS = 0x7f,             /* MPICH: the class in a code */
    CORE_ADDED = 0x40000000,       /* MPICH: a class or code that the program has added */
    FRONT_PREDEFINED = FRONT_ERR_LASTCODE,
};

int front_error_slow(int core) {
    if (core & CORE_ADDED) return core;
    int class = core & CORE_CLASS, details = core & ~CORE_CLASS, translated = front_error_class(class);
    if (translated == UNKNOWN_CONSTANT) /* Open MPI has no class for the former */
        translated = class == MPI_ERR_ERRHANDLER ? FRONT_ERR_ARG : FRONT_ERR_OTHER;
    bool both = CODES_HAVE_DETAILS && translated <= CORE_CLASS && details > FRONT_PREDEFINED;
    return both ? details | translated : translated;
}

int core_error(int error) {
    bool both = CODES_HAVE_DETAILS && error > FRONT_PREDEFINED && !(error & CORE_ADDED);
    if (error < 0 || (error > FRONT_PREDEFINED && !both)) return error;
    int translated = core_error_class(both ? error & CORE_CLASS : error);
    if (translated == UNKNOWN_CONSTANT) translated = MPI_ERR_OTHER;
    return both ? (error & ~CORE_CLASS) | translated : translated;
}

/* ---- ranks ---- */

int core_rank_slow(int rank) {
    switch (rank) {
    case FRONT_ANY_SOURCE: return MPI_ANY_SOURCE;
    case FRONT_PROC_NULL: return MPI_PROC_NULL;
    case FRONT_ROOT: return MPI_ROOT;
    case MPI_UNDEFINED: return MPI_UNDEFINED;
    default: return rank < 0 ? UNKNOWN_CONSTANT : rank;
    }
}

int front_rank(int core) {
    switch (core) {
    case MPI_ANY_SOURCE: return FRONT_ANY_SOURCE;
    case MPI_PROC_NULL: return FRONT_PROC_NULL;
    case MPI_ROOT: return FRONT_ROOT;
    default: return core;
    }
}

int front_Group_translate_ranks(front_handle_t group1, int n, const int ranks1[], front_handle_t group2, int ranks2[]) {
    int local[LOCAL_ITEMS], rc = MPI_SUCCESS;
    if (n <= 0 || ranks1 == NULL || ranks2 == NULL)
        return front_error(
            MPY_CORE(Group_translate_ranks)(core_handle(group1), n, ranks1, core_handle(group2), ranks2));
    for (int done = 0; done < n && rc == MPI_SUCCESS; done += LOCAL_ITEMS) {
        int part = n - done < LOCAL_ITEMS ? n - done : LOCAL_ITEMS;
        for (int i = 0; i < part; i++) local[i] = core_rank(ranks1[done + i]);
        rc = MPY_CORE(Group_translate_ranks)(core_handle(group1), part, local, core_handle(group2), ranks2 + done);
        for (int i = 0; i < part && rc == MPI_SUCCESS; i++) ranks2[done + i] = front_rank(ranks2[done + i]);
    }
    return front_error(rc);
}

/* ---- the version of the standard ---- */

int front_Get_version(int *version, int *subversion) {
    if (version == NULL || subversion == NULL) return FRONT_ERR_ARG;
    *version = FRONT_VERSION;
    *subversion = FRONT_SUBVERSION;
    return MPI_SUCCESS;
}
