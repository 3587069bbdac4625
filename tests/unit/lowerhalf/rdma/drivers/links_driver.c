/* links_driver.c - links to many peers that don't exist, over the null provider.
 *
 *   links_driver LIBRARY PEERS
 *
 * Checks that the completion queue of the control queue pairs has room for everything that may be outstanding.
 */
#include "check.h"
#include "common/report.h"
#include "objects/device.h"
#include "switch_frame.h"

#include <stdlib.h>
#include <unistd.h>

static void nothing(shift_link_t *l, const shift_message_t *m) { (void)l, (void)m; }

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
