/* jobdir.h - see jobdir.c. Functions return false with one line in `error`. */
#ifndef MANAPY_JOBDIR_H
#define MANAPY_JOBDIR_H

#include "rendezvous.h"

/* Creates (or takes over) the job directory and locks it; sets job->dir. The coordinator gets the descriptor of the
 * lock. */
bool mpy_jobdir_create(const mpy_rendezvous_options_t *options, mpy_job_t *job, int *lock_fd, char *error, size_t n);
/* Finds the job directory that a checkpoint belongs to, and the directory in which the job puts such checkpoints: the
 * same, or the one set by dmtcp_set_ckpt_dir. False: the checkpoint belongs to no job directory. */
bool mpy_jobdir_of_checkpoint(const char *checkpoint, char job_dir[PATH_MAX], char directory[PATH_MAX]);
bool mpy_jobdir_write_secret(mpy_job_t *job, char *error, size_t n);
bool mpy_jobdir_write_record(const mpy_rendezvous_options_t *options, const mpy_job_t *job, char *error, size_t n);

#endif
