/* map.h - maps a 64-bit key (an object's address, a queue pair's number, a memory key) to our record of it.
 *
 * Data verbs look up here. So a look-up is a multiplication and, nearly always, one probe, without a lock. Changes are
 * made under the map's own lock. Invariants: key 0 is never used. A slot's key is written after its value. A slot that
 * is used keeps its key until the map is rebuilt: when it grows, or when most slots hold removed keys. The old slots
 * stay readable as long as the map exists (look-ups may be in progress in them), unless look-ups and changes never
 * happen at the same time (`guarded`). So a map whose keys change all the time must be guarded.
 */
#ifndef MANAPY_RDMA_MAP_H
#define MANAPY_RDMA_MAP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct shift_slot {
    uint64_t key;
    void *value; /* NULL: removed */
} shift_slot_t;

typedef struct shift_slots {
    struct shift_slots *older; /* the slots that these have replaced */
    uint32_t shift; /* 64 - log2(number of slots) */
    uint32_t mask;
    shift_slot_t at[];
} shift_slots_t;

typedef struct shift_map {
    shift_slots_t *slots;
    uint32_t used; /* slots with a key */
    pthread_mutex_t lock;
    bool guarded; /* the caller holds a lock during look-ups and changes */
} shift_map_t;

#define SHIFT_MAP_INIT { .lock = PTHREAD_MUTEX_INITIALIZER }

/* Returns 0 or -ENOMEM. An existing key gets the new value. */
int shift_map_put(shift_map_t *m, uint64_t key, void *value);
void shift_map_remove(shift_map_t *m, uint64_t key);
void shift_map_free(shift_map_t *m);

/* The slot at which the search for a key begins (Fibonacci hashing: Knuth, TAOCP 6.4). */
static inline uint32_t shift_map_start(const shift_slots_t *s, uint64_t key) {
    return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> s->shift);
}

static inline void *shift_map_get(const shift_map_t *m, uint64_t key) {
    const shift_slots_t *s = __atomic_load_n(&m->slots, __ATOMIC_ACQUIRE);
    if (!s)
        return NULL;
    for (uint32_t i = shift_map_start(s, key);; i = (i + 1) & s->mask) {
        uint64_t k = __atomic_load_n(&s->at[i].key, __ATOMIC_ACQUIRE);
        if (__builtin_expect(k == key, 1))
            return __atomic_load_n(&s->at[i].value, __ATOMIC_ACQUIRE);
        if (k == 0)
            return NULL;
    }
}

#endif
