/* device.h - devices, and the list of the objects of each. For the journal and every layer above it. */
#ifndef MANAPY_RDMA_DEVICE_H
#define MANAPY_RDMA_DEVICE_H

#include "objects/objects.h"

shift_device_t *shift_device_add(struct ibv_context *context);
void shift_device_free(shift_device_t *d);    /* when its worker has ended and its links are freed */
void shift_device_backups(shift_device_t *d); /* opens the backups; called by the worker */
void shift_object_add(shift_object_t *o, shift_kind_t kind, shift_device_t *d);
void shift_object_remove(shift_object_t *o); /* waits until the worker doesn't use it */
void shift_wake(shift_device_t *d);
int shift_dup(int fd); /* close-on-exec */

#endif
