/* shmem.h - which mapped files are only in memory or swap (tmpfs(5)): those of /dev/shm, shared anonymous memory,
 * memory of System V, and memfds. Others may be on a disk, or consist of huge pages. Header only; libc, but no locks
 * and no memory.
 */
#ifndef MANAPY_PROC_SHMEM_H
#define MANAPY_PROC_SHMEM_H

#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

typedef struct mpy_shmem {
    uint64_t posix, nameless; /* devices: of /dev/shm, and of files that never had a name; 0: not known */
} mpy_shmem_t;

static inline mpy_shmem_t mpy_shmem_look(void) {
    mpy_shmem_t found = {0, 0};
    struct statfs fs;
    struct stat st;
    if (!statfs("/dev/shm", &fs) && fs.f_type == TMPFS_MAGIC && !stat("/dev/shm", &st)) found.posix = st.st_dev;
    const int fd = memfd_create("manapy", MFD_CLOEXEC);
    if (fd >= 0 && !fstat(fd, &st)) found.nameless = st.st_dev;
    if (fd >= 0) close(fd);
    return found;
}

/* False: it is not, or nobody knows. `device`: as in /proc/PID/maps. */
static inline bool mpy_shmem_has(const mpy_shmem_t *shmem, uint64_t device) {
    return device && (device == shmem->posix || device == shmem->nameless);
}

#endif
