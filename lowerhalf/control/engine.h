/* engine.h - the interface of the checkpoint engine for the control thread: the steps that touch the program.
 *
 * Invariants
 *  1. All operations except abort_job and segments run on one thread, the control plane's worker, one at a time. It is
 *     a lower-half pthread with all signals blocked. Operations may take as long as they need, because the control
 *     thread continues to receive messages.
 *  2. An operation returns 0, or fills `error` with one line (no newline) and returns -1.
 *  3. Order: check, then call (if the program has callbacks), stop, drain, write, resume; or call, stop, drain,
 *     capture, resume, persist. resume is called exactly once after call or stop, even if that or a later
 *     step failed. It must handle an incomplete stop, and that there was none. persist is called exactly once after a
 *     capture that succeeded. check may be called any number of times, but not between the others.
 *  4. mpy_lower_t.phase is FROZEN from before call and stop until resume is called. It is NONE when resume runs.
 */
#ifndef MANAPY_ENGINE_H
#define MANAPY_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which image to write. */
typedef struct mpy_image_order {
    uint64_t epoch;       /* of the checkpoint; tells images of one run of the job apart */
    char directory[2048]; /* of the image */
    char way[12];         /* how to find changed pages (WRITE in control.h), for this image and the next one; empty: the
                           * images are full */
    uint64_t base_epoch;  /* epoch of the last published checkpoint, whose image may become the parent; 0: none */
    char base[64];        /* the directory of that image, relative to `directory` */
    /* A process of a tree that is not the MPI process: its image is rank-NNNNN.INDEX.img. 0: rank-NNNNN.img */
    uint32_t index;
    const struct mpy_image_member *members; /* of the tree, for the image with index 0; NULL: a single process */
    uint32_t nmembers;
} mpy_image_order_t;

typedef struct mpy_image_result {
    uint64_t bytes;      /* memory saved */
    uint64_t kept;       /* the part of it that is in a parent image */
    uint64_t file_bytes; /* size of the image file */
    uint32_t crc;        /* the image's header_crc */
    double seconds;      /* writing and fsync */
    char way[12];        /* how changed pages were found: pagemap, soft-dirty, hash, or empty */
    char seal[65];       /* the image's, in hex */
} mpy_image_result_t;

typedef struct mpy_engine_ops {
    /* Tests whether this process can be saved now. Waits up to grace_ms for child processes to end. Stops nothing. The
     * error names what prevents a checkpoint, for example a descriptor or a pid. If callbacks are to be called, what
     * they may change is left out. */
    int (*check)(int grace_ms, char *error, size_t n);
    /* Has the program opened a GPU whose contents a callback saves (callbacks.h)? Any thread; may be NULL. */
    bool (*has_gpu)(void);
    /* Let the program's main thread call the callbacks of before_checkpoint (callbacks.h). Then test what check has
     * left out. */
    int (*call)(char *error, size_t n);
    /* Halt every upper thread by signal. Wait for child processes for the rest of the grace time. No thread is in the
     * lower half when this is called. */
    int (*stop)(char *error, size_t n);
    /* Run the wrapper's drain hook on the stopped main thread (if the program uses MPI). All ranks do it at the same
     * time. */
    int (*drain)(char *error, size_t n);
    /* Write DIRECTORY/rank-NNNNN.img and fsync it. Removes the file on failure. */
    int (*write)(const mpy_image_order_t *order, mpy_image_result_t *result, char *error, size_t n);
    /* The same, but the image may be written beside the program, after resume. `why_not`: why it is written at once, in
     * a few words; empty if it is not. */
    int (*capture)(const mpy_image_order_t *order, char *why_not, size_t m, char *error, size_t n);
    /* Wait until the captured image is on disk. Removes the file on failure, also when cancelled. */
    int (*persist)(mpy_image_result_t *result, char *error, size_t n);
    /* Let the program continue. With exit_after, end the process with MPY_EXIT_CHECKPOINTED instead (does not
     * return). */
    int (*resume)(int exit_after, char *error, size_t n);
    /* Print the reason and end the whole job with exit code `code` (MPI_Abort if MPI is up); with an empty reason only
     * this rank ends. Called on the control thread at any time, also while another operation runs. Does not return. */
    void (*abort_job)(int code, const char *reason);
    /* Comma-separated paths of the shared memory that the real MPI has mapped, "-" if none. Any thread; may be NULL. */
    void (*segments)(char *out, size_t n);
    /* When the program has called MPI_Init (mpy_now_ms), 0 if it has not. Valid until MPI is up. May be NULL. */
    int64_t (*init_since)(void);
    /* Called again and again, in mpy_control_ready_and_wait_go, on its thread: other ranks may wait for the real MPI of
     * this one, which moves messages only while it is called. May be NULL. */
    void (*progress)(void);
} mpy_engine_ops_t;

#endif
