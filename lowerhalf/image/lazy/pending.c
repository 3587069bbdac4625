/* pending.c - which pages of the program are still only in the images, and their current addresses.
 *
 * Half: lower, on the loader's thread; libc allowed. It knows neither userfaultfd nor files.
 *
 * Invariants
 *  1. Items are ascending and do not overlap where pages are missing. A page is missing in at most one item.
 *  2. The kernel reports what the program removes or moves before the program can use the addresses again. So the list
 *     always describes the content that the program expects at an address.
 *  3. An item keeps its index for ever: only `order` is sorted. So each load can have a list of its items, and the work
 *     for a load does not depend on the number of other items.
 */
#include "pending.h"

#include <stdlib.h>

#define PAGE ((uint64_t)MPY_IMAGE_PAGE)

static uint64_t end_of(const mpy_pending_item_t *item) { return item->address + item->pages * PAGE; }
static int is_missing(const mpy_pending_item_t *item, uint32_t i) { return item->missing[i / 64] >> i % 64 & 1; }

static void *grow(void *items, size_t count, size_t *room, size_t size) {
    if (count < *room) return items;
    size_t more = 2 * *room + 64;
    void *grown = realloc(items, more * size);
    if (grown) *room = more;
    return grown;
}

/* Adds an item behind all others, and to the list of its load. */
static mpy_pending_item_t *push(mpy_pending_t *p, uint32_t load) {
    void *order = grow(p->order, p->nitems, &p->room_order, sizeof *p->order);
    if (order) p->order = order;
    void *items = grow(p->items, p->nitems, &p->room_items, sizeof *p->items);
    if (items) p->items = items;
    if (!order || !items) return NULL;
    const uint32_t index = (uint32_t)p->nitems++;
    p->items[index] = (mpy_pending_item_t){.load = load, .next = p->loads[load].first};
    p->order[index] = p->loads[load].first = index;
    return &p->items[index];
}

static mpy_pending_item_t *nth(const mpy_pending_t *p, size_t i) { return &p->items[p->order[i]]; }

int mpy_pending_add(mpy_pending_t *p, const mpy_image_part_t *part) {
    void *loads = grow(p->loads, p->nloads, &p->room_loads, sizeof *p->loads);
    if (!loads) return -1;
    p->loads = loads;
    const uint32_t load = (uint32_t)p->nloads++;
    p->loads[load] = (mpy_pending_load_t){part->image, part->run, MPY_PENDING_NONE};
    for (size_t i = 0; i < part->nwanted; i++) {
        mpy_pending_item_t *item = push(p, load);
        if (!item) return -1;
        item->address = item->origin = part->wanted[i].address;
        item->pages = (uint32_t)(part->wanted[i].bytes / PAGE);
        for (uint32_t k = 0; k < item->pages; k++) item->missing[k / 64] |= 1ul << k % 64;
    }
    return 0;
}

static int by_address(const void *a, const void *b, void *items) {
    const mpy_pending_item_t *all = items;
    uint64_t x = all[*(const uint32_t *)a].address, y = all[*(const uint32_t *)b].address;
    return x < y ? -1 : x > y;
}

void mpy_pending_sort(mpy_pending_t *p) {
    if (p->nitems) qsort_r(p->order, p->nitems, sizeof *p->order, by_address, p->items);
}

void mpy_pending_free(mpy_pending_t *p) {
    free(p->items);
    free(p->order);
    free(p->loads);
    *p = (mpy_pending_t){0};
}

/* The index of the first item that ends behind an address. An item whose pages have all moved away may overlap others;
 * it is as long as at first, and starts no later than they. */
static size_t first_behind(const mpy_pending_t *p, uint64_t address) {
    size_t lo = 0, hi = p->nitems;
    const uint64_t longest = MPY_PENDING_PAGES * PAGE;
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        if (nth(p, middle)->address + longest <= address) lo = middle + 1;
        else hi = middle;
    }
    return lo;
}

