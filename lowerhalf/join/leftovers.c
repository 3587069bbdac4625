/* leftovers.c - shared memory that ranks of a job of the same name have left on this host. Lower half; libc.
 *
 * MPICH 5 names its segment in /dev/shm by a hash of the key-value space's name (FNV-1a, 32 bits) and the node's
 * number, and takes one that is there already for that of its neighbours. Hydra never gives a name twice. Slurm's is
 * JOB.STEP: a job that is requeued after its ranks were killed begins again with step 0 of the same number, finds the
 * dead segment, and waits in it for ever or fails in MPI_Init (both seen), without manapy as well.
 *
 * Invariants
 *  1. Every rank removes segments before the barrier of the rendezvous, and initializes MPI after it. So no removed
 *     segment belongs to a live rank.
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
        /* others' stay: they aren't allowed to */
        for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
        globfree(&found);
    }
}
