/* abi.c - see abi.h. Linear search: used when objects are made and rebuilt, not in communication. */
#include "abi.h"

static const struct { uint8_t group; int mpich, standard; } pairs[] = {
#define MPY_ABI(GROUP, NAME, STANDARD) {MPY_ABI_##GROUP, NAME, STANDARD},
#include "abi_table.h"
};

int mpy_abi_standard(mpy_abi_group_t group, int mpich) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].group == group && pairs[i].mpich == mpich) return pairs[i].standard;
    return mpich;
}

int mpy_abi_mpich(mpy_abi_group_t group, int standard) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].group == group && pairs[i].standard == standard) return pairs[i].mpich;
    return standard;
}
