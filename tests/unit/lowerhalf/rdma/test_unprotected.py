"""What is passed through unprotected is said once, and not by those who were asked to be quiet. Over nullverbs."""

from __future__ import annotations

from pathlib import Path

import pytest
from interposed import run

PROGRAM = r"""
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
SAID = "manapy shift: queue pairs of another type than RC are not protected\n"


@pytest.mark.parametrize(("environment", "said"), [({}, SAID), ({"MANAPY_SHIFT_QUIET": "1"}, "")], ids=["plain", "quiet"])
def test_another_kind_of_queue_pair(tmp_path: Path, root: Path, environment: dict[str, str], said: str) -> None:
    done = run(tmp_path, root, PROGRAM, environment)
    assert (done.returncode, done.stderr) == (0, said), done
