/* links_driver.c - links of a process whose only queue pair is connected to itself, over the null provider.
 *
 *   links_driver LIBRARY PEERS   makes links to other peers, which don't exist; checks that the completion queue of the
 *                                control queue pairs has room for everything that may be outstanding
 *   links_driver LIBRARY dead    nothing arrives on the backup; prints the events of the queue pair
 *   links_driver LIBRARY missing prints how often the key-value store is asked in a second for a key that isn't there
 */
#include "check.h"
#include "common/report.h"
#include "objects/device.h"
#include "switch_frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void nothing(shift_link_t *l, const shift_message_t *m) { (void)l, (void)m; }

static struct ibv_qp *control_on_backup(const shift_device_t *d) {
    return d->links && d->links->on[1].up ? d->links->on[1].qp : NULL;
}

static void die(shift_device_t *d) {
    uint32_t told = 0;
    for (uint64_t end = shift_now() + PATIENCE_S * 1000000000ull; told < 2; usleep(1000)) {
        CHECK(shift_now() < end);
        pthread_mutex_lock(&d->lock);
        struct ibv_qp *control = control_on_backup(d);
        told = d->event_next;
        if (control && told == 1)
            fail(control, IBV_WC_RETRY_EXC_ERR); /* it has a message to send, at least */
        pthread_mutex_unlock(&d->lock);
    }
    for (uint32_t i = 0; i < told; i++) {
        char event[32] = "";
        CHECK(sscanf(strstr(d->events[i].json, "\"event\":\""), "\"event\":\"%31[^\"]", event) == 1);
        printf("%s ", event);
    }
}

static void miss(shift_device_t *d) {
    unsigned before = 0;
    uint64_t begun = 0;
    for (uint64_t now = shift_now(), end = now + PATIENCE_S * 1000000000ull; !begun || now < begun + 1000000000;
         now = shift_now(), usleep(1000)) {
        CHECK(now < end);
        pthread_mutex_lock(&d->lock);
        if (!begun && d->links && d->links->connected) {
            begun = now;
            before = finds;
        }
        CHECK(!begun || !shift_link_rkey(d->links, 77));
        pthread_mutex_unlock(&d->lock);
        shift_wake(d); /* as a queue pair that waits for the key does */
    }
    printf("%u", finds - before);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    find_library(argv[1]);
    struct ibv_device **list = real.get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(*list);
    shift_device_t *d = shift_map_get(&shift_devices, (uintptr_t)context);
    CHECK(d && d->paths == 2);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    connect_qp(qp, qp, IBV_MTU_1024); /* the worker starts */
    if (!strcmp(argv[2], "dead")) {
        die(d);
        return 0;
    }
    if (!strcmp(argv[2], "missing")) {
        miss(d);
        return 0;
    }
    int peers = atoi(argv[2]);
    pthread_mutex_lock(&d->lock);
    for (uint64_t end = shift_now() + PATIENCE_S * 1000000000ull; !d->path[1].usable;) {
        CHECK(shift_now() < end);
        pthread_mutex_unlock(&d->lock);
        usleep(1000);
        pthread_mutex_lock(&d->lock);
    }
    for (int i = 0; i < peers; i++) {
        shift_link_t *l = shift_link_find(d, (uint64_t)i + 1, nothing);
        for (int p = 0; p < d->paths; p++)
            CHECK(l && l->on[p].qp);
    }
    for (int p = 0; p < d->paths; p++)
        CHECK(d->path[p].cq->cqe >= peers * (2 * SHIFT_LINK_DEPTH + 1));
    pthread_mutex_unlock(&d->lock);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    real.free_device_list(list);
    return 0;
}
