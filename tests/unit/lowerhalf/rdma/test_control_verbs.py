"""The control verbs of a program under the interposer: what it records of them, and what it makes on the backup. Over
nullverbs; the device is null0, its backup null1."""

from __future__ import annotations

from pathlib import Path

from interposed import run

BEGIN = r"""
#include "nullverbs.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[4096];
static int to(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr a = {.qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = 7,
        .ah_attr = {.is_global = 1, .port_num = 1}};
    static const int masks[] = {
        [IBV_QPS_INIT] = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        [IBV_QPS_RTR] = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
        [IBV_QPS_RTS] = 0,
    };
    return ibv_modify_qp(qp, &a, IBV_QP_STATE | masks[state]);
}
static struct ibv_qp *make_qp(void)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    return ibv_create_qp(pd, &init);
}
/* Now the worker runs, and makes on the backup what the program has made. */
static int up(struct ibv_qp *qp) { return to(qp, IBV_QPS_INIT) || to(qp, IBV_QPS_RTR) || to(qp, IBV_QPS_RTS); }
static void begin(void)
{
    context = ibv_open_device(*ibv_get_device_list(0));
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, 0, 0, 0);
}
"""

REGIONS = r"""
static struct ibv_mr *registered(int i)
{
    int access = IBV_ACCESS_LOCAL_WRITE | i; /* not a constant: verbs.h calls another verb */
    return i % 2 ? ibv_reg_mr(pd, memory, sizeof memory, access) :
        ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
}
int main(void)
{
    struct ibv_mr *mr[4];
    begin();
    struct ibv_qp *qp = make_qp();
    for (int i = 0; i < 4; i++)
        if (!(mr[i] = registered(i)))
            return 1;
    if (!qp || up(qp))
        return 1;
    for (int i = 0; i < 10000 && nullverbs_regions("null1") < 4; i++)
        usleep(1000);
    usleep(100000);
    printf("%u", nullverbs_regions("null1"));
    for (int i = 0; i < 4; i++)
        if (ibv_dereg_mr(mr[i]))
            return 1;
    printf(" %u %u", nullverbs_regions("null0"), nullverbs_regions("null1"));
    if (ibv_destroy_qp(qp) || ibv_dealloc_pd(pd))
        return 1;
    printf(" %u\n", nullverbs_domains("null1"));
    return 0;
}
"""


def test_each_region_is_registered_once_and_released(tmp_path: Path, root: Path) -> None:
    """Also if libibverbs calls its own public verbs meanwhile. Of the domains only that of the links is left."""
    done = run(tmp_path, root, BEGIN + REGIONS)
    assert (done.returncode, done.stdout) == (0, "4 0 0 1\n"), done
