/* control.h - the control plane of one rank, for the rest of the lower half. See control.c (threads) and notify.c (the
 * calls that upper threads may make). */
#ifndef MANAPY_CONTROL_PLANE_H
#define MANAPY_CONTROL_PLANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <manapy/boundary.h>

#include "engine.h"
#include "join/rendezvous.h"

typedef struct mpy_control_config {
    const mpy_job_t *job;            /* must live as long as the process */
    const mpy_engine_ops_t *engine;
    uint32_t generation;             /* restarts so far */
    const char *checkpoint;          /* restarted from, or NULL */
    const char *program;             /* name of the program, for messages */
    /* In a tree of processes (lowerhalf/tree): the process that uses MPI calls hand_back when it ends in order, instead
     * of reporting the end of the rank. In the first process, door_opened is called once when `door` is readable; NULL:
     * there is no door. */
    void (*hand_back)(void);
    int door;
    void (*door_opened)(void);
    void (*look)(char *text, size_t n); /* the answer to TREE */
    bool away;                       /* another process speaks for the rank at first */
} mpy_control_config_t;

/* Starts the control thread and its worker. All signals are blocked in both. The blocks of boundary.h must be mapped.
 * Returns at once; the connection is made in the background. */
bool mpy_control_start(const mpy_control_config_t *config, char *error, size_t n);

/* Another process of the tree speaks for the rank: returns when the coordinator's connection is closed, which is after
 * a checkpoint in progress. And: it has ended, and this process speaks again. Returns when it is connected, or after
 * MPY_BACK_MS. As long as the other process waits for that, the coordinator does not take the rank for dead: its
 * patience with a process that lives (EXEC_SECONDS of ranks.py) is longer. */
enum { MPY_BACK_MS = 10000 };
void mpy_control_hand_over(void);
void mpy_control_take_back(void);

/* At a restart, when this rank's image is verified, its memory restored and MPI rebuilt. Returns true when every
 * rank has called it. Returns false with one line in `error` if the coordinator is lost. (If another rank fails
 * meanwhile, the engine aborts the job.) Call it before upper threads run: it also clears what the checkpoint left
 * in the clock. */
bool mpy_control_ready_and_wait_go(char *error, size_t n);

/* True once the checkpoint in progress has been given up elsewhere. Steps poll this to end early. */
static inline bool mpy_control_cancelled(void) { return MPY_LOWER->cancelled; }

/* The number of ranks on this host; 1 if unknown, as in a process that has no control thread. */
int mpy_control_local_size(void);

/* ---- notify.c: no libc, no TLS. Any thread may call these on either TLS and in signal handlers. They do nothing in
 * forked children. ---- */

/* svc->notify */
void mpy_control_notify(void);
/* svc->request_checkpoint, svc->checkpoint_done */
int64_t mpy_control_request(void);
int64_t mpy_control_request_done(void);
/* svc->set_checkpoint_dir */
void mpy_control_set_place(const char *name, const char *path);
/* The program ends with this exit code: no further checkpoint. Returns when the coordinator has been told, but after at
 * most two seconds (the MPI process of a tree: when the hub speaks for the rank, or after twenty). If an image is being
 * written beside the program, it first waits for that, at most ten minutes.
 * Returns at once if there is no coordinator. In a chain it returns when the end of the job is
 * recorded, but after at most ten minutes. If the program has never initialized MPI, this also ends the dialogue with
 * the process manager, so that the process may end while other ranks continue. Further calls do nothing. */
void mpy_control_finished(int code);
/* The connection to the process manager, for the two functions below; -1: none. */
void mpy_control_note_process_manager(int pmi_fd);
/* The rank is about to exit on purpose: the process manager must not consider this a crash. */
void mpy_control_leave_process_manager(void);
/* The rank is about to exit because of an error: the process manager must end the job. code: 1 to 9. */
void mpy_control_abort(int code);

#endif
