/* spin.h - a spinlock, and hints for the compiler. For every layer. */
#ifndef MANAPY_RDMA_SPIN_H
#define MANAPY_RDMA_SPIN_H

#include <sched.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

typedef struct shift_spin {
    int held;
} shift_spin_t;

static inline void shift_spin_lock(shift_spin_t *s) {
    for (int n = 0; __atomic_exchange_n(&s->held, 1, __ATOMIC_ACQUIRE); n++)
        n < 100 ? __builtin_ia32_pause() : (void)sched_yield();
}

static inline void shift_spin_unlock(shift_spin_t *s) { __atomic_store_n(&s->held, 0, __ATOMIC_RELEASE); }

#endif
