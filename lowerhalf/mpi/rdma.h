/* rdma.h - see rdma.c. */
#ifndef MANAPY_MPI_RDMA_H
#define MANAPY_MPI_RDMA_H
#include "join/rendezvous.h"

void mpy_rdma_prepare(const mpy_job_t *job); /* while there is only one thread */
void mpy_rdma_load(void);                    /* before the real MPI */
#endif
