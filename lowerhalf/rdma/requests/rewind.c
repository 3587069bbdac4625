/* rewind.c - selects the backend of rewind.h that reads the queues of a queue pair. */
#include "requests/rewind.h"

static const shift_rewind_t *const backends[] = {&shift_rewind_rxe, &shift_rewind_mlx5};

const shift_rewind_t *shift_rewind_for(struct ibv_qp *qp, const struct ibv_qp_init_attr *made, void **state) {
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (qp->qp_type == IBV_QPT_RC && backends[i]->serves(qp->context->device))
            return backends[i]->attach(qp, made, state) == 0 ? backends[i] : NULL;
    return NULL;
}
