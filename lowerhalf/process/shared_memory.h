/* shared_memory.h - memory without a file that several processes of a rank's tree share. See shared_memory.c. */
#ifndef MANAPY_STATE_SHARED_MEMORY_H
#define MANAPY_STATE_SHARED_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A shared mapping of this process: of `bytes` bytes of a file without a name, from `offset` on. */
typedef struct mpy_shared_map {
    dev_t device;
    ino_t inode;
    uint64_t offset, bytes;
} mpy_shared_map_t;

/* Where it lies in the memory that the processes of the tree have in common after a restart, in bytes: *place. Returns
 * 1, or 0 if no other process of the tree has this memory, or -1 with a line in `err`. All processes of the tree, which
 * are halted then, find the same place for the same memory. */
int mpy_shared_memory_place(const mpy_shared_map_t *m, uint64_t *place, char *err, size_t n);
/* A file for the memory of all of them, or -1 (errno). */
int mpy_shared_memory_make(void);

#endif
