/* grow_driver.c - two ranks of a host open new files of shared memory at the same time, each with its own size. Prints
 * the number of files that are shorter than the larger size. */
#include "process/memory/files.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES = 1000, SMALL = 4096, LARGE = 1 << 20 };

static void open_all(int *together, uint64_t bytes) {
    char path[64], error[256];
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "/dev/shm/manapy-grow-%d", i);
        __atomic_fetch_add(together, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(together, __ATOMIC_SEQ_CST) < 2 * (i + 1)) sched_yield();
        int fd = mpy_memory_file_open_posix(path, bytes, error, sizeof error);
        if (fd < 0) puts(error), exit(1);
        close(fd);
    }
}

int main(void) {
    int *together = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), wrong = 0;
    mpy_memory_files_begin((uint64_t)getpid(), "host");
    pid_t child = fork();
    if (child == 0) {
        open_all(together, SMALL);
        _exit(0);
    }
    open_all(together, LARGE);
    waitpid(child, NULL, 0);
    for (int i = 0; i < FILES; i++) {
        char path[64];
        struct stat st;
        snprintf(path, sizeof path, "/dev/shm/manapy-grow-%d", i);
        wrong += stat(mpy_memory_file_now(path), &st) || st.st_size != LARGE;
    }
    printf("%d\n", wrong);
    return 0; /* which removes the files */
}
