/* leftovers.c - shared memory that ranks of an earlier job with the same name have left on this host. Lower half; libc.
 *
 * MPICH 5 names its segment in /dev/shm by a hash of the key-value space's name (FNV-1a, 32 bits) and the node's
 * number. It takes an existing segment for that of its neighbours. Hydra never uses a name twice. Slurm's name is
 * JOB.STEP: a job that is requeued after its ranks were killed begins again with step 0 of the same number, and finds
 * the old segment. Then it waits in it for ever or fails in MPI_Init (both were seen), also without manapy.
 *
 * Invariants
 *  1. Every rank removes segments before the barrier of the rendezvous, and initializes MPI after it. So no removed
 *     segment belongs to a running rank.
 */
#define _GNU_SOURCE
#include "leftovers.h"

#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static uint32_t fnv(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

void mpy_leftovers_remove(const char *kvsname) {
    static const char *const kinds[] = {"shm", "vci"};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        char pattern[64];
        glob_t found;
        snprintf(pattern, sizeof pattern, "/dev/shm/mpich_%s_%x_*", kinds[kind], fnv(kvsname));
        if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0) continue;
        /* other users' segments stay, because unlink fails for them */
        for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
        globfree(&found);
    }
}
