/* state_children.c - child processes one after the other: the checkpoint waits for each, and no status is lost. */
#include "../checkpointed.h"

#include <pthread.h>
#include <sys/wait.h>

static volatile int done;
static volatile long ended[3];
static pthread_t parent[3];

static void *by_system(void *a) {
    while (!done) {
        CHECK(WEXITSTATUS(system("sleep 0.3; exit 3")) == 3);
        ended[0]++;
    }
    return a;
}

static pid_t started(int code) {
    pid_t pid = fork();
    if (pid == 0) {
        pause_ms(250);
        _exit(code);
    }
    return pid;
}

static void *by_waitpid(void *a) {
    while (!done) {
        int status = 0;
        pid_t pid = started(4);
        CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 4);
        ended[1]++;
    }
    return a;
}

static void *by_waitid(void *a) {
    while (!done) {
        siginfo_t info = {0};
        pid_t pid = started(5);
        CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED) == 0 && info.si_pid == pid && info.si_code == CLD_EXITED &&
              info.si_status == 5);
        ended[2]++;
    }
    return a;
}

static void successive_set_up(void) {
    void *(*body[3])(void *) = {by_system, by_waitpid, by_waitid};
    for (int i = 0; i < 3; i++) pthread_create(&parent[i], NULL, body[i], NULL);
    WAIT_UNTIL(ended[0] && ended[1] && ended[2]);
}

static void successive_check(void) {
    long before[3] = {ended[0], ended[1], ended[2]};
    WAIT_UNTIL(ended[0] > before[0] && ended[1] > before[1] && ended[2] > before[2]);
    done = 1;
    for (int i = 0; i < 3; i++) pthread_join(parent[i], NULL);
}

MAIN(STATE(successive))
