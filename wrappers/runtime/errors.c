/* errors.c - what happens when a call fails, and the error classes, codes and texts a program adds.
 *
 * Upper half, upper TLS. No libc, but where the job ends; mpy_error calls the program's handlers.
 *
 * Invariants
 *  1. mpy_error is called with in_lower = 0 and no lock held: a handler may do anything.
 *  2. Codes the program added are replayed in order after a restart and must come out as before; the real library gives them
 *     out in sequence.
 */
#include "objects.h"

#include <stdio.h>
#include <unistd.h>

/* As MPICH ends a job whose error handler is MPI_ERRORS_ARE_FATAL. */
static void end_job(const mpy_comm_t *comm, int code, const char *function) {
    char text[MPI_MAX_ERROR_STRING + 1] = "", line[MPI_MAX_ERROR_STRING + 200];
    int length = 0;
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    MPY_REAL(Error_string)(code, text, &length);
    mpy_cross_out(t);
    mpy_text_format(line, sizeof line, "Abort(%d) on node %d (rank %d in comm %d): Fatal error in %s: %s\n", code, MPY_LOWER->rank,
                    comm != NULL ? comm->rank : MPY_LOWER->rank, 0, function, text);
    fflush(NULL); /* see PMPI_Abort */
    ssize_t unused = write(2, line, mpy_text_length(line));
    (void)unused;
    mpy_cross_in(t);
    MPY_REAL(Abort)(comm != NULL ? comm->obj.real : MPI_COMM_WORLD, code);
    mpy_cross_out(t);
}

int mpy_error(const mpy_comm_t *comm, int code, const char *function) {
    if (code == MPI_SUCCESS) return code;
    if (comm == NULL) comm = mpy_comm(MPI_COMM_SELF); /* MPI-4 9.3: errors of no communicator */
    int handler = comm != NULL ? comm->errhandler : MPI_ERRORS_ARE_FATAL;
    if (handler == MPI_ERRORS_RETURN) return code;
    mpy_errhandler_t *e = (mpy_errhandler_t *)mpy_lookup(MPY_ERRHANDLER, handler);
    if (e == NULL) {
        end_job(comm, code, function);
        return code;
    }
    MPI_Comm handle = comm->obj.handle;
    int given = code;
    ((MPI_Comm_errhandler_function *)e->function)(&handle, &given, function, (char *)NULL);
    return code;
}

/* ---- classes, codes, texts ---- */

typedef enum { ADD_CLASS, ADD_CODE, ADD_STRING, REMOVE_CLASS, REMOVE_CODE, REMOVE_STRING } record_kind_t;
typedef struct record {
    struct record *next;
    record_kind_t kind;
    int in, out;
    char *text;
} record_t;
static record_t *records, **records_end = &records;

/* In the lower half. */
static int perform(record_kind_t kind, int in, int *out, const char *text) {
    switch (kind) {
    case ADD_CLASS: return MPY_REAL(Add_error_class)(out);
    case ADD_CODE: return MPY_REAL(Add_error_code)(in, out);
    case ADD_STRING: return MPY_REAL(Add_error_string)(in, text);
    case REMOVE_CLASS: return MPY_REAL(Remove_error_class)(in);
    case REMOVE_CODE: return MPY_REAL(Remove_error_code)(in);
    case REMOVE_STRING: return MPY_REAL(Remove_error_string)(in);
    }
    return MPI_ERR_INTERN;
}

static int recorded(record_kind_t kind, int in, int *out, const char *text, const char *name) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = perform(kind, in, out, text);
    if (rc == 0) {
        record_t *r = mpy_alloc(sizeof *r);
        r->kind = kind;
        r->in = in;
        r->out = out != NULL ? *out : 0;
        r->text = text != NULL ? mpy_text_copy(text) : NULL;
        mpy_lock(&mpy_objects_lock);
        *records_end = r;
        records_end = &r->next;
        mpy_unlock(&mpy_objects_lock);
        mpy_attr_read_predefined(); /* MPI_LASTUSEDCODE */
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, name);
}

int PMPI_Add_error_class(int *errorclass) { return recorded(ADD_CLASS, 0, errorclass, NULL, "MPI_Add_error_class"); }
int PMPI_Add_error_code(int errorclass, int *errorcode) {
    return recorded(ADD_CODE, errorclass, errorcode, NULL, "MPI_Add_error_code");
}
int PMPI_Add_error_string(int errorcode, const char *string) {
    return recorded(ADD_STRING, errorcode, NULL, string, "MPI_Add_error_string");
}
int PMPI_Remove_error_class(int errorclass) { return recorded(REMOVE_CLASS, errorclass, NULL, NULL, "MPI_Remove_error_class"); }
int PMPI_Remove_error_code(int errorcode) { return recorded(REMOVE_CODE, errorcode, NULL, NULL, "MPI_Remove_error_code"); }
int PMPI_Remove_error_string(int errorcode) { return recorded(REMOVE_STRING, errorcode, NULL, NULL, "MPI_Remove_error_string"); }

int PMPI_Error_string(int errorcode, char *string, int *resultlen) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Error_string)(errorcode, string, resultlen);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Error_string");
}

int mpy_errors_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    mpy_hook_in(t);
    const record_t *r = records;
    int rc = 0;
    for (; r != NULL; r = r->next) {
        int out = 0;
        rc = perform(r->kind, r->in, &out, r->text);
        if (rc == 0 && out != r->out) rc = MPI_ERR_INTERN;
        if (rc != 0) break;
    }
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild the error code %d the program added (MPI error %d)", r->out, rc);
    return -1;
}
