/* load.h - see load.c, exchange.c, find.c, init.c, refuse.c, segments.c and slow_init.c. */
#ifndef MANAPY_MPI_LOAD_H
#define MANAPY_MPI_LOAD_H
#include <stddef.h>
#include <stdint.h>

#include "join/manager/pmi.h"
#include "process/tcp/exchange.h"

void mpy_mpi_load(char **env);
/* What has started this rank: mpy_mpi_load ends a program whose library would not find the other ranks. */
void mpy_mpi_started_by(mpy_manager_t manager);
const char *mpy_mpi_path(void); /* the library that is loaded or would be loaded; NULL if none was found */
/* slow_init.c: around the MPI_Init of a restart, which may hang. words: rank 0's pipe from the coordinator, or -1. */
void mpy_mpi_watch_words(int words);
void mpy_mpi_watch_begin(void);
void mpy_mpi_watch_end(void);
int64_t mpy_mpi_init_since(void); /* when the real MPI_Init was called (mpy_now_ms); 0: not yet, or it has failed */
void mpy_mpi_segments(char *out, size_t n); /* files in /dev/shm that it has mapped: comma-separated paths, or "-" */
/* exchange.c: of this process, in which MPI is initialized; over a real communicator of all ranks. */
const mpy_exchange_t *mpy_mpi_exchange(int comm);
#endif
