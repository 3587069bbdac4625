/* connections.c - the cost of RDMA's control verbs, and many idle connections.
 *
 *     connections verbs CYCLES HOLD_MS DEVICE DEVICE     time of each verb; CYCLES times, a connection of the two
 *                                                        devices is made, held and taken down
 *     connections idle N DEVICE DEVICE                   N connections of the two devices; prints "ready PID"; a signal
 *                                                        ends it
 *
 * An ordinary verbs program. Every verb is executed for both devices in each cycle. The program reports the median,
 * smallest and ("slowest") largest time of each verb. "connected" is the time at which a connection was made (ns,
 * CLOCK_MONOTONIC): other programs measure from there.
 */
#include "../batches.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum {
    ENDS = 2,
    CYCLES_MAX = 200,
    VERBS_MAX = 32,
    SIZES = 3,
    GID_INDEX = 1,
    SENDS = 512,
    RECEIVES = 256 /* as in the SHIFT paper, 4.1 */
};
static const long sizes[SIZES] = {4 << 10, 1 << 20, 16 << 20};

typedef struct {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr[SIZES];
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    union ibv_gid gid;
} end_t;

static struct {
    const char *name;
    long bytes;
    double samples[ENDS * CYCLES_MAX];
    int n;
} verbs[VERBS_MAX];
static int n_verbs;

static void check(int right, const char *what) {
    if (right) return;
    fprintf(stderr, "connections: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void sample(const char *name, long bytes, double ns) {
    int i = 0;
    while (i < n_verbs && (verbs[i].bytes != bytes || strcmp(verbs[i].name, name))) i++;
    if (i == n_verbs) verbs[n_verbs].name = name, verbs[n_verbs++].bytes = bytes;
    verbs[i].samples[verbs[i].n++] = ns;
}

#define TIMED(NAME, BYTES, CALL) \
    do { \
        double begin_ = bench_now_ns(); \
        int right_ = (CALL); \
        double ns_ = bench_now_ns() - begin_; \
        check(right_, NAME); \
        sample(NAME, BYTES, ns_); \
    } while (0)

static struct ibv_device *device(const char *name) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (; list && *list; list++)
        if (!strcmp(ibv_get_device_name(*list), name)) return *list;
    errno = ENODEV;
    check(0, name);
    return NULL;
}

static struct ibv_qp *make_qp(end_t *e) {
    struct ibv_qp_init_attr init = {
        .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC, .cap = {SENDS, RECEIVES, 1, 1, 0}};
    return ibv_create_qp(e->pd, &init);
}

static void open_end(end_t *e, const char *name) {
    struct ibv_device *d = device(name);
    TIMED("ibv_open_device", 0, (e->context = ibv_open_device(d)) != NULL);
    TIMED("ibv_alloc_pd", 0, (e->pd = ibv_alloc_pd(e->context)) != NULL);
    TIMED("ibv_create_cq", 0, (e->cq = ibv_create_cq(e->context, SENDS, NULL, NULL, 0)) != NULL);
    check(!ibv_query_gid(e->context, 1, GID_INDEX, &e->gid), "ibv_query_gid");
}

static void connect_qp(struct ibv_qp *qp, const struct ibv_qp *peer, const union ibv_gid *gid) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    TIMED("ibv_modify_qp, INIT", 0,
          !ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                             .path_mtu = IBV_MTU_1024,
                             .dest_qp_num = peer->qp_num,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 12};
    a.ah_attr = (struct ibv_ah_attr){
        .is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = GID_INDEX, .hop_limit = 1}};
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    TIMED("ibv_modify_qp, RTR", 0, !ibv_modify_qp(qp, &a, mask));
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 6, .max_rd_atomic = 1};
    mask =
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    TIMED("ibv_modify_qp, RTS", 0, !ibv_modify_qp(qp, &a, mask));
}

static void cycle(char *const *names, char *memory, long hold_ms) {
    end_t end[ENDS] = {0};
    for (int i = 0; i < ENDS; i++) {
        end_t *e = &end[i];
        open_end(e, names[i]);
        for (int k = 0; k < SIZES; k++)
            TIMED("ibv_reg_mr", sizes[k],
                  (e->mr[k] = ibv_reg_mr(e->pd, memory, (size_t)sizes[k],
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
        TIMED("ibv_create_qp", 0, (e->qp = make_qp(e)) != NULL);
    }
    for (int i = 0; i < ENDS; i++) connect_qp(end[i].qp, end[!i].qp, &end[!i].gid);
    double now = bench_now_ns();
    bench_print("connected", 0, "ns", now, now);
    usleep((useconds_t)hold_ms * 1000);
    for (int i = 0; i < ENDS; i++) {
        end_t *e = &end[i];
        TIMED("ibv_destroy_qp", 0, !ibv_destroy_qp(e->qp));
        TIMED("ibv_destroy_cq", 0, !ibv_destroy_cq(e->cq));
        for (int k = 0; k < SIZES; k++) TIMED("ibv_dereg_mr", sizes[k], !ibv_dereg_mr(e->mr[k]));
        TIMED("ibv_dealloc_pd", 0, !ibv_dealloc_pd(e->pd));
        TIMED("ibv_close_device", 0, !ibv_close_device(e->context));
    }
}

static int time_verbs(int cycles, long hold_ms, char *const *names) {
    char *memory = malloc((size_t)sizes[SIZES - 1]), name[80];
    check(memory && cycles > 0 && cycles <= CYCLES_MAX, "memory or number of cycles");
    memset(memory, 1, (size_t)sizes[SIZES - 1]);
    for (int i = 0; i < cycles; i++) cycle(names, memory, hold_ms);
    for (int i = 0; i < n_verbs; i++) {
        double median = bench_median(verbs[i].samples, verbs[i].n);
        bench_print(verbs[i].name, verbs[i].bytes, "ns", median, verbs[i].samples[0]);
        snprintf(name, sizeof name, "%s, slowest", verbs[i].name);
        bench_print(name, verbs[i].bytes, "ns", verbs[i].samples[verbs[i].n - 1], verbs[i].samples[verbs[i].n - 1]);
    }
    return 0;
}

static int idle(int n, char *const *names) {
    end_t end[ENDS] = {0};
    for (int i = 0; i < ENDS; i++) open_end(&end[i], names[i]);
    for (int k = 0; k < n; k++) {
        struct ibv_qp *qp[ENDS];
        for (int i = 0; i < ENDS; i++) check((qp[i] = make_qp(&end[i])) != NULL, "ibv_create_qp");
        for (int i = 0; i < ENDS; i++) {
            n_verbs = 0; /* not to be reported */
            memset(verbs, 0, sizeof verbs);
            connect_qp(qp[i], qp[!i], &end[!i].gid);
        }
    }
    printf("ready %d %.0f\n", (int)getpid(), bench_now_ns());
    fflush(stdout);
    pause();
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "verbs")) return time_verbs(atoi(argv[2]), atol(argv[3]), argv + 4);
    if (argc == 5 && !strcmp(argv[1], "idle")) return idle(atoi(argv[2]), argv + 3);
    fputs("connections verbs CYCLES HOLD_MS DEVICE DEVICE | connections idle N DEVICE DEVICE\n", stderr);
    return 2;
}
