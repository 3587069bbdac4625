/* abi.c - queries of the ABI itself (MPI-5 20.2), and of the Fortran that the program uses.
 *
 * The answers do not depend on the real library, which another one may replace at a restart. They are those of MPICH's
 * library of this ABI: it knows its Fortran compiler, so a program can set nothing. Here the compiler is gfortran.
 */
#include "standard.h"

#include <string.h>

/* Set by the Fortran library, to the addresses of the constants there. */
MPI_Fint *MPI_F_STATUS_IGNORE, *MPI_F_STATUSES_IGNORE;
front_status_t *MPI_F08_STATUS_IGNORE, *MPI_F08_STATUSES_IGNORE;

int front_Abi_get_version(int *abi_major, int *abi_minor) {
    *abi_major = 1;
    *abi_minor = 0;
    return MPI_SUCCESS;
}

static int fail(void) { /* as all errors that belong to no object */
    MPY_CORE(Comm_call_errhandler)(MPI_COMM_SELF, MPI_ERR_ABI);
    return FRONT_ERR_ABI;
}

typedef struct { const char *key, *value; } entry_t;

static int make_info(const entry_t *entries, size_t n, front_handle_t *info) {
    int core = 0, rc = MPY_CORE(Info_create)(info != NULL ? &core : NULL);
    for (size_t i = 0; i < n && rc == MPI_SUCCESS; i++)
        rc = MPY_CORE(Info_set)(core, entries[i].key, entries[i].value);
    if (rc == MPI_SUCCESS) *info = front_handle(FRONT_INFO, core);
    return front_error(rc);
}

int front_Abi_get_info(front_handle_t *info) {
    static const entry_t entries[] = {{"mpi_aint_size", "8"}, {"mpi_count_size", "8"}, {"mpi_offset_size", "8"}};
    return make_info(entries, sizeof entries / sizeof *entries, info);
}

int front_Abi_get_fortran_info(front_handle_t *info) {
#define SUPPORTED(TYPE) {"mpi_" TYPE "_supported", "true"}
    static const entry_t entries[] = {
        {"mpi_logical_size", "4"}, {"mpi_integer_size", "4"}, {"mpi_real_size", "4"},
        {"mpi_double_precision_size", "8"}, SUPPORTED("logical1"), SUPPORTED("logical2"), SUPPORTED("logical4"),
        SUPPORTED("logical8"), SUPPORTED("logical16"), SUPPORTED("integer1"), SUPPORTED("integer2"),
        SUPPORTED("integer4"), SUPPORTED("integer8"), SUPPORTED("integer16"), SUPPORTED("real2"), SUPPORTED("real4"),
        SUPPORTED("real8"), SUPPORTED("real16"), SUPPORTED("complex4"), SUPPORTED("complex8"), SUPPORTED("complex16"),
        SUPPORTED("complex32"), SUPPORTED("double_complex"),
    };
    return make_info(entries, sizeof entries / sizeof *entries, info);
}

int front_Abi_set_fortran_info(front_handle_t info) { return (void)info, fail(); }

int front_Abi_get_fortran_booleans(int logical_size, void *logical_true, void *logical_false, int *is_set) {
    const int true_value = 1, false_value = 0;
    if (logical_size != sizeof true_value) return fail();
    memcpy(logical_true, &true_value, sizeof true_value);
    memcpy(logical_false, &false_value, sizeof false_value);
    *is_set = 1;
    return MPI_SUCCESS;
}

int front_Abi_set_fortran_booleans(int logical_size, void *logical_true, void *logical_false) {
    return (void)logical_size, (void)logical_true, (void)logical_false, fail();
}
