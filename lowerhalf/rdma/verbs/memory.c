/* memory.c - protection domains and memory regions of the program: the provider's verb first, then a record of it for
 * the backups (shadow.c).
 *
 * Invariants:
 * - A region is recorded under its lkey as long as the provider has it. If a region can't be registered on a backup,
 *   only the requests that use it are affected.
 * - Backups never keep the program from locking memory: what they have locked is released when the limit is reached.
 */
#include "common/report.h"
#include "journal/journal.h"
#include "objects/device.h"
#include "objects/regions.h"
#include "verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = shift_real()->alloc_pd(context);
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)context);
    shift_pd_t *p = pd && d ? calloc(1, sizeof *p) : NULL;
    if (p && shift_map_put(&shift_pds, (uintptr_t)pd, p) == 0) {
        p->pd = pd;
        p->users = 1;
        shift_object_add(&p->o, SHIFT_PD, d);
    } else {
        free(p);
    }
    return pd;
}

/* For the backups it is the protection domain that it was made of. A thread domain is omitted: it would let the
 * provider omit its locks, but the worker uses the program's objects, too. */
struct ibv_pd *shift_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr) {
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)context);
    struct ibv_parent_domain_init_attr mine = *attr;
    if (d->paths > 1)
        mine.td = NULL;
    struct ibv_pd *pd = d->alloc_parent_domain(context, &mine);
    shift_pd_t *p = pd ? shift_map_get(&shift_pds, (uintptr_t)attr->pd) : NULL;
    if (p && shift_map_put(&shift_pds, (uintptr_t)pd, p) == 0)
        __atomic_add_fetch(&p->users, 1, __ATOMIC_RELAXED);
    return pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd) {
    shift_pd_t *p = shift_map_get(&shift_pds, (uintptr_t)pd);
    if (!p)
        return shift_real()->dealloc_pd(pd);
    shift_map_remove(&shift_pds, (uintptr_t)pd); /* before the provider may use the address again */
    int r = shift_real()->dealloc_pd(pd);
    if (r != 0) { /* it is still in use */
        shift_map_put(&shift_pds, (uintptr_t)pd, p);
        return r;
    }
    if (__atomic_sub_fetch(&p->users, 1, __ATOMIC_ACQ_REL) == 0) {
        shift_object_remove(&p->o);
        for (int i = 1; i < SHIFT_PATHS; i++)
            if (p->on[i])
                shift_real()->dealloc_pd(p->on[i]);
        pthread_mutex_unlock(&p->o.device->lock);
        free(p);
    }
    return 0;
}

static void free_mr(shift_mr_t *m) {
    shift_memory_close(&m->memory);
    free(m);
}

/* `asked`: the arguments, also for the backups. */
static struct ibv_mr *record_mr(struct ibv_pd *pd, struct ibv_mr *mr, const shift_memory_t *asked) {
    shift_pd_t *p = mr ? shift_map_get(&shift_pds, (uintptr_t)pd) : NULL;
    shift_mr_t *m = p ? calloc(1, sizeof *m) : NULL;
    if (!m)
        return mr;
    m->pd = p;
    m->mr = mr;
    m->memory = *asked;
    m->memory.fd = -1;
    if (asked->dmabuf && p->o.device->paths > 1 && (m->memory.fd = shift_dup(asked->fd)) < 0)
        shift_report("no descriptor for dmabuf memory (%s): requests that use it cannot move to a backup",
                     strerror(errno));
    pthread_mutex_lock(&p->o.device->lock);
    int r = shift_map_put(&p->o.device->mrs, mr->lkey, m);
    pthread_mutex_unlock(&p->o.device->lock);
    if (r < 0) {
        free_mr(m);
        return mr;
    }
    shift_object_add(&m->o, SHIFT_MR, p->o.device);
    shift_wake(p->o.device);
    return mr;
}

/* Memory is limited (RLIMIT_MEMLOCK): registrations on backups must not keep the program from registering its own.
 * Returns whether any were released. */
