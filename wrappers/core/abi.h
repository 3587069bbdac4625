/* abi.h - translates constants between MPICH's ABI and the MPI-5 standard ABI. Values without a counterpart pass
 * unchanged. Upper half, either TLS, no libc. The pairs come from table/abi.txt. */
#ifndef MANAPY_ABI_H
#define MANAPY_ABI_H

#include "runtime.h"

typedef enum { MPY_ABI_DATATYPE, MPY_ABI_COMBINER, MPY_ABI_ORDER, MPY_ABI_DISTRIBUTE } mpy_abi_group_t;

MPY_HIDDEN int mpy_abi_standard(mpy_abi_group_t group, int mpich);
MPY_HIDDEN int mpy_abi_mpich(mpy_abi_group_t group, int standard);

#endif
