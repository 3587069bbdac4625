"""A message names once what is passed through unprotected; processes that were told to be quiet print nothing; and
everything works as usual. Over nullverbs."""

from __future__ import annotations

from pathlib import Path

import pytest
from interposed import STEPS, run

UD = r"""
#include "nullverbs.h"
int main(void)
{
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(0));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, 0, 0, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}};
    return !ibv_create_qp(pd, &init) || !ibv_create_qp(pd, &init);
}
"""

# Twice, on two queue pairs: four sends, half of them signaled. Then the state changes while two sends are outstanding
# (except before a reset), and four more sends follow.
STATES = (
    STEPS
    + r"""
#include <stdio.h>
static struct ibv_cq *cq;
static uint64_t posted;
static int post(struct ibv_qp *qp, int n)
{
    for (; n--; posted++) {
        struct ibv_send_wr *bad, wr = {.wr_id = posted, .opcode = IBV_WR_SEND,
            .send_flags = posted % 2 ? IBV_SEND_SIGNALED : 0};
        if (ibv_post_send(qp, &wr, &bad))
            return 1;
    }
    return 0;
}
static void complete(struct ibv_qp *qp)
{
    struct ibv_wc wc;
    nullverbs_complete(qp, 8);
    while (ibv_poll_cq(cq, 1, &wc) == 1)
        printf("%d:%d ", (int)wc.wr_id, wc.status);
}
int main(void)
{
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(0));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, 0, 0, 0);
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {16, 1, 1, 1, 0}};
        struct ibv_qp *qp = ibv_create_qp(pd, &init);
        if (!qp || up(qp) || post(qp, 4))
            return 1;
        complete(qp);
        CHANGE
        if (post(qp, 4))
            return 1;
        complete(qp);
    }
    return 0;
}
"""
)
SQD = "if (post(qp, 2) || to(qp, IBV_QPS_SQD) || to(qp, IBV_QPS_RTS)) return 1;"
RESET = "if (to(qp, IBV_QPS_RESET) || up(qp)) return 1;"

CASES = {
    "another type": (UD, "queue pairs of another type than RC are not protected", 0),
    "SQD": (
        STATES.replace("CHANGE", SQD),
        "queue pairs that the program has drained (SQD state) are not protected",
        20,
    ),
    "reset": (
        STATES.replace("CHANGE", RESET),
        "queue pairs that the program has reset, and connects again, are not protected",
        16,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_said_once(tmp_path: Path, root: Path, case: str) -> None:
    program, said, sends = CASES[case]
    done = run(tmp_path, root, program)
    lines = [line for line in done.stderr.splitlines() if "key-value agent does not answer" not in line]
    assert (done.returncode, lines) == (0, [f"manapy shift: {said}"]), done
    assert done.stdout.split() == [f"{number}:0" for number in range(1, sends, 2)]


def test_quiet(tmp_path: Path, root: Path) -> None:
    done = run(tmp_path, root, UD, {"MANAPY_SHIFT_QUIET": "1"})
    assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.parametrize("wait", ["soon", "-1", "5s", ""])
def test_a_wrong_wait(tmp_path: Path, root: Path, wait: str) -> None:
    done = run(tmp_path, root, UD, {"MANAPY_SHIFT_QUIET": "1", "MANAPY_SHIFT_WAIT": wait})
    assert (done.returncode, done.stderr) == (
        0,
        f"manapy shift: MANAPY_SHIFT_WAIT={wait} is not a number of seconds: it is 30\n",
    ), done
