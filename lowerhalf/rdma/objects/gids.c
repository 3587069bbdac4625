/* gids.c - the GIDs of RNICs, by value.
 *
 * A queue pair gets the index of a GID in its port's table. If an address or a link disappears and comes back, the same
 * GID may be at another index: others may have been added before, and a queue pair that uses the old entry keeps the
 * kernel from filling it again. So we store the GID, and look up its index before each use.
 */
#include "objects/gids.h"

#include <string.h>

enum { TABLE = 256 }; /* an index has 8 bits */

bool shift_gid_at(struct ibv_context *context, uint8_t port, uint32_t index, struct ibv_gid_entry *gid) {
    const shift_real_t *real = shift_real();
    struct ibv_gid_entry found = {.gid_index = index, .port_num = port};
    int r = real->query_gid_ex ? real->query_gid_ex(context, port, index, &found, 0, sizeof found)
                               : real->query_gid(context, port, (int)index, &found.gid);
    if (r == 0)
        *gid = found;
    return r == 0;
}

static bool is_at(struct ibv_context *context, const struct ibv_gid_entry *wanted, uint32_t index) {
    struct ibv_gid_entry found;
    if (!shift_gid_at(context, (uint8_t)wanted->port_num, index, &found) || found.gid_type != wanted->gid_type)
        return false;
    return memcmp(found.gid.raw, wanted->gid.raw, sizeof found.gid.raw) == 0;
}

bool shift_gid_find(struct ibv_context *context, struct ibv_gid_entry *gid) {
    if (is_at(context, gid, gid->gid_index))
        return true;
    for (uint32_t i = 0; i < TABLE; i++)
        if (is_at(context, gid, i)) {
            gid->gid_index = i;
            return true;
        }
    return false;
}

static bool is_v4(const union ibv_gid *gid) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

bool shift_gid_choose(struct ibv_context *context, uint8_t port, const struct ibv_gid_entry *like,
                      struct ibv_gid_entry *gid) {
    for (uint32_t i = 0; shift_real()->query_gid_ex && i < TABLE; i++) /* without query_gid_ex the types are unknown */
        if (shift_gid_at(context, port, i, gid) && gid->gid_type == like->gid_type &&
            is_v4(&gid->gid) == is_v4(&like->gid))
            return true;
    return false;
}
