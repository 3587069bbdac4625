/* statuses.c - a status in Fortran is the status of C: six integers, and in mpi_f08 a type of the same layout. */
#include "front_interface.h"

#include <string.h>

static int copy(void *to, const void *from, const void *ignored, const void *all_ignored) {
    if (to == NULL || from == NULL || from == ignored || from == all_ignored) return FRONT_ERR_IN_STATUS;
    memcpy(to, from, sizeof(front_status_t));
    return MPI_SUCCESS;
}

int front_Status_c2f(const front_status_t *status, MPI_Fint *f) { return copy(f, status, NULL, NULL); }
int front_Status_c2f08(const front_status_t *status, front_status_t *f08) { return copy(f08, status, NULL, NULL); }
int front_Status_f2c(const MPI_Fint *f, front_status_t *status) {
    return copy(status, f, MPI_F_STATUS_IGNORE, MPI_F_STATUSES_IGNORE);
}
int front_Status_f2f08(const MPI_Fint *f, front_status_t *f08) {
    return copy(f08, f, MPI_F_STATUS_IGNORE, MPI_F_STATUSES_IGNORE);
}
int front_Status_f082c(const front_status_t *f08, front_status_t *status) {
    return copy(status, f08, MPI_F08_STATUS_IGNORE, MPI_F08_STATUSES_IGNORE);
}
int front_Status_f082f(const front_status_t *f08, MPI_Fint *f) {
    return copy(f, f08, MPI_F08_STATUS_IGNORE, MPI_F08_STATUSES_IGNORE);
}
