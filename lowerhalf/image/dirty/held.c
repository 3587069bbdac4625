/* held.c - a list of address ranges: memory that an image holds, and that has not been written since.
 *
 * Half: lower; mpy_held_add and mpy_held_has also in a process that was forked from the worker (invariants of dirty.c).
 *
 * Invariants
 *  1. Ranges are ascending and do not touch each other.
 *  2. A list that lacks a range is still right: that memory counts as changed.
 */
#include "tables.h"
#include <stddef.h>

mpy_held_t *mpy_held_make(uint64_t ranges) {
    const uint64_t bytes = sizeof(mpy_held_t) + ranges * sizeof(mpy_range_t);
    mpy_held_t *held = mpy_tables_map(bytes);
    if (held) held->bytes = bytes, held->room = ranges;
    return held;
}

void mpy_held_add(mpy_held_t *held, uint64_t lo, uint64_t hi) {
    mpy_range_t *last = held->count ? &held->ranges[held->count - 1] : NULL;
    if (last && last->hi == lo) last->hi = hi;
    else if (held->count < held->room) held->ranges[held->count++] = (mpy_range_t){lo, hi};
}

void mpy_held_cut(mpy_held_t **held, const mpy_held_t *both) {
    mpy_held_t *old = *held, *new = mpy_held_make(old->count + both->count);
    if (!new) {
        old->count = 0;
        return;
    }
    for (uint64_t i = 0, j = 0; i < old->count && j < both->count;) {
        const mpy_range_t *a = &old->ranges[i], *b = &both->ranges[j];
        const uint64_t lo = a->lo > b->lo ? a->lo : b->lo, hi = a->hi < b->hi ? a->hi : b->hi;
        if (lo < hi) mpy_held_add(new, lo, hi);
        if (a->hi < b->hi) i++;
        else j++;
    }
    mpy_tables_unmap(old, old->bytes);
    *held = new;
}

int mpy_held_has(const mpy_held_t *held, uint64_t *cursor, uint64_t address, uint64_t hi, uint64_t *end) {
    const uint64_t count = held ? held->count : 0;
    uint64_t i = *cursor > 0 && *cursor <= count && held->ranges[*cursor - 1].hi <= address ? *cursor : 0;
    while (i < count && held->ranges[i].hi <= address) i++;
    *cursor = i;
    const int found = i < count && held->ranges[i].lo <= address;
    const uint64_t until = i == count ? hi : found ? held->ranges[i].hi : held->ranges[i].lo;
    *end = until < hi ? until : hi;
    return found;
}
