/* bytes.h - a number of bytes as count and datatype (bytes.c). All in the lower half. */
#ifndef MANAPY_BYTES_H
#define MANAPY_BYTES_H

#include "p2p/request.h"

typedef struct mpy_bytes {
    int count, datatype; /* the datatype is a real handle */
} mpy_bytes_t;

/* A transfer with this count and datatype moves `bytes` bytes. Returns an MPI error, or MPI_SUCCESS; then call
 * mpy_bytes_free. It may be called while the transfer is in progress. */
MPY_HIDDEN int mpy_bytes_describe(size_t bytes, mpy_bytes_t *b);
MPY_HIDDEN void mpy_bytes_free(mpy_bytes_t *b);
/* MPI_Isend of bytes on a real communicator. */
MPY_HIDDEN int mpy_bytes_isend(const void *data, size_t bytes, int dest, int tag, int real_comm, int *real);

#endif
