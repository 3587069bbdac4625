/* state_locks.c - pthread objects that are held or waited for, and state of a thread. */
#include "../checkpointed.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static pthread_t thread(void *(*body)(void *), void *argument) {
    pthread_t t;
    if (pthread_create(&t, NULL, body, argument)) abort();
    return t;
}

static pthread_mutex_t typed(int type, int protocol, int robust) {
    pthread_mutexattr_t a;
    pthread_mutex_t m;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, type);
    pthread_mutexattr_setprotocol(&a, protocol);
    pthread_mutexattr_setrobust(&a, robust);
    pthread_mutex_init(&m, &a);
    return m;
}

/* ---- mutexes held by the main thread, wanted by others ---- */

static pthread_mutex_t recursive, checking, inheriting, robust, plain = PTHREAD_MUTEX_INITIALIZER;
static pthread_t waiter[2];
static volatile int entered;

static void *enter(void *m) {
    pthread_mutex_lock(m);
    __atomic_add_fetch(&entered, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(m);
    return NULL;
}

static void held_set_up(void) {
    recursive = typed(PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_STALLED);
    checking = typed(PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_STALLED);
    inheriting = typed(PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_STALLED);
    robust = typed(PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < 3; i++) pthread_mutex_lock(&recursive);
    pthread_mutex_lock(&checking);
    pthread_mutex_lock(&inheriting);
    pthread_mutex_lock(&robust);
    pthread_mutex_lock(&plain);
    waiter[0] = thread(enter, &plain);
    waiter[1] = thread(enter, &recursive);
}

static void held_check(void) {
    CHECK(entered == 0);
    CHECK(pthread_mutex_lock(&checking) == EDEADLK);
    CHECK(pthread_mutex_lock(&recursive) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_mutex_unlock(&recursive) == 0);
    CHECK(pthread_mutex_unlock(&recursive) == EPERM);
    CHECK(pthread_mutex_unlock(&checking) == 0);
    CHECK(pthread_mutex_unlock(&inheriting) == 0);
    CHECK(pthread_mutex_unlock(&robust) == 0);
    CHECK(pthread_mutex_unlock(&plain) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(waiter[i], NULL) == 0);
    CHECK(entered == 2);
}

/* ---- read-write lock, barrier, semaphore, spin lock ---- */

static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;
static pthread_spinlock_t spin;
static volatile int passed[4];
static pthread_t passer[4];

static void *writer(void *a) { pthread_rwlock_wrlock(&rw); passed[0] = 1; pthread_rwlock_unlock(&rw); return a; }
static void *at_barrier(void *a) { pthread_barrier_wait(&barrier); passed[1] = 1; return a; }
static void *at_semaphore(void *a) { sem_wait(&semaphore); passed[2] = 1; return a; }
static void *spinner(void *a) { pthread_spin_lock(&spin); passed[3] = 1; pthread_spin_unlock(&spin); return a; }

static void others_set_up(void) {
    pthread_barrier_init(&barrier, NULL, 2);
    sem_init(&semaphore, 0, 0);
    pthread_spin_init(&spin, 0);
    pthread_rwlock_rdlock(&rw);
    pthread_rwlock_rdlock(&rw);
    pthread_spin_lock(&spin);
    void *(*body[4])(void *) = {writer, at_barrier, at_semaphore, spinner};
    for (int i = 0; i < 4; i++) passer[i] = thread(body[i], NULL);
}

static void others_check(void) {
    for (int i = 0; i < 4; i++) CHECK(!passed[i]);
    pthread_rwlock_unlock(&rw);
    pthread_rwlock_unlock(&rw);
    pthread_barrier_wait(&barrier);
    sem_post(&semaphore);
    pthread_spin_unlock(&spin);
    for (int i = 0; i < 4; i++) { pthread_join(passer[i], NULL); CHECK(passed[i]); }
}

/* ---- condition variables ---- */

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER, never = PTHREAD_COND_INITIALIZER;
static int value;
static volatile int timed_result = -1;
static double timed_took;

static void *consumer(void *a) {
    pthread_mutex_lock(&guard);
    while (!value) pthread_cond_wait(&changed, &guard);
    pthread_mutex_unlock(&guard);
    return a;
}

static void *timed(void *a) {
    struct timespec until;
    double begin = now();
    pthread_mutex_lock(&guard);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    int rc;
    while ((rc = pthread_cond_timedwait(&never, &guard, &until)) == 0) {}
    pthread_mutex_unlock(&guard);
    timed_took = now() - begin;
    timed_result = rc;
    return a;
}

static pthread_t on_condition[3];
static void conditions_set_up(void) {
    for (int i = 0; i < 2; i++) on_condition[i] = thread(consumer, NULL);
    on_condition[2] = thread(timed, NULL);
}

static void conditions_check(void) {
    pthread_mutex_lock(&guard);
    value = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&guard);
    for (int i = 0; i < 3; i++) pthread_join(on_condition[i], NULL);
    CHECK(timed_result == ETIMEDOUT);
    CHECK(timed_took >= 1.99);
}

/* ---- state of a thread: variables, keys, name, id, cancellation, result ---- */

static __thread int local = 7;
static __thread char buffer[5000];
static pthread_key_t key;
static volatile int destroyed, ready_threads, finish;
static volatile pid_t kernel_id[4];

