/* status.c - statuses. MPI_Status is the same in both halves, so these functions need no lower half (except to count
 * derived types).
 *
 * Upper half, upper TLS, no libc.
 */
#include "core/objects.h"
#include "request.h"
#include "environment/errors.h"

static int get_count(const MPI_Status *status, MPI_Datatype datatype, MPI_Count *count, const char *name) {
    int64_t size = mpy_is_basic(datatype) ? mpy_basic_size(datatype) : 0;
    if (MPY_LIKELY(size > 0)) {
        int64_t bytes = (int64_t)mpy_status_bytes(status);
        *count = bytes % size == 0 ? bytes / size : MPI_UNDEFINED;
        return MPI_SUCCESS;
    }
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Get_count_c)(status, mpy_real_datatype(datatype), count);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, name);
}

int PMPI_Get_count_c(const MPI_Status *status, MPI_Datatype datatype, MPI_Count *count) {
    return get_count(status, datatype, count, "MPI_Get_count_c");
}

int PMPI_Get_count(const MPI_Status *status, MPI_Datatype datatype, int *count) {
    MPI_Count n;
    int rc = get_count(status, datatype, &n, "MPI_Get_count");
    if (rc == 0) *count = n > INT32_MAX ? MPI_UNDEFINED : (int)n;
    return rc;
}

int PMPI_Test_cancelled(const MPI_Status *status, int *flag) {
    *flag = status->count_hi_and_cancelled & 1;
    return MPI_SUCCESS;
}

int PMPI_Status_set_cancelled(MPI_Status *status, int flag) {
    status->count_hi_and_cancelled = (status->count_hi_and_cancelled & ~1) | (flag != 0);
    return MPI_SUCCESS;
}

#define FIELD(NAME, MEMBER) \
    int PMPI_Status_get_##NAME(const MPI_Status *status, int *NAME) { \
        *NAME = status->MEMBER; \
        return MPI_SUCCESS; \
    } \
    int PMPI_Status_set_##NAME(MPI_Status *status, int NAME) { \
        status->MEMBER = NAME; \
        return MPI_SUCCESS; \
    }
FIELD(source, MPI_SOURCE)
FIELD(tag, MPI_TAG)

int PMPI_Status_get_error(const MPI_Status *status, int *err) {
    *err = status->MPI_ERROR;
    return MPI_SUCCESS;
}
int PMPI_Status_set_error(MPI_Status *status, int err) {
    status->MPI_ERROR = err;
    return MPI_SUCCESS;
}

/* ---- Fortran statuses have the same layout ---- */

static int copy(void *to, const void *from) {
    __builtin_memcpy(to, from, sizeof(MPI_Status));
    return MPI_SUCCESS;
}
int PMPI_Status_c2f(const MPI_Status *c_status, MPI_Fint *f_status) { return copy(f_status, c_status); }
int PMPI_Status_f2c(const MPI_Fint *f_status, MPI_Status *c_status) { return copy(c_status, f_status); }
int PMPI_Status_c2f08(const MPI_Status *c_status, MPI_F08_status *f08_status) { return copy(f08_status, c_status); }
int PMPI_Status_f082c(const MPI_F08_status *f08_status, MPI_Status *c_status) { return copy(c_status, f08_status); }
int PMPI_Status_f082f(const MPI_F08_status *f08_status, MPI_Fint *f_status) { return copy(f_status, f08_status); }
int PMPI_Status_f2f08(const MPI_Fint *f_status, MPI_F08_status *f08_status) { return copy(f08_status, f_status); }
