"""Runs an MPI program over both hosts: rank 0 on host a, rank 1 on host b, over the verbs of one rail (UCX in MPICH 5
from PyPI).

    process = start(vm, bin, [python, "train.py"], inside=shift.inside())
    process.wait_for("step 10 ")

`bin` contains mpiexec. Messages do not go through shared memory, although both ranks are on one machine, and only hydra
uses TCP. Counters prove this.

Without SHIFT the program dies about two seconds after its rail is cut. (With UCX's default of seven retries Soft-RoCE
never gives up, and the program would hang.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .image import SYSTEM_PATH
from .machine import VM, GuestProcess

ENVIRONMENT = {
    "MPIR_CVAR_CH4_NETMOD": "ucx",
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "rc_v,self",
    "UCX_RC_RETRY_COUNT": "6",
    "UCX_RC_TIMEOUT": "200ms",
    "OPENBLAS_NUM_THREADS": "1",  # numpy's threads spin, and the emulated processors are few
}
GIVES_UP = "transport retry counter exceeded"  # UCX's words


def start(
    vm: VM,
    bin: Path,
    program: Sequence[str | Path],
    inside: Sequence[str | Path] = (),
    rail: int = 0,
    env: Mapping[str, str] | None = None,
) -> GuestProcess:
    """Start mpiexec; `inside` comes before the program."""
    ranks = [["-n", "1", "-env", "UCX_NET_DEVICES", f"rx{host}{rail}:1", *inside, *program] for host in "ab"]
    return vm.start(
        [bin / "mpiexec", *ranks[0], ":", *ranks[1]],
        env={**ENVIRONMENT, "PATH": f"{bin}{os.pathsep}{SYSTEM_PATH}", **(env or {})},
    )
