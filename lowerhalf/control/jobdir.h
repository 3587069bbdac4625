/* jobdir.h - see jobdir.c. Functions return false with one line in `error`. */
#ifndef MANAPY_JOBDIR_H
#define MANAPY_JOBDIR_H

#include "rendezvous.h"

/* Makes (or takes over) the job directory and locks it; sets job->dir. The descriptor of the lock goes to the coordinator. */
bool mpy_jobdir_create(const mpy_rendezvous_options_t *options, mpy_job_t *job, int *lock_fd, char *error, size_t n);
bool mpy_jobdir_write_secret(mpy_job_t *job, char *error, size_t n);
bool mpy_jobdir_write_record(const mpy_rendezvous_options_t *options, const mpy_job_t *job, char *error, size_t n);

#endif
