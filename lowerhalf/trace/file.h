/* file.h - the file in which one process records (<manapy/trace.h>): creating it, filling its tables, ending it. See
 * file.c and table.c. */
#ifndef MANAPY_TRACE_FILE_H
#define MANAPY_TRACE_FILE_H

#include <limits.h>
#include <manapy/trace_ring.h>
#include <stdbool.h>

typedef struct mpy_trace { /* state of the recorder, initially zero; one per process */
    mpy_trace_file_t *file; /* NULL: nothing is recorded */
    uint32_t lock;
    uint64_t comms_end, members_end; /* end of the reserved part of each table: offsets in the file */
    mpy_trace_sample_t first_sample;
    char path[PATH_MAX];
} mpy_trace_t;

typedef struct mpy_trace_identity {
    const char *job;      /* mpy_trace_job_name, or any name that a folder may have */
    const char *producer; /* "manapy-launch", "preload", "shift" */
    const char *program;
    int rank, size;
    uint32_t generation;
    const uint64_t *past; /* MPY_TRACE_RINGS of them; NULL at the start */
} mpy_trace_identity_t;

/* ---- file.c: libc ---- */

/* The name of the job in directory `dir`: its last component and a hash, because last components of different jobs may
 * be equal (manapy/trace/capture/format.py). */
void mpy_trace_job_name(const char *dir, char *out, size_t n);
/* Creates and maps the file ROOT/manapy-trace-UID/JOB/rank-NNNNN.gG.trace; removes files of this rank that it replaces.
 * ROOT: MANAPY_TRACE_ROOT, or /dev/shm. False with one line in `error`: no room, or no permission; then nothing is left
 * behind. */
bool mpy_trace_create(mpy_trace_t *trace, const mpy_trace_identity_t *who, char *error, size_t n);
/* This host's clocks, read together. */
mpy_trace_sample_t mpy_trace_clocks(void);
/* Takes one more clock sample; call it from time to time, and at the end. */
void mpy_trace_sample(mpy_trace_t *trace);
/* Nothing is recorded after this, or the process continues in another generation. The file stays. */
void mpy_trace_end(mpy_trace_t *trace, mpy_trace_end_t end);

/* ---- table.c: neither libc nor thread-local variables; any thread ---- */

/* Takes a ring for thread `tid` (as in /proc). `index`: a certain ring, or -1: any. NULL: all are taken, or there is no
 * room; the caller counts its calls in file->unrecorded. */
mpy_trace_ring_t *mpy_trace_ring_take(mpy_trace_t *trace, int32_t tid, int index);
mpy_trace_ring_t *mpy_trace_ring_at(const mpy_trace_t *trace, uint32_t i);
/* Its thread ends. */
void mpy_trace_ring_drop(mpy_trace_t *trace, mpy_trace_ring_t *ring);
/* Enters a communicator: world ranks of its n members, of which the last `remote` are the other group. `name` may be
 * NULL. Returns its index, or MPY_TRACE_NO_COMM if the table is full. */
uint32_t mpy_trace_comm_add(mpy_trace_t *trace, uint64_t cid, uint64_t ggid, const int32_t *members, uint32_t n,
                            uint32_t remote, const char *name);
/* Reserves room for this part of the file, so that no store into it can fail. False: there is no room. */
bool mpy_trace_reserve(const mpy_trace_t *trace, uint64_t offset, uint64_t bytes);

#endif
