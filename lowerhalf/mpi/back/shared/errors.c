/* errors.c - error codes of the library as MPICH's, and their classes and texts. See translate.h.
 *
 * The library's codes up to MPI_ERR_LASTCODE are classes; those above are what a program has added, or classes with
 * details, which are dropped. MPICH's classes end below 128, and its added codes are above.
 *
 * Invariants
 *  1. An added code is shown as ADDED + the code, or as itself if it is above ADDED. A library has codes of one of
 *     these sorts only. Neither is a class of MPICH.
 */
#include "back_interface.h"

#include <stdio.h>
#include <string.h>

enum { ADDED = 0x40000000, CLASSES = 128 }; /* more than MPI_ERR_LASTCODE */

static bool above; /* the library's added codes are above ADDED */

int mpy_class_out(int class) {
    if (class > ADDED) above = true;
    if (class > BACK_ERR_LASTCODE) return class > ADDED ? class : ADDED + class;
    int ours = mpy_number_out(MPY_GROUP_ERROR, class);
    return ours != class || mpy_number_in(MPY_GROUP_ERROR, class) == class ? ours : MPI_ERR_OTHER;
}

int mpy_their_class(int code) {
    int class = code;
    if (code > BACK_ERR_LASTCODE) MPY_THEIRS(Error_class, code, &class);
    return class;
}

int mpy_code_out_slow(int code) { return mpy_class_out(mpy_their_class(code)); }

static int added_in(int code) { return above ? code : code - ADDED; }
int mpy_code_in(int code) { return code > ADDED ? added_in(code) : mpy_number_in(MPY_GROUP_ERROR, code); }

static int error_class(int code, int *class) {
    if (code >= 0 && code < CLASSES) {
        *class = code;
        return MPI_SUCCESS;
    }
    int theirs = 0, rc = code > ADDED ? MPY_THEIRS(Error_class, added_in(code), &theirs) : BACK_ERR_ARG;
    if (rc == 0) *class = mpy_class_out(theirs);
    return mpy_code_out(rc);
}

static int error_string(int code, char *text, int *length) {
    const char *own = mpy_own_text(code);
    if (own != NULL) {
        snprintf(text, MPI_MAX_ERROR_STRING, "%s", own);
        *length = (int)strlen(text);
        return MPI_SUCCESS;
    }
    if (code < 0 || (code >= CLASSES && code <= ADDED)) return MPI_ERR_ARG;
    return mpy_code_out(MPY_THEIRS(Error_string, code > ADDED ? added_in(code) : mpy_text_code(code), text, length));
}

const mpy_ours_t mpy_ours_errors[] = {
    OURS(Error_class, Error_class, error_class),
    OURS(Error_string, Error_string, error_string),
};
const size_t mpy_ours_errors_count = sizeof mpy_ours_errors / sizeof *mpy_ours_errors;
