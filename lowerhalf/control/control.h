/* control.h - the control plane of one rank, for the rest of the lower half. See control.c (threads) and notify.c (the
 * calls that upper threads may make). */
#ifndef MANAPY_CONTROL_PLANE_H
#define MANAPY_CONTROL_PLANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine.h"
#include "join/rendezvous.h"

typedef struct mpy_control_config {
    const mpy_job_t *job;            /* must live as long as the process */
    const mpy_engine_ops_t *engine;
    uint32_t generation;             /* restarts so far */
    const char *checkpoint;          /* restarted from, or NULL */
    const char *program;             /* what runs, for people */
} mpy_control_config_t;

/* Starts the control thread and its worker, all signals blocked in both. The blocks of boundary.h must be mapped.
 * Returns at once; the connection is made in the background. */
bool mpy_control_start(const mpy_control_config_t *config, char *error, size_t n);

/* Restart: this rank's image is verified, memory is restored, MPI is rebuilt. Returns true when every rank is; false
 * with one line in `error` if the coordinator is lost. (If another rank fails meanwhile, the job is aborted through the
 * engine.) Call it before upper threads run: it also clears what the checkpoint left in the clock. */
bool mpy_control_ready_and_wait_go(char *error, size_t n);

/* True once the checkpoint in progress has been given up elsewhere: steps look at it to end early. */
bool mpy_control_cancelled(void);

/* ---- notify.c: no libc, no TLS; from any thread, on either TLS, in signal handlers, and harmless in forked children
 * ---- */

/* svc->notify */
void mpy_control_notify(void);
/* svc->request_checkpoint, svc->checkpoint_done */
int64_t mpy_control_request(void);
int64_t mpy_control_request_done(void);
/* svc->set_checkpoint_dir */
void mpy_control_set_place(const char *name, const char *path);
/* The program ends, with this exit code: no further checkpoint. Returns when the coordinator has been told; at once if
 * there is none; in a chain, when the job's end is recorded, after at most ten minutes; else after at most two seconds.
 * Also ends the dialogue with the process manager if the program has never initialized MPI, so that it may end while
 * other ranks go on. Further calls do nothing. */
void mpy_control_finished(int code);
/* The connection with the process manager, for the two below; -1: none. */
void mpy_control_note_process_manager(int pmi_fd);
/* The rank is about to exit on purpose: the process manager must not consider this a crash. */
void mpy_control_leave_process_manager(void);
/* The rank is about to exit because of an error: the process manager must end the job. code: 1 to 9. */
void mpy_control_abort(int code);

#endif
