/* gids.h - GIDs by value. False: the port has no such GID now. For every layer from objects/ up. */
#ifndef MANAPY_RDMA_GIDS_H
#define MANAPY_RDMA_GIDS_H

#include "objects/objects.h"

bool shift_gid_at(struct ibv_context *context, uint8_t port, uint32_t index, struct ibv_gid_entry *gid);
bool shift_gid_find(struct ibv_context *context, struct ibv_gid_entry *gid); /* sets its current index */
/* The first GID of the same kind (RoCE version; IPv4 or IPv6) as `like`: no other kind reaches the peer's. */
bool shift_gid_choose(struct ibv_context *context, uint8_t port, const struct ibv_gid_entry *like,
                      struct ibv_gid_entry *gid);

#endif
