/* Registers memory, connects a queue pair to itself, waits until SHIFT has registered the memory on a backup, too (then
 * it is pinned twice), and registers more.
 *
 *     late_memory DEVICE BYTES MORE       prints "ok"
 */
#include "endpoint.h"

static long pinned(void) {
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "VmPin: %ld kB", &kib);
    fclose(f);
    return kib * 1024;
}

static void must_register(struct ibv_pd *pd, size_t bytes) {
    if (!ibv_reg_mr(pd, malloc(bytes), bytes, IBV_ACCESS_LOCAL_WRITE))
        fail("registration of %zu bytes: %s", bytes, strerror(errno));
}

int main(int argc, char **argv) {
    if (argc != 4)
        fail("late_memory DEVICE BYTES MORE");
    struct ibv_context *context = open_device(argv[1]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    link_t link = {.gid_index = 1, .timeout = 14, .retry = 3};
    long before = pinned(), bytes = atol(argv[2]);
    must_register(pd, (size_t)bytes);
    address_t mine = {.number = qp->qp_num};
    query_address(context, &link, &mine);
    connect_pair(qp, &link, &mine, &mine);
    while (pinned() < before + 2 * bytes)
        usleep(1000);
    must_register(pd, (size_t)atol(argv[3]));
    puts("ok");
    return 0;
}
