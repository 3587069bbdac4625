/* fds.h - saving and restoring the program's file descriptors (every descriptor that fdguard.h doesn't call the lower
 * half's).
 *
 * Lower half; libc allowed.
 *
 * Order of calls
 *   launch and restart:  mpy_fds_note_inherited()  first thing, before anything else is opened
 *   restart:             mpy_fds_make_way()    before more is opened: the lower half's descriptors go above the
 * program's numbers checkpoint:          mpy_fds_check()       the program is running: nothing is changed; refuse early
 *                        mpy_fds_save()        every thread of the program stopped on every rank
 *   restart:             mpy_fds_restore()     single-threaded; every program descriptor of the new process is replaced
 *                        mpy_fds_commit()      the last moment, on every rank before any rank resumes: cuts files that
 *                                              have grown since the checkpoint. A restart that fails before it has
 *                                              damaged nothing
 *
 * Invariants
 *  1. check and save leave every descriptor as they found it: offsets, flags, buffered bytes, locks.
 *  2. A descriptor that cannot be restored is never dropped: check or save refuses it, with one line that names it.
 *  3. Descriptors that share an open file description (dup) share it again after a restart.
 */
#ifndef MANAPY_STATE_FDS_H
#define MANAPY_STATE_FDS_H

#include "process/blob.h"

void mpy_fds_note_inherited(void);
int mpy_fds_make_way(mpy_reader_t *r, char *err, size_t n);
int mpy_fds_check(char *err, size_t n);
int mpy_fds_save(mpy_blob_t *b, char *err, size_t n);
int mpy_fds_restore(mpy_reader_t *r, char *err, size_t n);
int mpy_fds_commit(char *err, size_t n);

#endif
