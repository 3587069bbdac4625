/* device.c - a program's RNIC and its backups. */
#include "common/report.h"
#include "objects/device.h"
#include "objects/gids.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

enum { WAIT_S = 30 };

shift_map_t shift_devices = SHIFT_MAP_INIT, shift_pds = SHIFT_MAP_INIT, shift_qps = SHIFT_MAP_INIT,
            shift_cqs = SHIFT_MAP_INIT, shift_srqs = SHIFT_MAP_INIT;

/* Reads the names of a device's backups, in order, from MANAPY_SHIFT_BACKUP: "DEV,DEV" for every device (except
 * itself), or "DEFAULT:DEV[:DEV],..." */
static void name_backups(shift_device_t *d) {
    const char *list = getenv("MANAPY_SHIFT_BACKUP"), *own = d->path[0].name;
    char copy[1024], *rest = copy, *entry;
    d->paths = 1;
    if (!list)
        return;
    snprintf(copy, sizeof copy, "%s", list);
    while ((entry = strsep(&rest, ",")) && d->paths < SHIFT_PATHS) {
        char *name = strsep(&entry, ":");
        if (entry && strcmp(name, own) == 0) {
            while ((name = strsep(&entry, ":")) && d->paths < SHIFT_PATHS)
                snprintf(d->path[d->paths++].name, sizeof d->path[0].name, "%s", name);
            return;
        }
        if (!entry && *name && strcmp(name, own) != 0)
            snprintf(d->path[d->paths++].name, sizeof d->path[0].name, "%s", name);
    }
}

/* A link that comes back, or a switch that restarts, takes about ten seconds. We do not wait for a peer that has
 * ended. */
static uint64_t longest_wait(void) {
    const char *given = getenv("MANAPY_SHIFT_WAIT");
    char *end = NULL;
    unsigned long seconds = given ? strtoul(given, &end, 10) : WAIT_S;
    if (given && (!isdigit((unsigned char)*given) || *end)) { /* strtoul() takes "-1", too */
        shift_report("MANAPY_SHIFT_WAIT=%s is not a number of seconds: it is %d", given, WAIT_S);
        seconds = WAIT_S;
    }
    return seconds * UINT64_C(1000000000);
}

static bool is_rxe(const struct ibv_device *device) {
    /* Soft-RoCE has this attribute (its network device), hardware does not */
    char parent[sizeof device->ibdev_path + 16];
    snprintf(parent, sizeof parent, "%s/parent", device->ibdev_path);
    return access(parent, F_OK) == 0;
}

shift_device_t *shift_device_add(struct ibv_context *context) {
    shift_device_t *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->context = context;
    d->ops = context->ops;
    struct verbs_context *v = verbs_get_ctx(context);
    d->create_qp_ex = v ? v->create_qp_ex : NULL;
    d->create_cq_ex = v ? v->create_cq_ex : NULL;
    v = verbs_get_ctx_op(context, alloc_parent_domain); /* the table of an older library is too short to contain it */
    d->alloc_parent_domain = v ? v->alloc_parent_domain : NULL;
    while (d->id == 0)
        if (getrandom(&d->id, sizeof d->id, 0) != sizeof d->id)
            d->id = shift_now();
    d->rxe = is_rxe(context->device);
    d->tells_last = !d->rxe;
    d->longest_wait = longest_wait();
    snprintf(d->path[0].name, sizeof d->path[0].name, "%s", context->device->name);
    name_backups(d);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->idle, NULL);
    pthread_mutex_init(&d->mrs.lock, NULL);
    d->mrs.guarded = true;
    for (int p = 0; p < SHIFT_PATHS; p++)
        pthread_mutex_init(&d->path[p].qps.lock, NULL);
    d->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->wake < 0 || shift_map_put(&shift_devices, (uintptr_t)context, d) < 0) {
        if (d->wake >= 0)
            close(d->wake);
        free(d);
        return NULL;
    }
    return d;
}

/* Call it when the worker has ended and the links are freed. */
void shift_device_free(shift_device_t *d) {
    for (int p = 0; p < d->paths; p++) {
        shift_path_t *path = &d->path[p];
        if (path->cq)
            shift_real()->destroy_cq(path->cq);
        if (path->pd)
            shift_real()->dealloc_pd(path->pd);
        if (path->channel)
            shift_real()->destroy_comp_channel(path->channel);
        if (path->context)
            shift_real()->close_device(path->context);
        shift_map_free(&path->qps);
    }
    if (d->pd)
        shift_real()->dealloc_pd(d->pd);
    if (d->kv)
        shift_kv_close(d->kv);
    shift_map_free(&d->mrs);
    close(d->wake);
    free(d);
}

