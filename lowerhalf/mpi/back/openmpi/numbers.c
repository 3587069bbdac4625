/* numbers.c - constants of MPICH as Open MPI's and back. See back.h; the pairs come from table/abi.txt. Linear search:
 * used when objects are made and asked, not in communication. */
#include "back.h"

static const struct { mpy_group_t group; int ours, theirs; } pairs[] = {
#define MPY_PAIR(GROUP, OURS, THEIRS) {MPY_GROUP_##GROUP, OURS, THEIRS},
#include "openmpi_pairs.h"
};

int mpy_number_in(mpy_group_t group, int value) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].group == group && pairs[i].ours == value) return pairs[i].theirs;
    return value;
}

int mpy_number_out(mpy_group_t group, int value) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].group == group && pairs[i].theirs == value) return pairs[i].ours;
    return value;
}

int mpy_assert_in(int assert) {
    int bits = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].group == MPY_GROUP_ASSERT && assert & pairs[i].ours) {
            bits |= pairs[i].theirs;
            assert &= ~pairs[i].ours;
        }
    return bits | assert; /* a wrong bit stays wrong */
}
