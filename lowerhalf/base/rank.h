/* rank.h - shared by all parts of the lower half: this rank's options, its paths, and the functions that end it with an
 * error.
 *
 * start/ fills it: the options when they have been read, the job when it has been found, and what a failing rank does
 * besides (it tells the process manager, control/control.h).
 */
#ifndef MANAPY_RANK_H
#define MANAPY_RANK_H
#include <manapy/boundary.h>
#include <manapy/control.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mpy_checkpoint_options {
    double interval_s;   /* seconds between automatic checkpoints; 0: none */
    int keep;            /* number of checkpoints to keep; 0: all */
    int child_grace_ms;  /* how long a checkpoint waits for child processes */
    bool background;     /* checkpoints write images beside the program */
    const char *dirty;   /* how changed pages are found, for incremental images; NULL: all images are full */
    int full_every;      /* checkpoints from one with full images to the next */
    const char *local;   /* directory for images on local storage, or NULL */
    double flush_s;      /* seconds between copies from there to the job directory; negative: none */
    const char *redundancy; /* what survives the loss of hosts (manapy/ckpt/redundancy/policy.py); NULL: nothing */
    const char *failure_groups; /* a file: hosts that fail together; NULL: each on its own */
} mpy_checkpoint_options_t;

typedef struct mpy_options {
    const char *command;   /* "manapy-launch" or "manapy-restart" */
    const char *dir;       /* job directory, or NULL: manapy-<id>/ */
    const char *mpi;       /* library or prefix of the real MPI, or NULL: search */
    const char *exec_path; /* internal: the rank's own process has called exec on this file ... */
    const char *rejoin;    /* ... and this text lets it find its job again */
    const char *tree;      /* internal: this process is a member of the rank's tree (tree/tree.h) */
    const char *door;      /* internal: it is the first process of one that has members already */
    bool below_mpi;        /* internal: it is below the MPI process */
    const char *shift;     /* "auto", "off" or "require": backup RNICs for the real MPI (mpi/rdma.c) */
    const char *on_failover; /* "continue" or "checkpoint": when RDMA traffic falls back to another RNIC */
    const char *compress;  /* "auto", "on" or "off": images (image/write/zip.c) */
    bool is_unsigned;      /* restart although nothing proves that the job has written the checkpoint */
    bool lazy;             /* restart: the program runs before all of its memory has been read */
    bool trace;            /* record calls (trace/recorder.c) */
    mpy_checkpoint_options_t checkpoints;
    const char *callback_timeout; /* as given ... */
    int callback_ms;       /* ... how long a checkpoint waits for the program's callbacks */
    const char *ignore_child; /* patterns of children that need not be saved (base/match.h), or NULL */
    bool drop_sockets;     /* connections to outside are saved as ones that have been reset */
    mpy_protocol_t protocol;
} mpy_options_t;

extern mpy_options_t mpy_options;

/* Called by mpy_fail before the exit, if it is set. */
extern void (*mpy_rank_on_failure)(int code);
/* Print "<command>: <line>". */
void mpy_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, and exit. */
void mpy_fail(int code, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* The rank's job, and where the coordinator of this run listens: for the next two. */
void mpy_rank_found(const uint8_t secret[MPY_SECRET_BYTES], const char *host, int port);
const uint8_t *mpy_lower_secret(void); /* the job's secret: MPY_SECRET_BYTES */
uint64_t mpy_lower_attempt(void);      /* the same number in all ranks of this run, and in no other run */
const char *mpy_upper_dir(void);       /* directory of our libmpi.so.12 */
const char *mpy_self_path(void);       /* this executable */
#endif
