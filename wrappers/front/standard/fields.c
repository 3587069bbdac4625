/* fields.c - the fields of a status. They hold what the program has written, whatever it is: nothing is translated. The
 * core only finds errors. */
#include "standard.h"

#define FIELD(NAME) \
    int front_Status_get_##NAME(const front_status_t *status, int *value) { \
        MPI_Status core = CORE_STATUS_EMPTY; \
        int rc = MPY_CORE(Status_get_##NAME)(status != NULL ? &core : NULL, value); \
        if (rc == MPI_SUCCESS) *value = status->NAME; \
        return front_error(rc); \
    } \
    int front_Status_set_##NAME(front_status_t *status, int value) { \
        MPI_Status core = CORE_STATUS_EMPTY; \
        int rc = MPY_CORE(Status_set_##NAME)(status != NULL ? &core : NULL, 0); \
        if (rc == MPI_SUCCESS) status->NAME = value; \
        return front_error(rc); \
    }
FIELD(source)
FIELD(tag)
FIELD(error)