static bool give_back_mrs(const struct ibv_pd *pd) {
    shift_device_t *d = errno == ENOMEM ? shift_map_get(&shift_devices, (uintptr_t)pd->context) : NULL;
    bool any = false;
    if (!d)
        return false;
    pthread_mutex_lock(&d->lock);
    bool away = false;
    for (shift_object_t *o = d->objects; o; o = o->next)
        away |= o->kind == SHIFT_QP && !((shift_qp_t *)o)->direct;
    for (shift_object_t *o = d->objects; o && !away; o = o->next) {
        shift_mr_t *m = (shift_mr_t *)o;
        if (o->kind != SHIFT_MR)
            continue;
        m->given_back = true;
        if (o->busy) { /* it is being registered: start again when this has finished */
            pthread_cond_wait(&d->idle, &d->lock);
            o = d->objects;
            continue;
        }
        for (int i = 1; i < d->paths; i++)
            if (m->on[i] && shift_real()->dereg_mr(m->on[i]) == 0) {
                m->on[i] = NULL;
                any = true;
            }
    }
    pthread_mutex_unlock(&d->lock);
    if (any)
        shift_report("lockable memory is exhausted: registrations on the backups of %s are released; requests that use "
                     "it cannot move to a backup",
                     d->path[0].name);
    return any;
}

/* libibverbs may register by its own public verbs: its ibv_reg_mr jumps to ibv_reg_mr_iova2, and so to ours. Only the
 * verb that the program has called records the region. */
static __thread bool registering;

/* Calls `verb`, again if it fails and registrations on backups can be released. Records the region. */
#define REGISTER(pd, verb, asked)                                                                                      \
    ({                                                                                                                 \
        bool within_ = registering;                                                                                    \
        registering = true;                                                                                            \
        struct ibv_mr *mr_ = (verb);                                                                                   \
        if (!mr_ && !within_ && give_back_mrs(pd))                                                                     \
            mr_ = (verb);                                                                                              \
        registering = within_;                                                                                         \
        within_ ? mr_ : record_mr(pd, mr_, asked);                                                                     \
    })

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    shift_memory_t asked = {.address = addr, .length = length, .iova = (uintptr_t)addr, .access = access};
    return REGISTER(pd, shift_real()->reg_mr(pd, addr, length, access), &asked);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) {
    shift_memory_t asked = {.address = addr, .length = length, .iova = iova, .access = access};
    return REGISTER(pd, shift_real()->reg_mr_iova(pd, addr, length, iova, access), &asked);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access) {
    shift_memory_t asked = {.address = addr, .length = length, .iova = iova, .access = (int)access};
    return REGISTER(pd, shift_real()->reg_mr_iova2(pd, addr, length, iova, access), &asked);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                        int access) {
    shift_memory_t asked = {
        .length = length, .iova = iova, .access = access, .dmabuf = true, .fd = fd, .offset = offset};
    return REGISTER(pd, shift_real()->reg_dmabuf_mr(pd, offset, length, iova, fd, access), &asked);
}

/* The record of a region; NULL: it has none. */
static shift_mr_t *record_of(const struct ibv_mr *mr) {
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)mr->context);
    if (!d)
        return NULL;
    pthread_mutex_lock(&d->lock);
    shift_mr_t *m = shift_map_get(&d->mrs, mr->lkey);
    pthread_mutex_unlock(&d->lock);
    return m && m->mr == mr ? m : NULL;
}

static void forget_mr(struct ibv_mr *mr) {
    shift_mr_t *m = record_of(mr);
    if (!m)
        return;
    shift_device_t *d = m->o.device;
    char key[64];
    shift_object_remove(&m->o);
    shift_map_remove(&d->mrs, mr->lkey);
    if (m->told) {
        shift_mr_key(key, d->id, m->index);
        shift_keys_withdraw(d, key, true);
    }
    for (int i = 1; i < SHIFT_PATHS; i++)
        if (m->on[i])
            shift_real()->dereg_mr(m->on[i]);
    pthread_mutex_unlock(&d->lock);
    free_mr(m);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr) {
    forget_mr(mr);
    return shift_real()->dereg_mr(mr);
}

EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access) {
    shift_mr_t *m = record_of(mr);
    shift_memory_t now = m ? m->memory : (shift_memory_t){0};
    forget_mr(mr);
    int r = shift_real()->rereg_mr(mr, flags, pd, addr, length, access);
    if (!m || (r != 0 && r != IBV_REREG_MR_ERR_INPUT))
        return r;
    if (r == 0 && (flags & IBV_REREG_MR_CHANGE_ACCESS))
        now.access = access;
    if (r == 0 && (flags & IBV_REREG_MR_CHANGE_TRANSLATION))
        now = (shift_memory_t){.address = addr, .length = length, .iova = (uintptr_t)addr, .access = now.access};
    if (now.dmabuf) /* only the program may still have its descriptor */
        shift_report("dmabuf memory that is registered again is not registered on backups: requests that use it cannot "
                     "move to a backup");
    else
        record_mr(mr->pd, mr, &now);
    return r;
}
