"""A C program that runs with nullverbs (programs/rdma) in place of libibverbs and with libmanapy_shift.so preloaded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from compiling import SHARED, build

from manapy.core import installation

# The beginning of a program. to() changes the state of a queue pair. up() brings it up to RTS; then the worker runs,
# and makes on the backup what the program has made.
STEPS = r"""
#include "nullverbs.h"
static int to(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr a = {.qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = 7,
        .ah_attr = {.is_global = 1, .port_num = 1}};
    static const int masks[] = {
        [IBV_QPS_INIT] = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        [IBV_QPS_RTR] = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
        [IBV_QPS_SQD] = 0,
    };
    return ibv_modify_qp(qp, &a, IBV_QP_STATE | masks[state]);
}
static int up(struct ibv_qp *qp) { return to(qp, IBV_QPS_INIT) || to(qp, IBV_QPS_RTR) || to(qp, IBV_QPS_RTS); }
"""


def run(
    tmp_path: Path, root: Path, program: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Compile a program's text and run it, with the device null0, its backup null1, and no agent."""
    interposer = installation.library("libmanapy_shift.so")
    if interposer is None:
        pytest.skip("built without libibverbs-dev")
    programs = root / "tests" / "programs" / "rdma"
    library, executable = tmp_path / "libibverbs.so.1", tmp_path / "program"
    if not executable.exists():
        flags = [*SHARED, "-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={programs / 'nullverbs.map'}"]
        build(library, programs / "nullverbs.c", "-O1", *flags, "-pthread")
        build(executable, program, "-O1", f"-I{programs}", library)
    shift = {
        "LD_PRELOAD": str(interposer),
        "MANAPY_SHIFT_AGENT": str(tmp_path / "no-agent"),
        "MANAPY_SHIFT_JOB": "j",
        "MANAPY_SHIFT_BACKUP": "null0:null1",
    }
    null = {"LD_LIBRARY_PATH": str(tmp_path), "NULLVERBS_DEVICES": "2"}
    return subprocess.run(
        [executable],
        capture_output=True,
        text=True,
        env={**os.environ, **null, **shift, **(environment or {})},
        timeout=60,
    )
