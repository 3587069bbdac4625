/* lower.h - the lower half as a whole: options, blocks, services. See lower.c. */
#ifndef MANAPY_LOWER_H
#define MANAPY_LOWER_H
#include <manapy/boundary.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mpy_options {
    const char *command;   /* "manapy-launch" or "manapy-restart" */
    const char *dir;       /* job directory, or NULL: manapy-<id>/ */
    const char *mpi;       /* library or prefix of the real MPI, or NULL: search */
    const char *exec_path; /* internal: the rank's own process has exec'ed this file ... */
    const char *rejoin;    /* ... and this is how it finds its job again */
    const char *shift;     /* "auto", "off" or "require": backup RNICs for the real MPI (mpi/rdma.c) */
    const char *on_failover; /* "continue" or "checkpoint": when RDMA traffic falls back to another RNIC */
    bool is_unsigned;      /* restart a checkpoint of which nothing proves that its job has written it */
    bool trace;            /* record calls (recorder.c) */
    double interval_s;     /* between automatic checkpoints; 0 = none */
    int keep;              /* checkpoints kept; 0 = all */
    int child_grace_ms;    /* how long a checkpoint waits for child processes */
    mpy_protocol_t protocol;
} mpy_options_t;

extern mpy_options_t mpy_options;

/* Print "<command>: <line>" and exit. */
void mpy_fail(int code, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* Parse options; returns the index of the program in argv (of the checkpoint, for manapy-restart). Exits on bad usage. */
int mpy_options_parse(int argc, char **argv, mpy_options_t *out);

void mpy_blocks_map(void);                             /* map what every lower half makes anew: lower block, code page, service stack */
void mpy_blocks_map_saved(void);                       /* map upper and trap block (at a restart they come from the image) */
void mpy_fixed_map(uint64_t address, uint64_t bytes);  /* anonymous memory at a fixed free address, or fail */
/* Find rank, size and job (control/rendezvous.h); fills the lower block. `argv`: the program, for people. `resume`: the checkpoint
 * continued, or NULL; `ranks`: how many it has. Returns the checkpoint to continue, or NULL: start the program. In a chain it
 * may be another one than `resume`, and a step that was done before ends here. */
const char *mpy_lower_join(char *const *argv, const char *resume, int ranks, uint32_t generation);
void mpy_lower_make_way(void); /* what mpy_lower_join has opened goes above a base of descriptors that has gone up */
/* Continue this rank's part of a checkpoint (resume.c). */
void mpy_resume(const char *checkpoint) __attribute__((noreturn));
void mpy_lower_start(const char *program); /* donor threads, stop handler, control thread */
const uint8_t *mpy_lower_secret(void);                  /* of the job: MPY_SECRET_BYTES */
const char *mpy_upper_dir(void);                       /* directory of our libmpi.so.12 */
const char *mpy_self_path(void);                       /* this executable */

/* mpi/rdma.c */
struct mpy_job;
void mpy_rdma_prepare(const struct mpy_job *job); /* while there is one thread only */
void mpy_rdma_load(void);                         /* before the real MPI */
/* mpi/load.c */
void mpy_mpi_load(char **env);
const char *mpy_mpi_path(void); /* what would be or was loaded; NULL if none was found */
void mpy_mpi_segments(char *out, size_t n); /* files in /dev/shm that it has mapped: comma-separated paths, or "-" */
/* threads.c */
void mpy_threads_init(void); /* on the main thread, before the program starts */
#endif
