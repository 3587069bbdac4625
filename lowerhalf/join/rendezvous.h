/* rendezvous.h - see rendezvous.c. */
#ifndef MANAPY_RENDEZVOUS_H
#define MANAPY_RENDEZVOUS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <manapy/boundary.h>
#include <manapy/control.h>

#include "agreement.h"
#include "base/rank.h"
#include "chain.h"
#include "manager/pmi.h"

typedef struct mpy_rendezvous_options {
    const char *dir;      /* --dir, or NULL */
    const char *resume;   /* checkpoint directory that this job continues, or NULL for a new job */
    bool exact;           /* no older checkpoint, if its images are lost */
    int expected_ranks;   /* number of ranks of that checkpoint; 0: any. If it differs, all ranks fail together */
    char *const *argv;    /* the program and its arguments, for messages; NULL-terminated */
    const char *mpi;      /* real MPI library, if known already; NULL else */
    const mpy_checkpoint_options_t *checkpoints;
    mpy_agreement_check_t *check; /* checks this rank's image before a step of a chain continues a checkpoint */
    mpy_protocol_t protocol; /* of a new job; the manifest and images of a continued job contain its protocol */
} mpy_rendezvous_options_t;

typedef struct mpy_job {
    int rank, size;
    int local_size;             /* ranks on this host */
    mpy_manager_t manager;
    int pmi_fd;                 /* connection with a process manager that speaks PMI-1; -1: none */
    bool all_refused;           /* mpy_rendezvous has failed on all ranks, with the same error */
    char dir[1024];             /* job directory, absolute */
    char host[256];             /* coordinator's address and port */
    int port;
    /* rank 0 of a restart: through this pipe the coordinator says why the job must end, as long as this rank has not
     * connected to it; -1: none */
    int last_words;
    bool through_agent;         /* the ranks of this host speak to the agent of their node (node.c) */
    mpy_protocol_t protocol;
    uint8_t secret[MPY_SECRET_BYTES];
    /* in a chain: what this job must do. DONE: only rank, size and pmi_fd are valid besides it */
    mpy_chain_step_t step;
} mpy_job_t;

/* Every rank calls this first: before there are threads, before descriptors are opened. On failure `error` contains one
 * line, and *say tells whether this rank must print it: only rank 0 prints errors that concern all ranks. */
bool mpy_rendezvous(const mpy_rendezvous_options_t *options, mpy_job_t *job, bool *say, char *error, size_t n);

/* After a failure has been printed, before the end: waits until all ranks know of it, if all have this error. */
void mpy_rendezvous_part(const mpy_job_t *job);

/* The address under which other hosts reach this one: MANAPY_ADDRESS, or the address of the host's own name. If that is
 * loopback, as in Debian's /etc/hosts, the first interface that is up. */
bool mpy_job_address(struct sockaddr_storage *out, socklen_t *size, char *error, size_t n);

/* A rank whose process has called exec on a new program (trap_exec.c) joins the same job again. `text` is what
 * mpy_rejoin_text wrote before the exec. */
bool mpy_rejoin(const char *text, mpy_job_t *job, char *error, size_t n);
void mpy_rejoin_text(const mpy_job_t *job, char *text, size_t n);

#endif
