/* chain.h - see chain.c. */
#ifndef MANAPY_CHAIN_H
#define MANAPY_CHAIN_H

#include <stdbool.h>
#include <stddef.h>

/* NEW is also the verdict outside chains. */
typedef enum { MPY_CHAIN_NEW, MPY_CHAIN_RESUME, MPY_CHAIN_DONE } mpy_chain_verdict_t;

typedef struct mpy_chain_step {
    mpy_chain_verdict_t verdict;
    char path[1024]; /* NEW: its job directory; RESUME: the checkpoint to continue */
    int code;        /* DONE: exit code of the step */
} mpy_chain_step_t;

/* Is this a step of a chain (MANAPY_CHAIN is set)? */
bool mpy_chain_active(void);
/* Rank 0 asks what to do with `argv` on this number of ranks. `dir`: --dir, or NULL. `damage`: why the checkpoint of
 * the last answer, which `step` still contains, cannot be used; empty in the first question. Returns false with one
 * line in `error`. */
bool mpy_chain_ask(char *const *argv, const char *dir, int ranks, const char *damage, mpy_chain_step_t *step,
                   char *error, size_t n);

#endif
