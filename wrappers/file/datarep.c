/* datarep.c - data representations of files that the program registers.
 *
 * Upper half, no libc. ROMIO accepts no conversion functions and never calls the extent function, so it can get the
 * program's own extent function. A registration can't be undone, and a second one is an error. So it is kept here, and
 * recreated after a restart.
 */
#include "file.h"
#include "environment/errors.h"

typedef struct datarep {
    struct datarep *next;
    char *name;
    mpy_opaque_function *extent;
    void *extra_state;
} datarep_t;
static datarep_t *datareps;

/* In the lower half, as is everything below except the program's calls. */
static int keep(const char *name, mpy_opaque_function *extent, void *extra_state) {
    datarep_t *d = mpy_alloc(sizeof *d);
    d->name = mpy_text_copy(name);
    d->extent = extent;
    d->extra_state = extra_state;
    mpy_lock(&mpy_objects_lock);
    d->next = datareps;
    datareps = d;
    mpy_unlock(&mpy_objects_lock);
    return MPI_SUCCESS;
}

int PMPI_Register_datarep(const char *datarep, mpy_opaque_function *read_conversion_fn,
                          mpy_opaque_function *write_conversion_fn, mpy_opaque_function *dtype_file_extent_fn,
                          void *extra_state) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc =
        MPY_REAL(Register_datarep)(datarep, read_conversion_fn, write_conversion_fn, dtype_file_extent_fn, extra_state);
    if (rc == 0) rc = keep(datarep, dtype_file_extent_fn, extra_state);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(NULL, rc, "MPI_Register_datarep");
}

int PMPI_Register_datarep_c(const char *datarep, mpy_opaque_function *read_conversion_fn,
                            mpy_opaque_function *write_conversion_fn, mpy_opaque_function *dtype_file_extent_fn,
                            void *extra_state) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Register_datarep_c)(datarep, read_conversion_fn, write_conversion_fn, dtype_file_extent_fn,
                                          extra_state);
    if (rc == 0) rc = keep(datarep, dtype_file_extent_fn, extra_state);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(NULL, rc, "MPI_Register_datarep_c");
}

int mpy_datarep_rebuild(void) {
    int rc = MPI_SUCCESS;
    for (const datarep_t *d = datareps; d != NULL && rc == 0; d = d->next)
        rc = MPY_REAL(Register_datarep)(d->name, NULL, NULL, d->extent, d->extra_state);
    return rc;
}
