/* constants.c - constants whose translation is not a plain list of pairs: errors, ranks, assertions, keyvals, texts. */
#include "openmpi.h"

#include <string.h>

/* ---- errors. Open MPI's predefined codes are the classes; codes that the program adds are the core's in both. ---- */

enum {
    CORE_CLASS = 0x7f,             /* MPICH: the class in a code */
    CORE_ADDED = 0x40000000,       /* MPICH: a class or code that the program has added */
    FRONT_PREDEFINED = OPENMPI_ERR_LASTCODE,
};

int front_error_slow(int core) {
    if (core & CORE_ADDED) return core;
    int class = core & CORE_CLASS;
    if (class == MPI_ERR_ERRHANDLER) return OPENMPI_ERR_ARG; /* Open MPI has no class for this */
    int translated = front_error_class(class);
    return translated != UNKNOWN_CONSTANT ? translated : OPENMPI_ERR_OTHER;
}

int core_error(int error) {
    if (error < 0 || error > FRONT_PREDEFINED) return error;
    int translated = core_error_class(error);
    return translated != UNKNOWN_CONSTANT ? translated : MPI_ERR_OTHER;
}

/* ---- ranks ---- */

int core_rank_slow(int rank) {
    switch (rank) {
    case OPENMPI_ANY_SOURCE: return MPI_ANY_SOURCE;
    case OPENMPI_PROC_NULL: return MPI_PROC_NULL;
    case OPENMPI_ROOT: return MPI_ROOT;
    case MPI_UNDEFINED: return MPI_UNDEFINED;
    default: return rank < 0 ? UNKNOWN_CONSTANT : rank;
    }
}

int front_rank(int core) {
    switch (core) {
    case MPI_ANY_SOURCE: return OPENMPI_ANY_SOURCE;
    case MPI_PROC_NULL: return OPENMPI_PROC_NULL;
    case MPI_ROOT: return OPENMPI_ROOT;
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

/* ---- assertions of windows: bits ---- */

int core_assert(int assert) {
    static const struct { int front, core; } bits[] = {
        {OPENMPI_MODE_NOCHECK, MPI_MODE_NOCHECK},     {OPENMPI_MODE_NOSTORE, MPI_MODE_NOSTORE},
        {OPENMPI_MODE_NOPUT, MPI_MODE_NOPUT},         {OPENMPI_MODE_NOPRECEDE, MPI_MODE_NOPRECEDE},
        {OPENMPI_MODE_NOSUCCEED, MPI_MODE_NOSUCCEED},
    };
    int core = 0;
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        if (assert & bits[i].front) core |= bits[i].core;
        assert &= ~bits[i].front;
    }
    return assert == 0 ? core : 1 << 30; /* a bit that isn't defined is an error in the core, too */
}

/* ---- versions and texts ---- */

int front_Get_version(int *version, int *subversion) {
    if (version == NULL || subversion == NULL) return OPENMPI_ERR_ARG;
    *version = OPENMPI_VERSION;
    *subversion = OPENMPI_SUBVERSION;
    return MPI_SUCCESS;
}

int front_Get_library_version(char *version, int *resultlen) {
    char core[MPI_MAX_LIBRARY_VERSION_STRING + 1];
    int rc = MPY_CORE(Get_library_version)(version != NULL ? core : NULL, resultlen);
    if (rc == MPI_SUCCESS) front_text(version, OPENMPI_MAX_LIBRARY_VERSION_STRING, core, resultlen);
    return front_error(rc);
}

void front_text(char *text, size_t size, const char *core, int *length) {
    size_t n = strnlen(core, size - 1);
    memcpy(text, core, n);
    text[n] = 0;
    if (length != NULL) *length = (int)n;
}
