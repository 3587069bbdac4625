/* regions.c - memory regions on the backups. memory.c handles those of the program. */
#include "objects/regions.h"

#include <unistd.h>

/* Registers the region on a backup. */
struct ibv_mr *shift_register(struct ibv_pd *pd, const shift_memory_t *m) {
    const shift_real_t *real = shift_real();
    if (m->dmabuf)
        return real->reg_dmabuf_mr(pd, m->offset, m->length, m->iova, m->fd, m->access);
    if (real->reg_mr_iova2)
        return real->reg_mr_iova2(pd, m->address, m->length, m->iova, (unsigned)m->access);
    return real->reg_mr(pd, m->address, m->length, m->access);
}

/* Call it when no backup needs the memory any more. */
void shift_memory_close(shift_memory_t *m) {
    if (m->dmabuf && m->fd >= 0)
        close(m->fd);
    m->fd = -1;
}
