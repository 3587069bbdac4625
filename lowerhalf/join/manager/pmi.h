/* pmi.h - see pmi.c. */
#ifndef MANAPY_PMI_H
#define MANAPY_PMI_H

#include <stdbool.h>
#include <stddef.h>

/* What has started this rank. NONE: it is alone. */
typedef enum { MPY_MANAGER_NONE, MPY_MANAGER_PMI, MPY_MANAGER_PMIX } mpy_manager_t;

typedef struct mpy_pmi {
    mpy_manager_t manager;
    int fd; /* -1: no connection */
    int rank, size;
    int local_size; /* number of ranks on this host; 0: unknown, but not all */
    size_t value_max; /* longest value that can safely be put under one key */
    char kvsname[256];
} mpy_pmi_t;

/* Were we started by hydra's mpirun (of MPICH or Intel MPI)? */
bool mpy_pmi_is_hydra(void);
/* Is it PMIx that tells this rank of the others? The variables of an outer launcher may still be there. */
bool mpy_pmi_uses_pmix(void);
bool mpy_pmi_open(mpy_pmi_t *p, char *error, size_t n);
/* Its fd has this number now. PMI: tells the MPI library, in the environment. */
void mpy_pmi_note_fd(mpy_manager_t manager, int fd);
bool mpy_pmi_put(mpy_pmi_t *p, const char *key, const char *value, char *error, size_t n);
/* `from`: the rank that has put the key, before the last barrier. */
bool mpy_pmi_get(mpy_pmi_t *p, int from, const char *key, char *value, size_t size, char *error, size_t n);
/* Called before this rank ends with an error that all ranks have. Rank 0 reports it and ends, and the process manager
 * then ends the others. So the others wait here. If this returns to them, nobody has ended them. */
void mpy_pmi_let_rank0_speak(mpy_manager_t manager, int rank);
bool mpy_pmi_barrier(mpy_pmi_t *p, char *error, size_t n);

#endif
