/* fdguard.h - which descriptors and threads belong to the lower half.
 *
 * Lower half; libc allowed; callable from any lower thread. mpy_fd_is_lower() alone is also called by traps on the
 * upper half's TLS: it calls nothing and touches no thread-local.
 *
 * The program must get the same descriptor numbers as without manapy. A restart must be able to put its descriptors
 * back under the same numbers while a new lower half is already connected. So every descriptor of the lower half gets a
 * high number and is remembered here. All others are the program's and are saved with it.
 *
 * Invariants
 *  1. A descriptor of the lower half is >= mpy_fd_base(), close-on-exec and registered. Those opened by the real MPI
 *     and its transports get there through interpose.c or, when they bypass it, through occupy_low + scan around
 *     MPI_Init.
 *  2. A descriptor is unregistered before its number can be given out again.
 *  3. A thread created through pthread_create of the lower half is registered before it runs its first own instruction,
 *     and blocks every signal: the program's signals never run on it.
 */
#ifndef MANAPY_STATE_FDGUARD_H
#define MANAPY_STATE_FDGUARD_H

/* The lowest number for descriptors of the lower half: 512 (select(2), which libraries may use, ends at 1024), less
 * under a small RLIMIT_NOFILE, more where the program needs more. */
int mpy_fd_base(void);
/* The program has numbers below `end`, or as many: the base goes that far up that others stay free for it. */
void mpy_fd_reserve(int end);
/* No descriptor of the lower half was ever at or above it. */
int mpy_fd_lower_end(void);

void mpy_fd_lower_add(int fd);
void mpy_fd_lower_remove(int fd);
int mpy_fd_is_lower(int fd);
/* Move `fd` to a high number, close-on-exec and registered; returns that number. When no high number is free the
 * descriptor stays where it is, registered all the same. A negative fd is returned unchanged. */
int mpy_fd_high(int fd);
/* Unregister and close. */
void mpy_fd_close(int fd);

/* Fill every free number below mpy_fd_base(), so that descriptors opened meanwhile get high numbers; and free them
 * again. */
void mpy_fds_occupy_low(void);
void mpy_fds_release_low(void);
/* A restart puts the program's descriptors under their numbers while other threads of the lower half run. A descriptor
 * that such a thread opens has a low number for a moment; closing it must not close a descriptor that was put there
 * meanwhile. So both hold this lock. */
void mpy_fds_low_lock(void);
void mpy_fds_low_unlock(void);
/* Descriptors that appear between begin and end are registered as the lower half's. Only for stretches in which no
 * thread of the program opens anything (MPI_Init). */
void mpy_fds_scan_begin(void);
void mpy_fds_scan_end(void);

/* Threads of the lower half (kernel tids). */
void mpy_thread_lower_add(int tid);
void mpy_thread_lower_remove(int tid);
int mpy_thread_is_lower(int tid);
/* Used by interpose.c around the creation of a thread, so that mpy_thread_is_lower() never misses one that is just
 * starting. */
void mpy_thread_lower_announce(int change);

#endif
