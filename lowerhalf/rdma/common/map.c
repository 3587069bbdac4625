/* map.c - see map.h. */
#include "common/map.h"

#include <errno.h>
#include <stdlib.h>

enum { FIRST_SLOTS = 256 };

static shift_slots_t *make(uint32_t n) {
    shift_slots_t *s = calloc(1, sizeof *s + n * sizeof s->at[0]);
    if (!s)
        return NULL;
    s->mask = n - 1;
    s->shift = 64 - (uint32_t)__builtin_ctz(n);
    return s;
}

static shift_slot_t *place(shift_slots_t *s, uint64_t key) {
    uint32_t i = shift_map_start(s, key);
    while (s->at[i].key && s->at[i].key != key)
        i = (i + 1) & s->mask;
    return &s->at[i];
}

/* Doubles the number of slots, or keeps it if most slots hold removed keys. The old slots are kept for the readers. */
static int grow(shift_map_t *m) {
    uint32_t live = 0;
    for (uint32_t i = 0; m->slots && i <= m->slots->mask; i++)
        live += m->slots->at[i].value != NULL;
    uint32_t n = FIRST_SLOTS;
    while (n < live * 4)
        n *= 2;
    shift_slots_t *s = make(n);
    if (!s)
        return -ENOMEM;
    for (uint32_t i = 0; m->slots && i <= m->slots->mask; i++)
        if (m->slots->at[i].value)
            *place(s, m->slots->at[i].key) = m->slots->at[i];
    if (m->guarded)
        free(m->slots);
    else
        s->older = m->slots;
    m->used = live;
    __atomic_store_n(&m->slots, s, __ATOMIC_RELEASE);
    return 0;
}

int shift_map_put(shift_map_t *m, uint64_t key, void *value) {
    int r = 0;
    pthread_mutex_lock(&m->lock);
    if (!m->slots || (m->used + 1) * 2 > m->slots->mask)
        r = grow(m);
    if (r == 0) {
        shift_slot_t *s = place(m->slots, key);
        m->used += s->key == 0;
        __atomic_store_n(&s->value, value, __ATOMIC_RELEASE);
        __atomic_store_n(&s->key, key, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&m->lock);
    return r;
}

void shift_map_remove(shift_map_t *m, uint64_t key) {
    pthread_mutex_lock(&m->lock);
    if (m->slots) {
        shift_slot_t *s = place(m->slots, key);
        if (s->key == key)
            __atomic_store_n(&s->value, NULL, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&m->lock);
}

void shift_map_free(shift_map_t *m) {
    for (shift_slots_t *s = m->slots, *older; s; s = older) {
        older = s->older;
        free(s);
    }
    m->slots = NULL;
    m->used = 0;
}
