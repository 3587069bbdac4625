/* hold.h - STEPS_HOLD in the environment, "K FILE": no rank continues after step K before FILE exists. For C programs;
 * steps/steps.py has it for Python. */
#ifndef HOLD_H
#define HOLD_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void hold(int step) {
    char file[4096];
    int held;
    const char *text = getenv("STEPS_HOLD");
    if (!text || sscanf(text, "%d %4095s", &held, file) != 2 || held != step) return;
    while (access(file, F_OK)) usleep(10000);
}

#endif