mpy_pending_item_t *mpy_pending_find(const mpy_pending_t *p, uint64_t address) {
    for (size_t i = first_behind(p, address); i < p->nitems && nth(p, i)->address <= address; i++) {
        mpy_pending_item_t *item = nth(p, i);
        if (address < end_of(item) && is_missing(item, (uint32_t)((address - item->address) / PAGE))) return item;
    }
    return NULL;
}

int mpy_pending_span(const mpy_pending_t *p, uint64_t lo, uint64_t hi, uint64_t *from, uint64_t *until) {
    int found = 0;
    for (size_t i = first_behind(p, lo); i < p->nitems && nth(p, i)->address < hi; i++) {
        if (nth(p, i)->address < lo) continue;
        if (!found) *from = nth(p, i)->address;
        *until = end_of(nth(p, i));
        found = 1;
    }
    return found;
}

mpy_pending_item_t *mpy_pending_of(mpy_pending_t *p, uint32_t load) {
    uint32_t first, *head = &p->loads[load].first;
    while (*head != MPY_PENDING_NONE && !mpy_pending_missing(&p->items[*head], &first)) *head = p->items[*head].next;
    return *head == MPY_PENDING_NONE ? NULL : &p->items[*head];
}

uint32_t mpy_pending_missing(const mpy_pending_item_t *item, uint32_t *first) {
    uint32_t i = 0, n = 0;
    while (i < item->pages && !is_missing(item, i)) i++;
    while (i + n < item->pages && is_missing(item, i + n)) n++;
    *first = i;
    return n;
}

void mpy_pending_clear(mpy_pending_item_t *item, uint32_t first, uint32_t pages) {
    for (uint32_t i = first; i < first + pages && i < item->pages; i++) item->missing[i / 64] &= ~(1ul << i % 64);
}

/* The pages of an item in [lo, hi): returns their number, and the index of the first one. */
static uint32_t overlap(const mpy_pending_item_t *item, uint64_t lo, uint64_t hi, uint32_t *first) {
    uint64_t from = lo > item->address ? lo : item->address, until = hi < end_of(item) ? hi : end_of(item);
    if (from >= until) return 0;
    *first = (uint32_t)((from - item->address) / PAGE);
    return (uint32_t)((until - from) / PAGE);
}

void mpy_pending_drop(mpy_pending_t *p, uint64_t lo, uint64_t hi) {
    for (size_t i = first_behind(p, lo); i < p->nitems && nth(p, i)->address < hi; i++) {
        uint32_t first, pages = overlap(nth(p, i), lo, hi, &first);
        if (pages) mpy_pending_clear(nth(p, i), first, pages);
    }
}

/* Puts the items from the one with index `count` on, which are ascending, in their places among the others. */
static void merge(mpy_pending_t *p, size_t count) {
    size_t older = count, newer = p->nitems;
    for (size_t to = newer; newer > count;) {
        const int older_is_last = older && nth(p, older - 1)->address > p->items[newer - 1].address;
        p->order[--to] = older_is_last ? p->order[--older] : (uint32_t)--newer;
    }
}

int mpy_pending_move(mpy_pending_t *p, uint64_t from, uint64_t to, uint64_t bytes) {
    const size_t count = p->nitems;
    mpy_pending_drop(p, to, to + bytes);
    for (size_t i = first_behind(p, from); i < count && nth(p, i)->address < from + bytes; i++) {
        uint32_t first, pages = overlap(nth(p, i), from, from + bytes, &first), some = 0;
        for (uint32_t k = 0; k < pages; k++) some |= is_missing(nth(p, i), first + k);
        mpy_pending_item_t *moved = some ? push(p, nth(p, i)->load) : NULL;
        if (!some) continue;
        if (!moved) return -1;
        mpy_pending_item_t *item = nth(p, i);
        moved->address = item->address + first * PAGE + (to - from);
        moved->origin = item->origin + first * PAGE;
        moved->pages = pages;
        for (uint32_t k = 0; k < pages; k++)
            if (is_missing(item, first + k)) moved->missing[k / 64] |= 1ul << k % 64;
        mpy_pending_clear(item, first, pages);
    }
    merge(p, count);
    return 0;
}
