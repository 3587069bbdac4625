/* switch_frame.c - what stands around the interposer's own code in switch_driver.c and switch_cases.c: the null
 * provider's library, and the key-value store. Both ends of each connection are in this process; switch_link.c is the
 * link. */
#include "switch_frame.h"
#include "check.h"
#include "common/report.h"
#include "objects/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { KEYS = 512 };

/* ---- the real library ---- */

static void *library;
shift_real_t real;

const shift_real_t *shift_real(void) { return &real; }

int shift_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr) {
    struct verbs_context *v = verbs_get_ctx(context);
    return v->query_port(context, port, attr, sizeof *attr);
}

static void *null_function(const char *name) {
    void *f = dlsym(library, name);
    CHECK(f);
    return f;
}

bool (*deliver)(struct ibv_qp *, struct ibv_qp *, bool);
void (*fail)(struct ibv_qp *, enum ibv_wc_status);
void (*fail_receive)(struct ibv_qp *, enum ibv_wc_status);
void (*refuse)(const char *, int, unsigned);
void (*async)(struct ibv_context *, const struct ibv_async_event *);
struct ibv_qp *(*next_qp)(const struct ibv_qp *);
void (*set_gid)(int);

void find_library(const char *path) {
    CHECK(library = dlopen(path, RTLD_NOW | RTLD_LOCAL));
#define X(verb) real.verb = (__typeof__(real.verb))dlsym(library, "ibv_" #verb);
    SHIFT_INTERPOSED(X)
    SHIFT_CALLED(X)
#undef X
    real.query_gid_ex = (__typeof__(real.query_gid_ex))null_function("_ibv_query_gid_ex");
    deliver = (__typeof__(deliver))null_function("nullverbs_deliver");
    fail = (__typeof__(fail))null_function("nullverbs_fail");
    fail_receive = (__typeof__(fail))null_function("nullverbs_fail_receive");
    refuse = (__typeof__(refuse))null_function("nullverbs_refuse");
    async = (__typeof__(async))null_function("nullverbs_async");
    next_qp = (__typeof__(next_qp))null_function("nullverbs_next_qp");
    set_gid = (__typeof__(set_gid))null_function("nullverbs_gid");
}

/* ---- the key-value store: all keys belong to this process ---- */

static struct {
    char key[64], value[SHIFT_KV_VALUE];
    size_t n;
} store[KEYS];
unsigned finds;
static pthread_mutex_t storing = PTHREAD_MUTEX_INITIALIZER;

shift_kv_t *shift_kv_open(void) { return (shift_kv_t *)store; }
void shift_kv_close(shift_kv_t *kv) { (void)kv; }
int shift_kv_connect(shift_kv_t *kv) { return kv ? 0 : -1; }
int shift_kv_fd(shift_kv_t *kv) { return kv ? -1 : 0; }
int shift_kv_event(shift_kv_t *kv, const char *json) { return kv && json ? 0 : -1; }
int shift_kv_command(shift_kv_t *kv, char *line, size_t room) { return kv && line && room ? 0 : -1; }
int shift_kv_flush(shift_kv_t *kv) { return kv ? 0 : -1; }

int shift_kv_note(shift_kv_t *kv, const char *key, const void *value, size_t n) {
    (void)kv;
    pthread_mutex_lock(&storing);
    int i = 0;
    while (store[i].key[0] && strcmp(store[i].key, key) != 0)
        CHECK(++i < KEYS);
    snprintf(store[i].key, sizeof store[i].key, "%s", key);
    memcpy(store[i].value, value, store[i].n = n);
    pthread_mutex_unlock(&storing);
    return 0;
}

int shift_kv_put(shift_kv_t *kv, const char *key, const void *value, size_t n) {
    return shift_kv_note(kv, key, value, n);
}

int shift_kv_get(shift_kv_t *kv, const char *key, void *value, size_t room) {
    shift_kv_found_t asked = {0};
    snprintf(asked.key, sizeof asked.key, "%s", key);
    shift_kv_find(kv, &asked, 1);
    CHECK(asked.size <= room);
    memcpy(value, asked.value, asked.size);
    return (int)asked.size;
}

int shift_kv_find(shift_kv_t *kv, shift_kv_found_t *asked, int n) {
    (void)kv;
    pthread_mutex_lock(&storing);
    finds++;
    for (int k = 0; k < n; k++) {
        asked[k].size = 0;
        for (int i = 0; i < KEYS && store[i].key[0]; i++)
            if (strcmp(store[i].key, asked[k].key) == 0)
                memcpy(asked[k].value, store[i].value, asked[k].size = (uint32_t)store[i].n);
    }
    pthread_mutex_unlock(&storing);
    return 0;
}

/* ---- the program ---- */

shift_qp_t *shift_of(struct ibv_qp *qp) { return shift_map_get(&shift_qps, (uintptr_t)qp); }

void connect_qp(struct ibv_qp *q, const struct ibv_qp *peer, enum ibv_mtu mtu) {
    receive_only(q, peer, mtu, IBV_ACCESS_REMOTE_WRITE);
    send_too(q);
}

void receive_only(struct ibv_qp *q, const struct ibv_qp *peer, enum ibv_mtu mtu, unsigned access) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
    CHECK(!ibv_modify_qp(q, &a, IBV_QP_STATE)); /* some programs begin like this: the queue pair stays protected */
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    CHECK(!ibv_modify_qp(q, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                             .path_mtu = mtu,
                             .dest_qp_num = peer->qp_num,
                             .rq_psn = peer->qp_num,
                             .max_dest_rd_atomic = 1};
    a.ah_attr.is_global = a.ah_attr.port_num = 1;
    CHECK(!real.query_gid(q->context, 1, 0, &a.ah_attr.grh.dgid));
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(!ibv_modify_qp(q, &a, mask));
}

void send_too(struct ibv_qp *q) {
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .rnr_retry = 6, .max_rd_atomic = 1, .sq_psn = q->qp_num};
    int mask =
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(!ibv_modify_qp(q, &a, mask));
}


static const shift_leg_t *backup(const shift_qp_t *q) { return &q->legs[1]; }

bool protected_now(struct ibv_qp *qp) {
    const shift_qp_t *q = shift_of(qp);
    CHECK(q->states.sq != SHIFT_SQ_RELEASED);
    return q->linked && q->direct && backup(q)->ready && backup(q)->peer_ready &&
           backup(q)->generation == backup(q)->peer_generation;
}
