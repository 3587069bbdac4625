/* fds.h - saving and restoring the program's file descriptors: all descriptors that do not belong to the lower half
 * according to fdguard.h.
 *
 * Lower half; libc allowed.
 *
 * Order of calls
 *   launch and restart:  mpy_fds_note_inherited()  first, before anything else is opened
 *   restart:             mpy_fds_make_terminals()   before the other processes of a tree are made
 *                        mpy_fds_make_way()    before more is opened: moves the lower half's descriptors above the
 *                                              program's numbers
 *   checkpoint:          mpy_fds_check()       the program is running: changes nothing; refuses early
 *                        mpy_fds_lend()        a companion: every thread of the program is stopped in its tree
 *                        mpy_fds_borrow()      the MPI process of the tree: the same
 *                        mpy_fds_meet()        every thread of the program is stopped on every rank
 *                        mpy_fds_save()        the same
 *                        mpy_fds_part()        the program goes on
 *   restart:             mpy_fds_restore()     single-threaded; replaces every program descriptor of the new process
 *                        mpy_fds_commit()      the last step, on every rank before any rank resumes: truncates files
 *                                              that have grown since the checkpoint. A restart that fails before this
 *                                              step has damaged nothing
 *                        mpy_fds_part()        before the program runs
 *   A process below the rank's first one (lowerhalf/tree) was started by an exec and knows from mpy_fds_inherited_text
 *   of the first one which of its descriptors came from mpirun; mpy_fds_inherited_only forgets the others.
 *
 * Invariants
 *  1. check and save leave every descriptor as they found it: offsets, flags, buffered bytes, locks.
 *  2. A descriptor that cannot be restored is never dropped: check or save refuses it, with one line that names it.
 *  3. Descriptors that share an open file description (dup) share it again after a restart.
 */
#ifndef MANAPY_STATE_FDS_H
#define MANAPY_STATE_FDS_H

#include "process/blob.h"
#include "process/process.h"
#include "process/tcp/tcp.h"

#include <stdbool.h>

void mpy_fds_note_inherited(void);
void mpy_fds_inherited_text(char *text, size_t n);
void mpy_fds_inherited_only(const char *text);
/* Restart: gets descriptors from other processes (`owner`: their index) into `got`. All processes of the tree call it
 * once, when they have put their own descriptors into place. NULL: a single process. */
typedef struct mpy_fd_want { int owner, number, other_end, got; } mpy_fd_want_t;
extern int (*mpy_fds_exchange)(mpy_fd_want_t *wants, int count, char *err, size_t n);
/* Restart: this process has made its descriptors, listening sockets included. In the MPI process it returns when all
 * processes of the tree have. NULL: a single process. */
extern void (*mpy_fds_made)(void);
/* During the exchange: the descriptor that the owner sends. */
int mpy_fds_wanted(int number, int other_end);
/* Connections to processes outside the job do not prevent a checkpoint: a restart finds them reset. */
void mpy_fds_drop_sockets(bool drop);
/* This process uses MPI: TCP connections to the other processes that do can be saved. NULL: it doesn't (yet). */
void mpy_fds_ranks(const mpy_exchange_t *exchange, mpy_tcp_host_t *host);
/* A process of the tree that does not use MPI gives the MPI process its TCP connections, until `give` returns other
 * than 0. From then on a connection that the MPI process does not have can't be saved. */
int mpy_fds_lend(int (*give)(int number, void *context), void *context, char *err, size_t n);
/* The MPI process takes descriptor `number` of process `pid` as `fd`, until the program goes on. -1: no memory. */
int mpy_fds_borrow(int fd, int pid, int number);
/* Collective, when all threads of the program are halted on all ranks: see mpy_tcp_meet. */
int mpy_fds_meet(int lasts, int (*cancelled)(void), char *err, size_t n);
/* The program is about to go on, after a checkpoint or a restart. */
int mpy_fds_part(char *err, size_t n);
/* Is something left to be sent on what other processes of the tree have lent? Then mpy_fds_part comes before any of
 * them goes on: it might send more. */
bool mpy_fds_lent_is_unsent(void);
/* Has the program opened a GPU of NVIDIA? */
bool mpy_fds_have_gpu(void);
/* Restart: makes the pseudo-terminals of the tree, before any of its processes, from the rank's own image. */
int mpy_fds_make_terminals(mpy_reader_t *r, char *err, size_t n);
/* This process leads this session now, which the program knows by that id: gives it its controlling terminal. And, when
 * all groups are there, puts the group into the foreground. real: the kernel's id of a group, or 0. */
void mpy_fds_control(int session);
void mpy_fds_foreground(int session, int (*real)(int group));
int mpy_fds_make_way(mpy_reader_t *r, char *err, size_t n);
/* In a process that does not use MPI, until it is called again: a connection that no checkpoint has saved yet counts as
 * one to outside, because it may end. */
void mpy_fds_be_patient(bool patient);
/* Not 0: a descriptor cannot be saved. MPY_FDS_LASTS: no end of a child can change that. */
enum { MPY_FDS_LASTS = -2 };
int mpy_fds_check(char *err, size_t n);
/* `shown`: the id by which the program knows a process. */
int mpy_fds_save(mpy_blob_t *b, mpy_tid_map_t *shown, char *err, size_t n);
int mpy_fds_restore(mpy_reader_t *r, char *err, size_t n);
int mpy_fds_commit(char *err, size_t n);

#endif
