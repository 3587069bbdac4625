/* proc_exe.h - the file that a process runs: /proc/PID/exe (proc(5)). Header only; libc of either half. */
#ifndef MANAPY_PROC_EXE_H
#define MANAPY_PROC_EXE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The path, of this process if pid is 0. False: it can't be read (errno), and the path is empty. */
static inline bool mpy_proc_exe(long pid, char exe[PATH_MAX]) {
    char path[64] = "/proc/self/exe";
    if (pid) snprintf(path, sizeof path, "/proc/%ld/exe", pid);
    ssize_t got = readlink(path, exe, PATH_MAX - 1);
    exe[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* Is the path's last part this name? The file may have been deleted, as an upgrade of manapy does while jobs run. Then
 * /proc adds a mark. */
static inline bool mpy_proc_exe_is(const char *last, const char *name) {
    size_t length = strlen(name);
    return strncmp(last, name, length) == 0 && (last[length] == '\0' || strcmp(last + length, " (deleted)") == 0);
}

/* Does the process run manapy-launch or manapy-restart? */
static inline bool mpy_proc_is_split(long pid) {
    char exe[PATH_MAX];
    const char *slash = mpy_proc_exe(pid, exe) ? strrchr(exe, '/') : NULL;
    return slash != NULL && (mpy_proc_exe_is(slash, "/manapy-launch") || mpy_proc_exe_is(slash, "/manapy-restart"));
}

#endif
