/* find_driver.c - prints the MPI library that mpi/find.c finds, or an empty line. `find_driver PATH/manapy-launch` */
#include <stdio.h>
#include <stdlib.h>

#include "base/rank.h"
#include "join/manager/pmi.h"
#include "mpi/load.h"

static const char *self;

mpy_options_t mpy_options;

const char *mpy_self_path(void) { return self; }
bool mpy_pmi_uses_pmix(void) { return getenv("PMIX_RANK") != NULL; }

int main(int argc, char **argv) {
    self = argv[argc - 1];
    const char *path = mpy_mpi_path();
    puts(path ? path : "");
    return 0;
}
