/* warnings.h - for processes that serve ranks: the signals that schedulers send to all processes of a job. libc. */
#ifndef MANAPY_WARNINGS_H
#define MANAPY_WARNINGS_H

#include <signal.h>
#include <stddef.h>

/* In a forked child that stays: default actions and no mask, but ignore SIGTERM, the signal of `sbatch --signal` and
 * their like. Such a process is needed most after a warning. */
static inline void mpy_ignore_warnings(void) {
    static const int warnings[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    sigset_t none;
    for (int s = 1; s < NSIG; s++) signal(s, SIG_DFL);
    for (size_t i = 0; i < sizeof warnings / sizeof *warnings; i++) signal(warnings[i], SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

#endif
