/* agreement.c - the ranks of a step agree whether a checkpoint is undamaged, before there is a job that continues it.
 * Lower half; libc; still one thread.
 *
 *   every rank: check its own image -> put "W", or "D" and the reason -> barrier
 *   rank 0: get all -> go on, or ask the chain again
 *
 * Invariants
 *  1. No process reads the image of another rank. All images are read at the same time.
 *  2. Nothing has happened yet that a failure would have to undo: there is no job, no coordinator, no MPI, and no
 *     memory of the program. So the ranks can check the next older checkpoint under the same mpirun.
 *  3. A rank that ends before the barrier ends the start of all: the process manager ends the other ranks.
 *  4. The restore reads the image again (image/restore.c), from the page cache if the node's memory holds its images,
 *     and checks it again: the image can be used only if these bytes are good, too.
 */
#include "agreement.h"

#include <stdio.h>
#include <string.h>

#include "manager/board.h"

enum { NAME_MAX_BYTES = 48 };

static void name_of(char name[NAME_MAX_BYTES], int round, int rank) {
    snprintf(name, NAME_MAX_BYTES, "%d-rank-%d", round, rank);
}

bool mpy_agreement_lead(mpy_pmi_t *pmi, int round, const char *checkpoint, mpy_agreement_check_t *check,
                        char damage[MPY_DAMAGE_MAX], char *error, size_t n) {
    bool is_whole = check(checkpoint, pmi->rank, pmi->size, damage, MPY_DAMAGE_MAX);
    if (is_whole) damage[0] = '\0';
    if (pmi->manager == MPY_MANAGER_NONE) return true;
    if (!mpy_pmi_barrier(pmi, error, n)) return false;
    for (int rank = 1; is_whole && rank < pmi->size; rank++) {
        char name[NAME_MAX_BYTES], text[MPY_DAMAGE_MAX + 1];
        name_of(name, round, rank);
        if (!mpy_board_get(pmi, rank, name, text, sizeof text, error, n)) return false;
        is_whole = text[0] == 'W';
        if (!is_whole) snprintf(damage, MPY_DAMAGE_MAX, "%s", text + 1);
    }
    return true;
}

bool mpy_agreement_follow(mpy_pmi_t *pmi, int round, const char *checkpoint, mpy_agreement_check_t *check, char *error,
                          size_t n) {
    char name[NAME_MAX_BYTES], text[MPY_DAMAGE_MAX + 1] = "D";
    if (check(checkpoint, pmi->rank, pmi->size, text + 1, sizeof text - 1)) strcpy(text, "W");
    name_of(name, round, pmi->rank);
    return mpy_board_put(pmi, name, text, error, n) && mpy_pmi_barrier(pmi, error, n);
}
