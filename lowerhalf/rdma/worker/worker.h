/* worker.h - the background thread of a device. For verbs/. */
#ifndef MANAPY_RDMA_WORKER_H
#define MANAPY_RDMA_WORKER_H

#include "objects/objects.h"

int shift_worker_start(shift_device_t *d);
void shift_worker_stop(shift_device_t *d);

/* in shadow.c; called by worker.c */
void shift_shadow_step(shift_device_t *d);

#endif
