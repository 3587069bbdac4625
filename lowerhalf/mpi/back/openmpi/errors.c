/* errors.c - errors that Open MPI does not know, and error codes that it cannot remove. See openmpi.h, shared/errors.c.
 *
 * Invariants
 *  1. Open MPI cannot remove classes, codes and texts that a program has added. `added` says which of them still exist.
 *     The core adds and removes under a lock.
 */
#include "openmpi.h"

/* Classes of MPICH that Open MPI lacks, or version 4.1 does. */
static const struct { int class; const char *text; } texts[] = {
    {MPI_ERR_PROC_ABORTED, "MPI_ERR_PROC_ABORTED: a peer process has aborted"},
    {MPI_ERR_SESSION, "MPI_ERR_SESSION: invalid session"},
    {MPI_ERR_VALUE_TOO_LARGE,
     "MPI_ERR_VALUE_TOO_LARGE: a count or displacement is too large for an int, and the MPI library (Open MPI) has no "
     "functions for larger ones"},
    {MPI_ERR_ERRHANDLER, "MPI_ERR_ERRHANDLER: invalid error handler"},
    {MPI_ERR_ABI, "MPI_ERR_ABI: error of the binary interface"},
    {MPI_ERR_UNSUPPORTED_OPERATION,
     "MPI_ERR_UNSUPPORTED_OPERATION: the MPI library (Open MPI) does not support this operation"},
};

const char *mpy_own_text(int class) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].class == class) return texts[i].text;
    return NULL;
}
int mpy_text_code(int class) { return mpy_code_in(class); }

/* ---- what the program adds and removes (MPI-4.1 9.5) ---- */

/* A class (`class` is 0), or a code of a class. */
typedef struct added {
    struct added *next;
    int code, class; /* Open MPI's */
    bool has_text;
} added_t;
static added_t *added;

static added_t **find(int code) {
    added_t **at = &added;
    while (*at != NULL && (*at)->code != code) at = &(*at)->next;
    return at;
}
static bool has_codes(int class) {
    const added_t *a = added;
    while (a != NULL && a->class != class) a = a->next;
    return a != NULL;
}

static int add(int code, int class, int *out) {
    added_t *a = malloc(sizeof *a);
    if (a == NULL) return MPI_ERR_NO_MEM;
    *a = (added_t){.next = added, .code = code, .class = class};
    added = a;
    *out = mpy_class_out(code);
    return MPI_SUCCESS;
}
static int add_class(int *class) {
    int code = 0, rc = MPY_THEIRS(Add_error_class, &code);
    return rc == 0 ? add(code, 0, class) : mpy_code_out(rc);
}
static int add_code(int class, int *code) {
    int theirs = 0, rc = MPY_THEIRS(Add_error_code, mpy_code_in(class), &theirs);
    return rc == 0 ? add(theirs, mpy_code_in(class), code) : mpy_code_out(rc);
}
static int add_string(int code, const char *text) {
    int rc = MPY_THEIRS(Add_error_string, mpy_code_in(code), text);
    added_t *a = *find(mpy_code_in(code));
    if (rc == 0 && a != NULL) a->has_text = true;
    return mpy_code_out(rc);
}

static int remove_added(int code, bool is_class) {
    added_t **at = find(mpy_code_in(code)), *gone = *at;
    if (gone == NULL || (gone->class == 0) != is_class || gone->has_text) return MPI_ERR_OTHER;
    if (is_class && has_codes(gone->code)) return MPI_ERR_OTHER;
    *at = gone->next;
    free(gone);
    return MPI_SUCCESS;
}
static int remove_class(int class) { return remove_added(class, true); }
static int remove_code(int code) { return remove_added(code, false); }
static int remove_string(int code) {
    added_t *a = *find(mpy_code_in(code));
    if (a == NULL || !a->has_text) return MPI_ERR_OTHER;
    a->has_text = false;
    return mpy_code_out(MPY_THEIRS(Add_error_string, a->code, ""));
}

const mpy_ours_t mpy_ours_added[] = {
    OURS(Add_error_class, Error_class, add_class),         OURS(Add_error_code, Error_class, add_code),
    OURS(Add_error_string, Error_class, add_string),       OURS(Remove_error_class, Error_class, remove_class),
    OURS(Remove_error_code, Error_class, remove_code),     OURS(Remove_error_string, Error_class, remove_string),
};
const size_t mpy_ours_added_count = sizeof mpy_ours_added / sizeof *mpy_ours_added;
