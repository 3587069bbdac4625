/* thread.c - a detached thread of the lower half, with all signals blocked. Half: lower; libc may be called. */
#include "base/reason.h"
#include "private.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>

bool mpy_tree_thread(void *(*body)(void *), char *error, size_t n) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    int rc = pthread_create(&thread, &attributes, body, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0 || mpy_refuse(error, n, "cannot create a thread: %s", strerror(rc));
}
