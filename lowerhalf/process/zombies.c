/* zombies.c - children that have ended, and for which the program has not waited: a restart makes new ones, which end
 * in the same way, so that wait(2) finds them. Children that are ignored come back as ones that have been killed.
 *
 * Lower half; libc allowed. The program is halted, or does not run yet.
 *
 * Invariants
 *  1. Two things cannot be recreated: the used processor time, and the flag that there was a core dump.
 *  2. The program gets no second SIGCHLD: it has got the first one, or the image has it among the pending signals,
 *     which come later. All signals are blocked in mpy_zombies_restore.
 */
#define _GNU_SOURCE
#include "children.h"
#include "base/reason.h"

#include <errno.h>
#include <manapy/proc_stat.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct zombie {
    int32_t shown, real;
    int code, status; /* as in siginfo_t */
} zombie_t;

static zombie_t *zombies;
static uint32_t nzombies;

typedef struct saving {
    mpy_blob_t *blob;
    mpy_tid_map_t *shown;
    uint32_t count;
} saving_t;

static int save(int pid, void *context) {
    saving_t *s = context;
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid != pid)
        return 0; /* it lives, or is not our child */
    mpy_blob_put_u32(s->blob, (uint32_t)s->shown(pid));
    mpy_blob_put_u32(s->blob, (uint32_t)info.si_code);
    mpy_blob_put_u32(s->blob, (uint32_t)info.si_status);
    s->count++;
    return 0;
}

/* --ignore-child */
static int save_as_killed(int pid, void *context) {
    saving_t *s = context;
    mpy_proc_stat_t stat;
    if (mpy_proc_stat(pid, &stat) || stat.parent != getpid())
        return 0;
    mpy_blob_put_u32(s->blob, (uint32_t)s->shown(pid));
    mpy_blob_put_u32(s->blob, CLD_KILLED);
    mpy_blob_put_u32(s->blob, SIGKILL);
    s->count++;
    return 0;
}

void mpy_zombies_save(mpy_blob_t *b, mpy_tid_map_t *shown) {
    saving_t s = {b, shown, 0};
    size_t at = b->bytes;
    mpy_blob_put_u32(b, 0);
    mpy_children_each(getpid(), save, &s);
    mpy_children_ignored(save_as_killed, &s);
    mpy_blob_set_u32(b, at, s.count);
}

static void end(const zombie_t *z) {
    const struct rlimit no_core = {0, 0};
    sigset_t one;
    if (z->code == CLD_EXITED)
        _exit(z->status);
    setrlimit(RLIMIT_CORE, &no_core);
    signal(z->status, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, z->status);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    kill(getpid(), z->status);
    _exit(128 + z->status);
}

static int make(zombie_t *z) {
    siginfo_t info;
    z->real = fork();
    if (z->real == 0)
        end(z);
    return z->real < 0 || waitid(P_PID, (id_t)z->real, &info, WEXITED | WNOWAIT) ? -1 : 0;
}

int mpy_zombies_restore(mpy_reader_t *r, char *err, size_t n) {
    const struct timespec now = {0};
    sigset_t child;
    nzombies = mpy_reader_count(r, 12);
    zombies = calloc(nzombies + 1ul, sizeof *zombies);
    for (uint32_t i = 0; zombies && i < nzombies; i++) {
        zombie_t *z = &zombies[i];
        z->shown = (int32_t)mpy_reader_u32(r);
        z->code = (int)mpy_reader_u32(r);
        z->status = (int)mpy_reader_u32(r);
    }
    if (r->failed || !zombies)
        return mpy_reason(err, n, "the image's record of ended children is damaged");
    for (uint32_t i = 0; i < nzombies; i++)
        if (make(&zombies[i]))
            return mpy_reason(err, n, "cannot recreate a child process: %s", strerror(errno));
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    while (sigtimedwait(&child, NULL, &now) > 0)
        continue;
    return 0;
}

void mpy_zombies_each(void (*visit)(int32_t shown, int32_t real)) {
    for (uint32_t i = 0; i < nzombies; i++)
        visit(zombies[i].shown, zombies[i].real);
}
