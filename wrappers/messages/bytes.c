/* bytes.c - a number of bytes as count and datatype.
 *
 * A message can be longer than INT_MAX bytes, because the program's datatype is larger than a byte. As MPI_BYTE it
 * needs a count of type MPI_Count (MPI-4.0, section 2.5.6), which Open MPI and MPICH before 4.0 do not take. So a long
 * message is one element of a datatype that consists of pieces.
 */
#include "bytes.h"

enum { PIECE_BITS = 30 };

int mpy_bytes_describe(size_t bytes, mpy_bytes_t *b) {
    *b = (mpy_bytes_t){(int)bytes, MPI_BYTE};
    if (MPY_SMALL((MPI_Count)bytes)) return MPI_SUCCESS;
    MPI_Datatype piece;
    int rc = MPY_REAL(Type_contiguous)(1 << PIECE_BITS, MPI_BYTE, &piece);
    if (rc != MPI_SUCCESS) return rc;
    size_t pieces = bytes >> PIECE_BITS, rest = bytes & ((1ul << PIECE_BITS) - 1);
    int lengths[] = {(int)pieces, (int)rest};
    MPI_Aint at[] = {0, (MPI_Aint)(bytes - rest)};
    MPI_Datatype types[] = {piece, MPI_BYTE};
    b->count = 1;
    rc = MPY_REAL(Type_create_struct)(2, lengths, at, types, &b->datatype);
    MPY_REAL(Type_free)(&piece);
    if (rc == MPI_SUCCESS && (rc = MPY_REAL(Type_commit)(&b->datatype)) != MPI_SUCCESS) mpy_bytes_free(b);
    return rc;
}

void mpy_bytes_free(mpy_bytes_t *b) {
    if (b->datatype != MPI_BYTE) MPY_REAL(Type_free)(&b->datatype);
}

int mpy_bytes_isend(const void *data, size_t bytes, int dest, int tag, int real_comm, int *real) {
    mpy_bytes_t b;
    int rc = mpy_bytes_describe(bytes, &b);
    if (rc != MPI_SUCCESS) return rc;
    rc = MPY_REAL(Isend)(data, b.count, b.datatype, dest, tag, real_comm, real);
    mpy_bytes_free(&b);
    return rc;
}
