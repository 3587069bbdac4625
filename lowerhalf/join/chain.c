/* chain.c - manapy-launch in a chain of allocations: a script that runs again finds the state of its steps.
 * Lower half; libc; still one thread.
 *
 * `manapy slurm` and `manapy run` run the user's script (or mpirun command) again in every allocation, with
 * MANAPY_CHAIN set to the chain's directory. Rank 0 of every manapy-launch in it asks `manapy _step`
 * (manapy/chain/steps.py), which knows the state of this step: start it, continue it from a checkpoint, or return its
 * earlier exit code. If a rank then finds its image of that checkpoint damaged, rank 0 asks again.
 *
 * Invariants
 *  1. All ranks do what rank 0 was told: this is part of what the rendezvous publishes.
 *  2. The helper gets only standard error from the rank, and has ended before anything else is opened.
 */
#define _GNU_SOURCE
#include "chain.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/reason.h"
#include "command.h"

enum { ARGUMENTS_MAX = 4096 };

bool mpy_chain_active(void) {
    const char *dir = getenv("MANAPY_CHAIN");
    return dir != NULL && dir[0] != '\0';
}

bool mpy_chain_ask(char *const *argv, const char *dir, int ranks, const char *damage, mpy_chain_step_t *step,
                   char *error, size_t n) {
    char path[PATH_MAX], number[16], answer[2048];
    if (!mpy_command_path(path, error, n)) return false;
    snprintf(number, sizeof number, "%d", ranks);
    const char *helper[ARGUMENTS_MAX] = {path, "_step", "--ranks", number};
    int count = 4;
    if (dir != NULL) helper[count++] = "--dir", helper[count++] = dir;
    if (damage[0] != '\0') {
        helper[count++] = "--damaged", helper[count++] = step->path;
        helper[count++] = "--because", helper[count++] = damage;
    }
    helper[count++] = "--";
    for (; *argv != NULL && count < ARGUMENTS_MAX - 1; argv++) helper[count++] = *argv;
    if (!mpy_command_ask((char *const *)helper, answer, sizeof answer, error, n)) return false;
    char *rest = strchr(answer, ' ');
    if (rest != NULL) *rest++ = '\0';
    if (rest == NULL || strlen(rest) >= sizeof step->path)
        return mpy_refuse(error, n, "`manapy _step` gave an unknown answer: %.200s", answer);
    if (strcmp(answer, "ERROR") == 0) return mpy_refuse(error, n, "%s", rest);
    step->verdict = strcmp(answer, "NEW") == 0      ? MPY_CHAIN_NEW
                    : strcmp(answer, "RESUME") == 0 ? MPY_CHAIN_RESUME
                                                    : MPY_CHAIN_DONE;
    step->code = step->verdict == MPY_CHAIN_DONE ? atoi(rest) : 0;
    snprintf(step->path, sizeof step->path, "%s", rest);
    return true;
}
