/* texts.c - texts that are shorter in Open MPI. */
#include "openmpi.h"

#include <string.h>

int front_Get_library_version(char *version, int *resultlen) {
    char core[MPI_MAX_LIBRARY_VERSION_STRING + 1];
    int rc = MPY_CORE(Get_library_version)(version != NULL ? core : NULL, resultlen);
    if (rc == MPI_SUCCESS) front_text(version, FRONT_MAX_LIBRARY_VERSION_STRING, core, resultlen);
    return front_error(rc);
}

void front_text(char *text, size_t size, const char *core, int *length) {
    size_t n = strnlen(core, size - 1);
    memcpy(text, core, n);
    text[n] = 0;
    if (length != NULL) *length = (int)n;
}
