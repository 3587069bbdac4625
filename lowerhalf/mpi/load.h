/* load.h - see load.c. */
#ifndef MANAPY_MPI_LOAD_H
#define MANAPY_MPI_LOAD_H
#include <stddef.h>

void mpy_mpi_load(char **env);
/* No MPI library that we can load works under this launcher: mpy_mpi_load ends the program with a line that says so. */
void mpy_mpi_forbid(const char *launcher);
const char *mpy_mpi_path(void); /* the library that is loaded or would be loaded; NULL if none was found */
void mpy_mpi_segments(char *out, size_t n); /* files in /dev/shm that it has mapped: comma-separated paths, or "-" */
#endif
