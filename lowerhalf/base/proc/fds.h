/* fds.h - the open descriptors of a process: /proc/PID/fd (proc(5)). Header only; libc.
 *
 * The files of this process are those of the calling thread: /proc/self/fd is empty once the thread that started the
 * process has ended.
 */
#ifndef MANAPY_PROC_FDS_H
#define MANAPY_PROC_FDS_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MPY_FD_PATH 48

typedef struct mpy_fd_list {
    DIR *dir; /* NULL: the descriptors can't be listed (errno) */
    int own;  /* number of the descriptor that is used for the listing; -1: it is another process's list */
} mpy_fd_list_t;

/* The path of a descriptor of this process (pid 0) or of another one. */
static inline const char *mpy_fd_path(char path[MPY_FD_PATH], int pid, int fd) {
    if (pid) snprintf(path, MPY_FD_PATH, "/proc/%d/fd/%d", pid, fd);
    else snprintf(path, MPY_FD_PATH, "/proc/thread-self/fd/%d", fd);
    return path;
}

static inline mpy_fd_list_t mpy_fd_list_open(int pid) {
    char path[MPY_FD_PATH] = "/proc/thread-self/fd";
    if (pid) snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    return (mpy_fd_list_t){dir, dir && (pid == 0 || pid == getpid()) ? dirfd(dir) : -1};
}

/* The next descriptor; -1: there are no more. */
static inline int mpy_fd_list_next(const mpy_fd_list_t *list) {
    for (struct dirent *entry; list->dir && (entry = readdir(list->dir));) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && fd != list->own) return fd;
    }
    return -1;
}

static inline void mpy_fd_list_close(mpy_fd_list_t *list) {
    if (list->dir) closedir(list->dir);
    list->dir = NULL;
}

#endif
