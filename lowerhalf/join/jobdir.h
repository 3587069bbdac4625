/* jobdir.h - see jobdir.c. Functions return false with one line in `error`. */
#ifndef MANAPY_JOBDIR_H
#define MANAPY_JOBDIR_H

#include "rendezvous.h"

/* Makes (or takes over) the job directory and locks it; sets job->dir. The descriptor of the lock goes to the
 * coordinator. */
bool mpy_jobdir_create(const mpy_rendezvous_options_t *options, mpy_job_t *job, int *lock_fd, char *error, size_t n);
/* The job directory that a checkpoint belongs to, and the directory that such checkpoints were asked to go to: the
 * same, or where dmtcp_set_ckpt_dir has sent them. False: it stands alone. */
bool mpy_jobdir_of_checkpoint(const char *checkpoint, char job_dir[PATH_MAX], char directory[PATH_MAX]);
bool mpy_jobdir_write_secret(mpy_job_t *job, char *error, size_t n);
bool mpy_jobdir_write_record(const mpy_rendezvous_options_t *options, const mpy_job_t *job, char *error, size_t n);

#endif
