/* requests.c - which operation a request handle (or a message of Mprobe) stands for. See preload.h.
 *
 * Invariants
 *  1. Open addressing, linear probing. Removal closes the gap (Knuth 6.4, algorithm R), so that searches stay short
 *     however many entries are added and removed.
 *  2. One handle may occur several times: libraries give one constant handle to all operations that were complete at
 *     once. Entries of one handle are in the order in which they were added, because removal keeps the order inside a
 *     run.
 *  3. The lock is taken only if threads may call MPI at the same time.
 */
#include "preload.h"
#include <manapy/lock.h>
#include <stdlib.h>

typedef struct slot { uint64_t handle; mpy_operation_t operation; } slot_t; /* handle 0: free */
typedef struct table { uint64_t mask, used; slot_t *slots; } table_t;
static table_t requests, messages;
static uint32_t lock;

static void acquire(void) {
    if (mpy_multiple) mpy_lock_acquire(&lock);
}
static void release(void) {
    if (mpy_multiple) mpy_lock_release(&lock);
}

static uint64_t home(const table_t *t, uint64_t handle) { return (handle * 0x9e3779b97f4a7c15ul >> 24) & t->mask; }

static void insert(table_t *t, uint64_t handle, const mpy_operation_t *operation) {
    uint64_t i = home(t, handle);
    while (t->slots[i].handle != 0) i = (i + 1) & t->mask;
    t->slots[i].operation = *operation;
    t->slots[i].handle = handle;
    t->used++;
}

static bool grow(table_t *t) {
    table_t larger = {.mask = t->slots == NULL ? 255 : 2 * t->mask + 1};
    larger.slots = calloc(larger.mask + 1, sizeof *larger.slots);
    if (larger.slots == NULL) return false;
    /* start at a free place, so that no run is split (invariant 2) */
    uint64_t start = 0;
    while (t->slots != NULL && t->slots[start].handle != 0) start++;
    for (uint64_t n = 0; t->slots != NULL && n <= t->mask; n++) {
        const slot_t *slot = &t->slots[(start + n) & t->mask];
        if (slot->handle != 0) insert(&larger, slot->handle, &slot->operation);
    }
    free(t->slots);
    *t = larger;
    return true;
}

static void put(table_t *t, uint64_t handle, const mpy_operation_t *operation) {
    if ((t->slots == NULL || 2 * t->used > t->mask) && !grow(t)) return;
    insert(t, handle, operation);
}

/* The slot of the handle (and of the serial, if it isn't 0), or NULL. */
static slot_t *find(const table_t *t, uint64_t handle, uint64_t serial) {
    if (t->slots == NULL || handle == 0) return NULL;
    for (uint64_t i = home(t, handle); t->slots[i].handle != 0; i = (i + 1) & t->mask)
        if (t->slots[i].handle == handle && (serial == 0 || t->slots[i].operation.serial == serial))
            return &t->slots[i];
    return NULL;
}

static void drop(table_t *t, slot_t *slot) {
    uint64_t hole = (uint64_t)(slot - t->slots);
    for (uint64_t i = (hole + 1) & t->mask; t->slots[i].handle != 0; i = (i + 1) & t->mask) {
        uint64_t distance = (i - home(t, t->slots[i].handle)) & t->mask;
        if (distance < ((i - hole) & t->mask)) continue; /* otherwise it would be before its home */
        t->slots[hole] = t->slots[i];
        hole = i;
    }
    t->slots[hole].handle = 0;
    t->used--;
}

void mpy_request_put(uint64_t handle, const mpy_operation_t *operation) {
    if (handle == 0 || handle == mpy_abi.request_null) return;
    acquire();
    put(&requests, handle, operation);
    release();
}

bool mpy_request_get(uint64_t handle, mpy_operation_t *out) {
    acquire();
    const slot_t *slot = find(&requests, handle, 0);
    if (slot != NULL) *out = slot->operation;
    release();
    return slot != NULL;
}

uint32_t mpy_request_started(uint64_t handle, uint64_t serial) {
    acquire();
    slot_t *slot = find(&requests, handle, serial);
    uint32_t number = slot != NULL ? ++slot->operation.starts : 0;
    release();
    return number;
}

void mpy_request_drop(uint64_t handle, uint64_t serial) {
    acquire();
    slot_t *slot = find(&requests, handle, serial);
    if (slot != NULL) drop(&requests, slot);
    release();
}

void mpy_message_put(uint64_t handle, const mpy_operation_t *operation) {
    acquire();
    put(&messages, handle, operation);
    release();
}

bool mpy_message_take(uint64_t handle, mpy_operation_t *out) {
    acquire();
    slot_t *slot = find(&messages, handle, 0);
    if (slot != NULL) {
        *out = slot->operation;
        drop(&messages, slot);
    }
    release();
    return slot != NULL;
}
