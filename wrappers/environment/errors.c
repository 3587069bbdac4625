/* errors.c - handles failed calls, and the error classes, codes and texts that a program adds.
 *
 * Upper half, upper TLS. No libc, except where the job ends. mpy_error calls the program's handlers.
 *
 * Invariants
 *  1. mpy_error is called with in_lower = 0 and no lock held: a handler may do anything.
 *  2. Codes and classes that the program added are replayed in order after a restart. Another version of the library
 *     may number them differently. The program keeps its values, and this file translates them in both directions.
 *     A code has at most one record of a text: the newest.
 */
#include "outside.h"
#include "errors.h"
#include "comm/attr.h"
#include "core/objects.h"
#include "tools/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- classes, codes, texts that the program adds ---- */

typedef enum { ADD_CLASS, ADD_CODE, ADD_STRING } record_kind_t;
typedef struct record {
    struct record *next;
    record_kind_t kind;
    int in;   /* the program's value, as is `out` */
    int out;  /* of ADD_CLASS and ADD_CODE, else 0 */
    int real; /* the library's value of out */
    char *text;
} record_t;
static record_t *records, **records_end = &records; /* with mpy_objects_lock */

static int real_code(int code) {
    for (const record_t *r = records; r != NULL; r = r->next)
        if (r->kind <= ADD_CODE && r->out == code) return r->real;
    return code;
}

int mpy_error_virtual(int real) {
    for (const record_t *r = records; r != NULL; r = r->next)
        if (r->kind <= ADD_CODE && r->real == real) return r->out;
    return real;
}

/* Returns the library's value, unless the program already uses it for another code. */
static int new_code(int real) {
    int highest = real;
    bool taken = false;
    for (const record_t *r = records; r != NULL; r = r->next) {
        if (r->kind > ADD_CODE) continue;
        taken |= r->out == real;
        if (r->out > highest) highest = r->out;
    }
    return taken ? highest + 1 : real;
}

/* Removes a record, so that it isn't replayed. False: there is none. */
static bool forget(record_kind_t kind, int value) {
    record_t **at = &records;
    while (*at != NULL && ((*at)->kind != kind || (kind == ADD_STRING ? (*at)->in : (*at)->out) != value))
        at = &(*at)->next;
    record_t *gone = *at;
    if (gone == NULL) return false;
    *at = gone->next;
    if (records_end == &gone->next) records_end = at;
    mpy_text_free(gone->text);
    mpy_free(gone, sizeof *gone);
    return true;
}

/* In the lower half. */
static int perform(record_t *r) {
    int in = real_code(r->in);
    switch (r->kind) {
    case ADD_CLASS: return MPY_REAL(Add_error_class)(&r->real);
    case ADD_CODE: return MPY_REAL(Add_error_code)(in, &r->real);
    case ADD_STRING: return MPY_REAL(Add_error_string)(in, r->text);
    }
    return MPI_ERR_INTERN;
}

static int recorded(record_kind_t kind, int in, int *out, const char *text, const char *name) {
    mpy_require_mpi(name);
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    record_t *r = mpy_alloc(sizeof *r);
    r->kind = kind;
    r->in = in;
    r->text = text != NULL ? mpy_text_copy(text) : NULL;
    mpy_lock(&mpy_objects_lock);
    int rc = perform(r);
    if (rc == 0) {
        if (kind <= ADD_CODE) *out = r->out = new_code(r->real);
        if (kind == ADD_STRING) forget(kind, in); /* replaced */
        *records_end = r;
        records_end = &r->next;
        mpy_attr_read_last_code();
    } else {
        mpy_text_free(r->text);
        mpy_free(r, sizeof *r);
    }
    mpy_unlock(&mpy_objects_lock);
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

static int removed(record_kind_t kind, int value, int slot, const char *name) {
    mpy_require_mpi(name);
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_lock(&mpy_objects_lock);
    /* the three functions have the same type */
    int rc = ((mpy_fn_Remove_error_class_t)MPY_LOWER->mpi[slot])(real_code(value));
    if (rc == 0 && forget(kind, value)) mpy_attr_read_last_code();
    mpy_unlock(&mpy_objects_lock);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, name);
}

int PMPI_Remove_error_class(int errorclass) {
    return removed(ADD_CLASS, errorclass, MPY_FN_Remove_error_class, "MPI_Remove_error_class");
}
int PMPI_Remove_error_code(int errorcode) {
    return removed(ADD_CODE, errorcode, MPY_FN_Remove_error_code, "MPI_Remove_error_code");
}
int PMPI_Remove_error_string(int errorcode) {
    return removed(ADD_STRING, errorcode, MPY_FN_Remove_error_string, "MPI_Remove_error_string");
}

