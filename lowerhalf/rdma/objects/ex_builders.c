/* ex_builders.c - which functions an extended queue pair has between wr_start and wr_complete: the provider's, or those
 * that draft requests (extended.c). */
#include "objects/slow_path.h"

#include <stddef.h>
#include <string.h>

/* The range in struct ibv_qp_ex of the functions between wr_start and wr_complete. */
enum { BUILDERS = offsetof(struct ibv_qp_ex, wr_atomic_cmp_swp), BUILDERS_END = offsetof(struct ibv_qp_ex, wr_start) };

void shift_build_with(struct ibv_qp_ex *x, const struct ibv_qp_ex *functions) {
    memcpy((char *)x + BUILDERS, (const char *)functions + BUILDERS, BUILDERS_END - BUILDERS);
}

/* Device lock held. False: a draft is in progress, so it can't end yet. Otherwise the next section may be straight; the
 * caller decides this before shift_draft_ended. */
bool shift_draft_ends(shift_qp_t *q) {
    if (!q->provider)
        return true;
    if (pthread_mutex_trylock(&q->drafting) != 0)
        return false;
    if (q->drafted && q->rewinds) {
        shift_build_with(shift_real()->qp_to_qp_ex(q->qp), q->provider);
        q->drafted = false;
    }
    return true;
}

void shift_draft_ended(shift_qp_t *q) {
    if (q->provider)
        pthread_mutex_unlock(&q->drafting);
}