static void destroy(void *p) { __atomic_add_fetch(&destroyed, p == (void *)&key, __ATOMIC_SEQ_CST); }

static void *with_locals(void *a) {
    long n = (long)a;
    local = (int)n * 11;
    memset(buffer, (int)n, sizeof buffer);
    errno = 100 + (int)n;
    pthread_setspecific(key, &key);
    char name[16];
    snprintf(name, sizeof name, "thread-%ld", n);
    pthread_setname_np(pthread_self(), name);
    kernel_id[n] = gettid();
    __atomic_add_fetch(&ready_threads, 1, __ATOMIC_SEQ_CST);
    while (!finish) for (volatile int i = 0; i < 1000; i++) {} /* no call that sets errno */
    CHECK(errno == 100 + (int)n);
    CHECK(local == n * 11);
    for (unsigned i = 0; i < sizeof buffer; i++) if (buffer[i] != n) { CHECK(!"buffer"); break; }
    CHECK(pthread_getspecific(key) == &key);
    char shown[16] = "";
    pthread_getname_np(pthread_self(), shown, sizeof shown);
    CHECK(strcmp(shown, name) == 0);
    CHECK(gettid() == kernel_id[n]);
    return (void *)(n * n);
}

static pthread_t locals[4];
static void locals_set_up(void) {
    pthread_key_create(&key, destroy);
    local = 5;
    for (long i = 0; i < 4; i++) locals[i] = thread(with_locals, (void *)i);
    while (ready_threads < 4) pause_ms(1);
}

static void locals_check(void) {
    CHECK(local == 5);
    finish = 1;
    for (long i = 0; i < 4; i++) {
        void *result = NULL;
        CHECK(pthread_join(locals[i], &result) == 0);
        CHECK(result == (void *)(i * i));
    }
    CHECK(destroyed == 4);
}

static volatile int cleaned;
static void clean(void *a) { (void)a; cleaned++; }
static void *cancelled_in_wait(void *a) {
    pthread_cleanup_push(clean, NULL);
    for (;;) sleep(100);
    pthread_cleanup_pop(0);
    return a;
}
static volatile int may_be_cancelled;
static void *cancelled_late(void *a) {
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    while (!may_be_cancelled) pause_ms(2);
    pthread_cleanup_push(clean, NULL);
    pthread_setcancelstate(old, &old);
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return a;
}
static void *cancelled_anywhere(void *a) {
    int old;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    for (;;) __asm__ volatile("");
    return a;
}

static pthread_t victim[3];
static void cancellation_set_up(void) {
    victim[0] = thread(cancelled_in_wait, NULL);
    victim[1] = thread(cancelled_late, NULL);
    victim[2] = thread(cancelled_anywhere, NULL);
    pause_ms(20);
    pthread_cancel(victim[1]); /* pending at the checkpoint */
}

static void cancellation_check(void) {
    CHECK(pthread_cancel(victim[0]) == 0);
    CHECK(pthread_cancel(victim[2]) == 0);
    may_be_cancelled = 1;
    for (int i = 0; i < 3; i++) {
        void *result = NULL;
        CHECK(pthread_join(victim[i], &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
    }
    CHECK(cleaned == 2);
}

/* ---- ended but not joined; detached; created afterwards; once ---- */

static void *quick(void *a) { return a; }
static pthread_t ended;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int onces;
static void count_once(void) { onces++; }

static void lives_set_up(void) {
    ended = thread(quick, (void *)3l);
    pthread_detach(thread(quick, NULL));
    pthread_once(&once, count_once);
    pause_ms(20);
}

static void lives_check(void) {
    void *result = NULL;
    CHECK(pthread_join(ended, &result) == 0 && result == (void *)3l);
    pthread_once(&once, count_once);
    CHECK(onces == 1);
    for (int round = 0; round < 20; round++) {
        pthread_t t[10];
        for (long i = 0; i < 10; i++) t[i] = thread(quick, (void *)i);
        for (long i = 0; i < 10; i++) CHECK(pthread_join(t[i], &result) == 0 && result == (void *)i);
    }
}

/* ---- children forked while other threads map and unmap memory ---- */

static pthread_t mapping[3];
static volatile int mapping_stop;
static void *maps(void *a) {
    void *at[64];
    while (!mapping_stop) {
        for (int i = 0; i < 64; i++) at[i] = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < 64; i += 2) munmap(at[i], 4096);
        for (int i = 1; i < 64; i += 2) munmap(at[i], 4096);
    }
    return a;
}

static void forks_set_up(void) {
    for (int i = 0; i < 3; i++) mapping[i] = thread(maps, NULL);
}

static void forks_check(void) {
    int hung = 0;
    for (int i = 0; i < 300 && !hung; i++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            char *own = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            own[0] = 1;
            void *result = NULL;
            pthread_join(thread(quick, (void *)5l), &result);
            _exit(result == (void *)5l ? 7 : 1);
        }
        double until = now() + 20;
        while (waitpid(child, &status, WNOHANG) == 0 && now() < until) usleep(100);
        hung = status == -1;
        if (hung) kill(child, SIGKILL), waitpid(child, NULL, 0);
        else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    CHECK(!hung);
    mapping_stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(mapping[i], NULL);
}

MAIN(STATE(held), STATE(others), STATE(conditions), STATE(locals), STATE(cancellation), STATE(lives), STATE(forks))