int PMPI_Error_class(int errorcode, int *errorclass) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_lock(&mpy_objects_lock);
    int rc = MPY_REAL(Error_class)(real_code(errorcode), errorclass);
    if (rc == 0) *errorclass = mpy_error_virtual(*errorclass);
    mpy_unlock(&mpy_objects_lock);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Error_class");
}

int PMPI_Error_string(int errorcode, char *string, int *resultlen) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_lock(&mpy_objects_lock);
    int rc = MPY_REAL(Error_string)(real_code(errorcode), string, resultlen);
    mpy_unlock(&mpy_objects_lock);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Error_string");
}

int mpy_errors_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    mpy_hook_in(t);
    record_t *r = records;
    int rc = 0;
    for (; r != NULL && (rc = perform(r)) == 0; r = r->next) continue;
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild the error codes the program added (MPI error %d)", rc);
    return -1;
}

/* ---- errors ---- */

/* Ends a job whose error handler is MPI_ERRORS_ARE_FATAL, as MPICH does. */
static void end_job(const mpy_comm_t *comm, int code, const char *function) {
    char text[MPI_MAX_ERROR_STRING + 1] = "", line[MPI_MAX_ERROR_STRING + 200];
    int length = 0, class = MPI_ERR_OTHER;
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    MPY_REAL(Error_string)(real_code(code), text, &length);
    MPY_REAL(Error_class)(real_code(code), &class);
    mpy_cross_out(t);
    mpy_trace_refused(t, function, mpy_error_virtual(class));
    mpy_text_format(line, sizeof line, "Abort(%d) on node %d (rank %d in comm %d): Fatal error in %s: %s\n", code,
                    MPY_LOWER->rank, comm != NULL ? comm->rank : MPY_LOWER->rank, 0, function, text);
    fflush(NULL); /* see PMPI_Abort */
    ssize_t unused = write(2, line, mpy_text_length(line));
    (void)unused;
    if (!mpy_mpi_is_up(MPY_UPPER)) exit(1); /* nothing is left that could end the other ranks */
    mpy_cross_in(t);
    MPY_REAL(Abort)(comm != NULL ? comm->obj.real : MPI_COMM_WORLD, code);
    mpy_cross_out(t);
    /* After a failed MPI_Finalize the library has no communicator to abort. The process manager ends the other
     * ranks. */
    exit(class);
}

/* Returns the value that the call must return: the code, or MPI_SUCCESS if the program's own handler has returned (as
 * in MPICH since 4.3). */
static int handled(void *handle, int errhandler, const mpy_comm_t *comm, int code, const char *function) {
    if (!mpy_mpi_is_up(MPY_UPPER) && mpy_needs_mpi(function)) mpy_end_outside(mpy_self(), function);
    if (errhandler == MPI_ERRORS_RETURN || errhandler == MPY_ERRORS_THROW_EXCEPTIONS) return code;
    mpy_errhandler_t *e = (mpy_errhandler_t *)mpy_lookup(MPY_ERRHANDLER, errhandler);
    if (e == NULL) {
        end_job(comm, code, function);
        return code;
    }
    int given = code;
    /* The handlers of all kinds of objects have the same type, except for their first argument. */
    if (e->proxy != NULL)
        e->proxy((int)e->kind, handle, &given, e->function);
    else
        ((void (*)(void *, int *, ...))e->function)(handle, &given, function, (char *)NULL);
    return MPI_SUCCESS;
}

int mpy_error_of(void *handle, int errhandler, int code, const char *function) {
    return MPY_LIKELY(code == MPI_SUCCESS) ? code : handled(handle, errhandler, NULL, code, function);
}

static bool has_handler(const mpy_comm_t *c) { return c != NULL && c->errhandler != MPI_ERRHANDLER_NULL; }

/* Errors without a communicator, or of a communicator whose handler was never set, go to MPI_COMM_SELF's handler (MPI-4
 * 9.3). If that was never set either, they go to the world's handler, as in MPICH (MPI-3). */
int mpy_error(const mpy_comm_t *comm, int code, const char *function) {
    if (code == MPI_SUCCESS) return code;
    const mpy_comm_t *self = mpy_comm(MPI_COMM_SELF), *world = mpy_comm(MPI_COMM_WORLD);
    if (!has_handler(comm) && has_handler(self)) comm = self;
    if (!has_handler(comm) && has_handler(world)) comm = world;
    if (comm == NULL) comm = self;
    if (comm == NULL) return handled(NULL, MPI_ERRORS_ARE_FATAL, NULL, code, function);
    MPI_Comm handle = comm->obj.handle;
    return handled(&handle, comm->errhandler, comm, code, function);
}
