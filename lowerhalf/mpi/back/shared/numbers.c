/* numbers.c - constants of MPICH as the library's and back. See translate.h; the pairs come from table/abi.txt. Linear
 * search: used when objects are made and asked, not in communication. */
#include "back_interface.h"

static struct { mpy_group_t group; int ours, theirs; } pairs[] = {
#define MPY_PAIR(GROUP, OURS, THEIRS) {MPY_GROUP_##GROUP, OURS, THEIRS},
#include "back_pairs.h"
};

void mpy_number_set(mpy_group_t group, int ours, int theirs) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].group == group && pairs[i].ours == ours) pairs[i].theirs = theirs;
}

enum { UNDEFINED_BIT = 1 << 30 }; /* no assertion or mode of any library */

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

/* A wrong bit stays wrong. */
int mpy_bits_in(mpy_group_t group, int bits) {
    int result = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].group == group && bits & pairs[i].ours) {
            result |= pairs[i].theirs;
            bits &= ~pairs[i].ours;
        }
    return result | (bits != 0 ? UNDEFINED_BIT : 0);
}

int mpy_bits_out(mpy_group_t group, int bits) {
    int result = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].group == group && bits & pairs[i].theirs) result |= pairs[i].ours;
    return result;
}
