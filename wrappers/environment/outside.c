/* outside.c - calls before MPI_Init and after MPI_Finalize end the process with MPICH's own line.
 *
 * The real library would do that, too, but without a record of the call. So while MPI isn't initialized, functions that
 * redirect here replace all functions in its table that need MPI (generated.c). Therefore calls at other times need no
 * test. For functions that the wrappers answer without the table, mpy_error makes the test (there are no objects then),
 * or mpy_require_mpi.
 *
 * Upper half. The table is changed with in_lower = 1.
 */
#include "outside.h"
#include "core/objects.h"
#include "tools/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *real[MPY_FN_COUNT]; /* contents of the table while MPI is initialized; of this lower half */
static bool closed;

void mpy_table_close(void) {
    for (int i = 0; i < MPY_FN_COUNT; i++) {
        real[i] = MPY_LOWER->mpi[i];
        if (mpy_outside[i] != NULL) MPY_LOWER->mpi[i] = (void *)mpy_outside[i];
    }
    closed = true;
}

void mpy_table_open(void) {
    for (int i = 0; closed && i < MPY_FN_COUNT; i++) MPY_LOWER->mpi[i] = real[i];
    closed = false;
}

void mpy_end_outside(mpy_thread_t *t, const char *function) {
    char line[200];
    mpy_trace_refused(t, function, 0);
    mpy_text_format(line, sizeof line,
                    "Attempting to use an MPI routine (internal_%s) before initializing or after finalizing MPICH\n",
                    function + sizeof "MPI_" - 1);
    fflush(NULL);
    ssize_t unused = write(2, line, mpy_text_length(line));
    (void)unused;
    exit(1);
}

static void end(void *function) { mpy_end_outside(mpy_self(), function); }

void mpy_called_outside(const char *function) { mpy_callback(end, (void *)function); }

bool mpy_needs_mpi(const char *function) {
    for (int i = 0; i < MPY_FN_COUNT; i++)
        if (mpy_text_equal(mpy_names[i], function)) return mpy_outside[i] != NULL;
    return false;
}
