"""The control verbs of a program under the interposer: what it records of them, and what it makes on the backup. Over
nullverbs; the device is null0, its backup null1."""

from __future__ import annotations

from pathlib import Path


import pytest
from interposed import STEPS, run

BEGIN = (
    STEPS
    + r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[4096];
static struct ibv_qp *make_qp(void)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    return ibv_create_qp(pd, &init);
}
static void begin(void)
{
    context = ibv_open_device(*ibv_get_device_list(0));
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, 0, 0, 0);
}
"""
)

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


SHARED = r"""
static struct ibv_qp *stamped(struct ibv_qp_init_attr *init)
{
    struct ibv_cq_init_attr_ex a = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    init->recv_cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &a));
    return ibv_create_qp(pd, init);
}
static struct ibv_qp *extended(struct ibv_qp_init_attr *init)
{
    struct ibv_qp_init_attr_ex x = {.send_cq = init->send_cq, .recv_cq = init->recv_cq, .srq = init->srq,
        .qp_type = IBV_QPT_RC, .cap = init->cap, .pd = pd};
    x.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    return ibv_create_qp_ex(context, &x);
}
static struct ibv_qp *unseen(struct ibv_qp_init_attr *init) { return nullverbs_create_qp(pd, init); }
static struct ibv_qp *late(struct ibv_qp_init_attr *init)
{
    init->recv_cq = ibv_create_cq(context, 16, 0, 0, 0);
    return nullverbs_create_qp(pd, init);
}
int main(void)
{
    begin();
    struct ibv_srq_init_attr s = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &s);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = ibv_create_cq(context, 16, 0, 0, 0), .srq = srq,
        .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct ibv_qp *qp = MAKE(&init);
    struct ibv_recv_wr *bad, wr = {.wr_id = 77};
    if (!make_qp() || !srq || !qp || ibv_post_srq_recv(srq, &wr, &bad))
        return 1;
    struct ibv_wc wc = {.opcode = IBV_WC_RECV};
    if (!nullverbs_receive(qp, &wc) || ibv_poll_cq(init.recv_cq, 1, &wc) != 1)
        return 1;
    printf("%d\n", (int)wc.wr_id);
    return 0;
}
"""


@pytest.mark.parametrize("way", ["stamped", "extended", "unseen", "late"])
def test_every_queue_pair_of_a_shared_queue_gets_the_programs_numbers(tmp_path: Path, root: Path, way: str) -> None:
    """Also one that isn't recorded, or whose completion queue isn't."""
    program = '#pragma GCC diagnostic ignored "-Wunused-function"\n' + BEGIN + SHARED.replace("MAKE", way)
    done = run(tmp_path, root, program, {"MANAPY_SHIFT_QUIET": "1"})
    assert (done.returncode, done.stdout) == (0, "77\n"), done


ERRORS = r"""
int main(void)
{
    begin();
    struct ibv_qp *qp = make_qp();
    struct ibv_wc wc;
    if (!qp || up(qp))
        return 1;
    for (uint64_t i = 0; i < 3; i++) {
        struct ibv_send_wr *bad, wr = {.wr_id = i, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        if (ibv_post_send(qp, &wr, &bad))
            return 1;
    }
    nullverbs_fail(qp, IBV_WC_RETRY_EXC_ERR);
    usleep(100000);
    while (ibv_poll_cq(cq, 1, &wc) == 1)
        printf("%d:%d ", (int)wc.wr_id, wc.status);
    return 0;
}
"""


@pytest.mark.parametrize("rings", [True, False], ids=["rewind", "journal"])
def test_errors_without_a_worker(tmp_path: Path, root: Path, rings: bool) -> None:
    """Nobody can switch the queue pair. So the program gets the errors at once, as without the interposer."""
    (tmp_path / "sys").mkdir()
    more = {"MANAPY_SHIFT_JOB": "", **({"NULLVERBS_SYSFS": str(tmp_path / "sys")} if rings else {})}
    done = run(tmp_path, root, BEGIN + ERRORS, more)
    assert (done.returncode, done.stdout.split()) == (0, ["0:12", "1:5", "2:5"]), done
    assert done.stderr == "manapy shift: no key-value agent (MANAPY_SHIFT_AGENT): connections are not protected\n"


ROOM = r"""
static int room_on_backup(void)
{
    for (struct ibv_qp *q = nullverbs_next_qp(0); q; q = nullverbs_next_qp(q))
        if (!strcmp(q->context->device->name, "null1"))
            return q->send_cq->cqe;
    return 0;
}
int main(void)
{
    context = ibv_open_device(*ibv_get_device_list(0));
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 8, 0, 0, 0);
    struct ibv_qp *qp = make_qp(); /* 4 sends and 4 receives may be outstanding, and two requests of ours */
    if (!qp || up(qp))
        return 1;
    for (int i = 0; i < 10000 && !room_on_backup(); i++)
        usleep(1000);
    for (int i = 1; i < 10; i++)
        if (!make_qp())
            return 1;
    for (int i = 0; i < 1000 && room_on_backup() < 100; i++)
        usleep(1000);
    printf("%d %d\n", cq->cqe >= 100, room_on_backup() >= 100);
    return 0;
}
"""


@pytest.mark.parametrize("rings", [True, False], ids=["rewind", "journal"])
def test_everything_that_is_outstanding_may_complete_at_once(tmp_path: Path, root: Path, rings: bool) -> None:
    """On the backup, too, whose queues may have been made before."""
    (tmp_path / "sys").mkdir()
    more = {"NULLVERBS_SYSFS": str(tmp_path / "sys")} if rings else {}
    done = run(tmp_path, root, BEGIN + ROOM, more)
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done


BUSY = r"""
int main(void)
{
    begin();
    nullverbs_refuse("destroy_cq", 16, 1);
    printf("%d ", ibv_destroy_cq(cq));
    struct ibv_qp *qp = make_qp();
    printf("%d ", ibv_dealloc_pd(pd));
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    if (!qp || !mr || up(qp))
        return 1;
    struct ibv_qp *leg = 0;
    for (int i = 0; i < 10000 && (!leg || !nullverbs_regions("null1")); i++, usleep(1000))
        for (struct ibv_qp *q = leg = nullverbs_next_qp(0); q && strcmp(q->context->device->name, "null1");)
            leg = q = nullverbs_next_qp(q);
    printf("%d %u ", leg != 0, nullverbs_regions("null1"));
    if (ibv_destroy_qp(qp) || ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd))
        return 1;
    printf("%u\n", nullverbs_domains("null1"));
    return 0;
}
"""


def test_what_could_not_be_destroyed_is_still_protected(tmp_path: Path, root: Path) -> None:
    done = run(tmp_path, root, BEGIN + BUSY)
    assert (done.returncode, done.stdout) == (0, "16 16 1 1 1\n"), done