void shift_wake(shift_device_t *d) {
    uint64_t one = 1;
    if (write(d->wake, &one, sizeof one) < 0)
        return; /* the counter is full: the worker wakes anyway */
}

void shift_object_add(shift_object_t *o, shift_kind_t kind, shift_device_t *d) {
    o->kind = kind;
    o->device = d;
    o->waiting = d->paths > 1 && !(kind == SHIFT_QP && ((shift_qp_t *)o)->plain);
    pthread_mutex_lock(&d->lock);
    o->previous = d->last;
    o->next = NULL;
    *(d->last ? &d->last->next : &d->objects) = o;
    d->last = o;
    d->work |= o->waiting;
    pthread_mutex_unlock(&d->lock);
}

/* Returns with the device's lock held: the caller removes the object's shadows, unlocks and frees it. */
void shift_object_remove(shift_object_t *o) {
    shift_device_t *d = o->device;
    pthread_mutex_lock(&d->lock);
    while (o->busy)
        pthread_cond_wait(&d->idle, &d->lock);
    if (d->cursor == o)
        d->cursor = o->next;
    *(o->previous ? &o->previous->next : &d->objects) = o->next;
    *(o->next ? &o->next->previous : &d->last) = o->previous;
}

/* In manapy's lower half, dup returns a number that the program does not use. -1 and errno on failure. */
int shift_dup(int fd) {
    int copy = dup(fd);
    if (copy >= 0)
        fcntl(copy, F_SETFD, FD_CLOEXEC);
    return copy;
}

/* Moves a descriptor whose number the kernel has chosen. */
static void move_away(int *fd) {
    int moved = shift_dup(*fd);
    if (moved < 0)
        return;
    close(*fd);
    *fd = moved;
}

static const char *open_path(shift_path_t *path, uint8_t port, const struct ibv_gid_entry *like) {
    const shift_real_t *real = shift_real();
    int n;
    struct ibv_device **list = real->get_device_list(&n);
    for (int i = 0; list && i < n; i++)
        if (strcmp(list[i]->name, path->name) == 0)
            path->context = real->open_device(list[i]);
    if (list)
        real->free_device_list(list);
    if (!path->context)
        return "there is no such RNIC here";
    move_away(&path->context->async_fd);
    struct ibv_port_attr attr;
    path->port = port;
    if (shift_query_port(path->context, port, &attr) != 0) {
        path->port = 1;
        if (shift_query_port(path->context, 1, &attr) != 0)
            return "its port can't be queried";
    }
    path->port_up = attr.state == IBV_PORT_ACTIVE;
    path->lid = attr.lid;
    path->mtu = attr.active_mtu;
    path->ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    if (path->ethernet && !shift_gid_choose(path->context, path->port, like, &path->gid))
        return "it has no GID of the kind that the default RNIC uses (RoCE version; IPv4 or IPv6)";
    path->channel = real->create_comp_channel(path->context);
    if (path->channel)
        move_away(&path->channel->fd);
    path->pd = real->alloc_pd(path->context);
    path->cq = path->channel ? real->create_cq(path->context, 4096, NULL, path->channel, 0) : NULL;
    if (!path->pd || !path->cq || path->cq->context->ops.req_notify_cq(path->cq, 0) != 0)
        return "its resources are exhausted (or RLIMIT_MEMLOCK is too low)";
    return NULL;
}

void shift_device_backups(shift_device_t *d) {
    struct ibv_gid_entry like = {.gid_type = IBV_GID_TYPE_ROCE_V2};
    uint8_t port = 1;
    pthread_mutex_lock(&d->lock);
    for (shift_object_t *o = d->objects; o; o = o->next) { /* as the first connected queue pair does */
        shift_qp_t *q = (shift_qp_t *)o;
        if (o->kind == SHIFT_QP && !q->plain && (q->attr_mask & IBV_QP_AV)) {
            port = q->attr.ah_attr.port_num;
            if (q->has_gid)
                like = q->gid;
            break;
        }
    }
    pthread_mutex_unlock(&d->lock);
    for (int p = 0; p < d->paths; p++) {
        const char *why = open_path(&d->path[p], port, &like);
        if (!why)
            d->path[p].usable = true;
        else
            shift_report("%s can't be %s: %s", d->path[p].name, p ? "a backup" : "opened a second time", why);
    }
}
