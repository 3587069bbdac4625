/* regions.h - memory regions on the backups. For worker/ and verbs/. */
#ifndef MANAPY_RDMA_REGIONS_H
#define MANAPY_RDMA_REGIONS_H

#include "objects/objects.h"

struct ibv_mr *shift_register(struct ibv_pd *pd, const shift_memory_t *m); /* on a backup */
/* call it when no backup needs the memory any more */
void shift_memory_close(shift_memory_t *m);

#endif
