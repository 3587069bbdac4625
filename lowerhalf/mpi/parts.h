/* parts.h - what load.c needs of the files beside it. */
#ifndef MANAPY_MPI_PARTS_H
#define MANAPY_MPI_PARTS_H
#include <stdbool.h>

typedef enum { FAMILY_MPICH, FAMILY_OPEN_MPI, FAMILY_STANDARD } mpy_family_t;

void mpy_mpi_adopt_environment(char **env); /* environment.c; NULL: there is nothing to adopt */
void mpy_mpi_guard_init(void);              /* init.c; after the table has been filled */

/* intel.c */
void mpy_mpi_mend_intels(void);                      /* after the table has been filled */
void mpy_mpi_advise_intels_other(const char *path);  /* path: its library of the standard ABI */
bool mpy_mpi_is_by(void *library, const char *maker); /* refuse.c: does the library's own text name its maker? */
/* A library of another maker may name Intel's compiler, or a host. */
#define MPY_INTEL_MPI "Intel(R) MPI Library"

/* refuse.c. The first one ends the program. The others do so if the library cannot be used. */
void mpy_mpi_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mpy_mpi_refuse_nothing(void); /* no library was found */
void mpy_mpi_refuse_strangers(void *library, const char *path, mpy_family_t family);
#endif
