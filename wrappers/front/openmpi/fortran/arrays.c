/* arrays.c - arrays of handles, of addresses and of indices. */
#include "fortran.h"

#include <stdlib.h>

front_handle_t *fortran_handles(front_kind_t kind, const MPI_Fint *handles, int n, front_handle_t local[LOCAL_ITEMS]) {
    front_handle_t *own = n <= LOCAL_ITEMS ? local : malloc((size_t)n * sizeof *own);
    if (own == NULL) abort();
    for (int i = 0; i < n; i++) own[i] = front_of_fortran(kind, handles[i]);
    return own;
}

/* Elements that haven't changed aren't written: another thread may look at them. */
void fortran_handles_put(front_kind_t kind, MPI_Fint *handles, int n, const front_handle_t *changed) {
    for (int i = 0; i < n; i++) {
        MPI_Fint number = front_fortran(kind, changed[i]);
        if (handles[i] != number) handles[i] = number;
    }
}

MPI_Aint *fortran_addresses(const MPI_Fint *addresses, int n) {
    MPI_Aint *own = malloc(n > 0 ? (size_t)n * sizeof *own : 1);
    if (own == NULL) abort();
    for (int i = 0; i < n; i++) own[i] = addresses[i];
    return own;
}

int fortran_members(const MPI_Fint *comm, mpy_members_t which) {
    return mpy_core_members(core_handle(front_of_fortran(FRONT_COMM, *comm)), which);
}

/* MPI_UNDEFINED is negative. */
void fortran_index(MPI_Fint *index, int written) {
    if (written != UNKNOWN_CONSTANT) *index = written >= 0 ? written + 1 : written;
}

void fortran_indices(int rc, int outcount, MPI_Fint *indices) {
    if (rc != MPI_SUCCESS && rc != FRONT_ERR_IN_STATUS) return;
    for (int i = 0; i < outcount; i++) indices[i]++;
}
