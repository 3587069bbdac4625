"""Runs an MPI program over both hosts: rank 0 on host a, rank 1 on host b, over the verbs of one rail (UCX in MPICH 5
from PyPI).

    process = start(vm, bin, [python, "train.py"], inside=shift.inside())
    process.wait_for("step 10 ")

`bin` contains mpiexec. Messages do not go through shared memory, although both ranks are on one machine, and only hydra
uses TCP. Counters prove this.

Both hosts are one node, with one name. With `make_nodes(vm)`, and start(nodes=True), each is a node of its own (tools/
nodes): it has a name, a network for TCP and a /dev/shm. The RNICs are still in the machine's first network.

Without SHIFT the program dies about two seconds after its rail is cut. (With UCX's default of seven retries Soft-RoCE
never gives up, and the program would hang.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .image import SYSTEM_PATH
from .machine import VM, GuestProcess

TOOLS = Path(__file__).resolve().parents[1]
NODES = {"a": "node-a", "b": "node-b"}  # their names, by host
ENVIRONMENT = {
    "MPIR_CVAR_CH4_NETMOD": "ucx",
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "rc_v,self",
    "UCX_RC_RETRY_COUNT": "6",
    "UCX_RC_TIMEOUT": "200ms",
    "OPENBLAS_NUM_THREADS": "1",  # numpy's threads spin, and the emulated processors are few
}
# UCX looks for a way in the network of its node, where the RNICs' interfaces are not.
ANYWHERE = {"UCX_IB_ROCE_REACHABILITY_MODE": "all"}
LAUNCHER = ("-launcher", "ssh", "-launcher-exec", TOOLS / "nodes-launch")
GIVES_UP = "transport retry counter exceeded"  # UCX's words


def start(
    vm: VM,
    bin: Path,
    program: Sequence[str | Path],
    inside: Sequence[str | Path] = (),
    rail: int = 0,
    env: Mapping[str, str] | None = None,
    nodes: bool = False,
    before: Sequence[str | Path] = (),
) -> GuestProcess:
    """Start mpiexec. `before` comes before it, `inside` before the program. nodes: each rank on the node of its
    host."""
    command: list[str | Path] = [*before, bin / "mpiexec"]
    if nodes:
        command = [*on_node("a"), *command, "-hosts", ",".join(NODES.values()), *LAUNCHER]
    for host in "ab":
        own = {"UCX_NET_DEVICES": f"rx{host}{rail}:1", **(agents(host) if nodes else {})}
        settings = [word for name, value in own.items() for word in ("-env", name, value)]
        command += [*([":"] if host == "b" else []), "-n", "1", *settings, *inside, *program]
    path = f"{bin}{os.pathsep}{SYSTEM_PATH}"
    return vm.start(command, env={**ENVIRONMENT, **(ANYWHERE if nodes else {}), "PATH": path, **(env or {})})


def make_nodes(vm: VM) -> None:
    """Make both hosts nodes, if they aren't."""
    vm.run(f"[ -e /run/netns/{NODES['a']} ] || {TOOLS / 'nodes'} up {' '.join(NODES.values())}", check=True)


def agents(host: str) -> dict[str, str]:
    """The environment that keeps SHIFT's agents of two nodes apart: both have one /tmp."""
    return {"MANAPY_SHIFT_DIR": f"/tmp/agents-{host}"}


def on_node(host: str) -> list[str | Path]:
    """The words before a command that runs on the node of a host."""
    return [TOOLS / "nodes", "run", NODES[host]]
