/* fdguard.h - which descriptors and threads belong to the lower half.
 *
 * Lower half; libc allowed; callable from any lower thread. Traps on the upper half's TLS call only mpy_fd_is_lower():
 * it calls nothing and touches no thread-local variable.
 *
 * The program must get the same descriptor numbers as without manapy. A restart must be able to put its descriptors
 * back under the same numbers while a new lower half is already connected. So every descriptor of the lower half gets a
 * high number and is registered here. All others belong to the program and are saved with it.
 *
 * Invariants
 *  1. A descriptor of the lower half is >= mpy_fd_base(), close-on-exec and registered. Descriptors of the real MPI and
 *     its transports are moved there by interpose.c or, if they bypass it, by occupy_low + scan around MPI_Init.
 *  2. A descriptor is unregistered before its number can be reused.
 *  3. A descriptor that a thread of the lower half opens has a low number for a moment. A fork (lowerhalf/tree/fork.c)
 *     comes before or after this move, not in the middle: otherwise the child would have a descriptor that nobody has
 *     registered. Nor does a restart put a descriptor of the program under a number meanwhile: the move would end with
 *     closing it. Calls that can wait for long (accept, recvmsg) wait before.
 *  4. A thread created through pthread_create of the lower half is registered before it runs its first own instruction.
 *     It blocks every signal, so the program's signals never run on it.
 */
#ifndef MANAPY_STATE_FDGUARD_H
#define MANAPY_STATE_FDGUARD_H

/* The lowest number for descriptors of the lower half: 512 (select(2), which libraries may use, ends at 1024); less
 * with a small RLIMIT_NOFILE, more if the program needs more. */
int mpy_fd_base(void);
/* The program has numbers below `end`, or as many numbers: raises the base so that others stay free for the program. */
void mpy_fd_reserve(int end);
/* All descriptors that the lower half has ever had are below this number. */
int mpy_fd_lower_end(void);

void mpy_fd_lower_add(int fd);
void mpy_fd_lower_remove(int fd);
int mpy_fd_is_lower(int fd);
/* Around a call that opens or closes descriptors of the lower half, which must not wait. Not nested. */
void mpy_fds_move_begin(void);
void mpy_fds_move_end(void);
/* Between them no other thread of the lower half opens or closes a descriptor. It waits for those that are doing so, at
 * most `ms`. Only one thread at a time; after a fork in between, both processes call release. */
void mpy_fds_hold(int ms);
void mpy_fds_release(void);
/* Moves `fd` to a high number, close-on-exec and registered. Returns that number. If no high number is free, the
 * descriptor keeps its number and is registered anyway. A negative fd is returned unchanged. */
int mpy_fd_high(int fd);
/* The same for the descriptor that `call` opens. It is one move (invariant 3). */
#define MPY_FD_OPEN(call)                                                                                             \
    ({                                                                                                                \
        mpy_fds_move_begin();                                                                                         \
        int opened_ = mpy_fd_lift((int)(call));                                                                       \
        mpy_fds_move_end();                                                                                           \
        opened_;                                                                                                      \
    })
int mpy_fd_lift(int fd); /* for MPY_FD_OPEN */
/* Unregisters and closes it. */
void mpy_fd_close(int fd);

/* occupy: fills every free number below mpy_fd_base(), so that descriptors opened meanwhile get high numbers. release:
 * frees them again. */
void mpy_fds_occupy_low(void);
void mpy_fds_release_low(void);
/* A restart puts the program's descriptors under their numbers while other threads of the lower half run. A call in
 * which libc itself opens a descriptor (getaddrinfo) is no move, as mpy_fds_hold knows them. So both hold this lock. */
void mpy_fds_low_lock(void);
void mpy_fds_low_unlock(void);
/* Descriptors that appear between begin and end are registered as the lower half's. Only for periods in which no thread
 * of the program opens anything (MPI_Init). */
void mpy_fds_scan_begin(void);
void mpy_fds_scan_end(void);

/* Threads of the lower half (kernel tids). */
void mpy_thread_lower_add(int tid);
void mpy_thread_lower_remove(int tid);
int mpy_thread_is_lower(int tid);
/* interpose.c calls this before and after the creation of a thread, so that mpy_thread_is_lower() never misses a thread
 * that is just starting. */
void mpy_thread_lower_announce(int change);
/* In a forked child: the threads are the parent's, and so are those that held a lock. */
void mpy_guard_forked(void);

#endif
