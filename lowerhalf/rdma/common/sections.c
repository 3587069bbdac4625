/* sections.c - see sections.h. */
#include "common/sections.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    AT_ONCE = 64,       /* slots in a mapping */
    DRAINED_US = 10000, /* no processor delays a store for this long */
};

__thread shift_thread_t *shift_me;
bool shift_fences;
uint32_t shift_deep;

static shift_thread_t *threads; /* all slots */
static pthread_key_t ends;

static int barrier(int command) { return (int)syscall(SYS_membarrier, command, 0, 0); }

/* A thread that was cancelled within a data verb has not left its sections. */
static void thread_ends(void *slot) {
    shift_thread_t *me = slot;
    while (me->depth)
        shift_leave(me);
    shift_me = NULL; /* another destructor may still call a data verb */
    __atomic_store_n(&me->taken, false, __ATOMIC_RELEASE);
}

/* Runs in a child of fork, which has only one thread. */
static void only_me(void) {
    for (shift_thread_t *t = threads; t; t = t->next)
        if (t != shift_me) {
            for (int i = 0; i < SHIFT_NESTED; i++)
                t->in[i] = NULL;
            t->depth = 0;
            t->taken = false;
        }
    shift_deep = 0;
    if (!shift_fences)
        shift_fences = barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0;
}

__attribute__((constructor)) static void begin(void) {
    shift_fences = getenv("MANAPY_SHIFT_FENCES") || barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0;
    pthread_key_create(&ends, thread_ends);
    pthread_atfork(NULL, NULL, only_me);
}

static shift_thread_t *take_slot(void) {
    for (shift_thread_t *t = __atomic_load_n(&threads, __ATOMIC_ACQUIRE); t; t = t->next)
        if (!__atomic_load_n(&t->taken, __ATOMIC_RELAXED) && !__atomic_exchange_n(&t->taken, true, __ATOMIC_ACQUIRE))
            return t;
    return NULL;
}

/* No malloc, because this may run in a signal handler. */
shift_thread_t *shift_thread_new(void) {
    shift_thread_t *t;
    while (!(t = take_slot())) {
        shift_thread_t *more =
            mmap(NULL, AT_ONCE * sizeof *more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (more == MAP_FAILED) {
            fprintf(stderr, "manapy shift: no memory for a thread's slot\n");
            abort();
        }
        for (int i = 0; i + 1 < AT_ONCE; i++)
            more[i].next = &more[i + 1];
        more[AT_ONCE - 1].next = __atomic_load_n(&threads, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&threads, &more[AT_ONCE - 1].next, more, false, __ATOMIC_RELEASE,
                                            __ATOMIC_RELAXED));
    }
    shift_me = t;
    pthread_setspecific(ends, t);
    return t;
}

void shift_barrier(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shift_fences, __ATOMIC_RELAXED) || barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0)
        return;
    /* something has forbidden membarrier to the program since it started */
    __atomic_store_n(&shift_fences, true, __ATOMIC_SEQ_CST);
    usleep(DRAINED_US);
}

bool shift_inside(const void *object) {
    if (__atomic_load_n(&shift_deep, __ATOMIC_ACQUIRE))
        return true;
    for (shift_thread_t *t = __atomic_load_n(&threads, __ATOMIC_ACQUIRE); t; t = t->next)
        for (int i = 0; i < SHIFT_NESTED; i++)
            if (__atomic_load_n(&t->in[i], __ATOMIC_ACQUIRE) == object)
                return true;
    return false;
}
