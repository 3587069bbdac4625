/* memory_files.h - files whose content is only in memory, and which several processes or places use. See
 * memory_files.c. */
#ifndef MANAPY_STATE_MEMORY_FILES_H
#define MANAPY_STATE_MEMORY_FILES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- checkpoint ---- */

/* Looks at mappings and descriptors of all processes of the tree. The next two functions tell what was found then. */
void mpy_memory_files_look(void);
/* Is this file without a name used at more than one place: mappings, descriptors, other processes? */
bool mpy_memory_file_is_shared(uint64_t device, uint64_t inode);
/* Does one shared mapping of this process, which can be read, have all of its `bytes`? */
bool mpy_memory_file_is_mapped(uint64_t device, uint64_t inode, uint64_t bytes);
/* Is it a file of POSIX shared memory, which has a name? */
bool mpy_memory_file_is_posix(const char *path);
/* The name of one in POSIX shared memory. (The file of a semaphore had another one when it was mapped, sem_open(3).) */
bool mpy_memory_file_find(uint64_t device, uint64_t inode, char *path, size_t n);

/* ---- restart ---- */

/* Before the other processes of the tree are made: they and this one will find each other's files. */
void mpy_memory_files_share(void);
/* Opens the file without a name that stands for this one of the checkpoint, for reading and writing. The first one who
 * needs it makes it. It has `bytes` or more. Returns the descriptor, or -1 with a line. */
int mpy_memory_file_open(uint64_t device, uint64_t inode, uint64_t bytes, char *err, size_t n);
/* Its size and seals, once all have it. Returns 0, or -1 with a line. */
int mpy_memory_file_end_as(uint64_t device, uint64_t inode, uint64_t bytes, int seals, char *err, size_t n);
/* The same for one of POSIX shared memory. `attempt`: the same number in all ranks of this restart, and in no other. */
int mpy_memory_file_open_posix(const char *path, uint64_t bytes, uint64_t attempt, char *err, size_t n);
/* Where the file `path` is now: another one than `path` if mpy_memory_file_open_posix has opened it. */
const char *mpy_memory_file_now(const char *path);
/* All processes of all ranks have their files: these get their names, sizes and seals. Returns 0, or -1 with a line. */
int mpy_memory_files_commit(char *err, size_t n);

#endif
