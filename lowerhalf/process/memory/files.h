/* files.h - files whose content is only in memory, and which several processes or places use. See uses.c (checkpoint)
 * and remake.c (restart). */
#ifndef MANAPY_MEMORY_FILES_H
#define MANAPY_MEMORY_FILES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MPY_POSIX_MEMORY "/dev/shm/"
enum { MPY_MEMORY_FILES_MAX = 1 << 20 }; /* files without a name that a restart of a rank can recreate */

/* ---- checkpoint ---- */

/* CHECK: looks whether other processes of this host have mapped what this rank has. Costs nothing if that is nothing
 * that they could have; else a look at each process of the user. */
void mpy_memory_files_look_around(void);
/* Has that look found this file of POSIX shared memory, with or without a name, at other ranks? */
bool mpy_memory_file_is_theirs(uint64_t device, uint64_t inode);
/* Looks at mappings and descriptors of all processes of the tree. The next two functions tell what was found then. */
void mpy_memory_files_look(void);
/* CHECK, after both looks: could a restart recreate the files without a name? Returns 0, or -1 with a line. */
int mpy_memory_files_check(char *err, size_t n);
/* Where else a file without a name is used: nowhere; in mappings, descriptors and processes of this rank; or in other
 * ranks of the host. Those can have it if it was POSIX shared memory (deleted), or if it is of System V. */
typedef enum { MPY_UNSHARED, MPY_SHARED_IN_RANK, MPY_SHARED_BY_RANKS } mpy_sharing_t;
mpy_sharing_t mpy_memory_file_sharing(uint64_t device, uint64_t inode);
/* What stands for the inode of a mapped file with this path, in all calls here: System V's ids are not among inodes. */
uint64_t mpy_memory_file_inode(const char *path, uint64_t inode);
/* Does one shared mapping of this process, which can be read, have all of its `bytes`? */
bool mpy_memory_file_is_mapped(uint64_t device, uint64_t inode, uint64_t bytes);
/* Is it a file of POSIX shared memory, which has a name? */
bool mpy_memory_file_is_posix(const char *path);
/* The name of one in POSIX shared memory. (The file of a semaphore had another one when it was mapped, sem_open(3).) */
bool mpy_memory_file_find(uint64_t device, uint64_t inode, char *path, size_t n);

/* ---- restart ---- */

/* Before the other processes of the tree are made: they and this one will find each other's files. */
void mpy_memory_files_share(void);
/* At first. `attempt`: the same number in all ranks of this restart, and in no other. `host`: of the checkpoint. */
void mpy_memory_files_begin(uint64_t attempt, const char *host);
/* Opens the file without a name that stands for this one of the checkpoint, for reading and writing. The first one who
 * needs it makes it. It has `bytes` or more. Returns the descriptor, or -1 with a line. */
int mpy_memory_file_open(uint64_t device, uint64_t inode, uint64_t bytes, mpy_sharing_t sharing, char *err, size_t n);
/* Its size and seals, once all have it. Returns 0, or -1 with a line. */
int mpy_memory_file_end_as(uint64_t device, uint64_t inode, uint64_t bytes, int seals, char *err, size_t n);
/* The same for one of POSIX shared memory. */
int mpy_memory_file_open_posix(const char *path, uint64_t bytes, char *err, size_t n);
/* Where the file `path` is now: another one than `path` if mpy_memory_file_open_posix has opened it. */
const char *mpy_memory_file_now(const char *path);
/* All processes of all ranks have their files: these get their names, sizes and seals. Returns 0, or -1 with a line. */
int mpy_memory_files_commit(char *err, size_t n);

#endif
