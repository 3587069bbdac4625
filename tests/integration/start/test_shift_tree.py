"""Keys of a host whose agent is connected through another one."""

from __future__ import annotations

import sys
from pathlib import Path
from collections.abc import Callable

import emulated
from emulated import NODES, SPARE, inside
from jobs import BIN, PROGRAMS, Job
from manapy.bench.shared.cluster import Cluster
from rdma_ranks import ask_for_agent, place_of, program
from solver import after
from test_shift_agents import ENDLESS
from waiting import until

ALL = (*NODES, SPARE)


def test_keys_pass_through_another_agent(make_job: Callable[..., Job], nodes: Cluster, tmp_path: Path) -> None:
    job = make_job(3, inside=inside(ALL[0]), env={"UCX_TLS": "tcp,self", "MANAPY_AGENT_FANIN": "1"})
    solver = [sys.executable, PROGRAMS / "steps/heat2d.py", *ENDLESS]
    words: list[str | Path] = []
    for host in ALL:
        words += [
            ":",
            "-n",
            "1",
            "-env",
            "MANAPY_SHIFT_DIR",
            tmp_path / host,
            BIN / "manapy-launch",
            "--dir",
            job.dir,
            *solver,
        ]
    job.spawn([*emulated.mpirun(ALL[0], ",".join(f"{host}:1" for host in ALL)), *words[1:]])
    job.wait_for(after(20))
    assert "is connected through that of host" in (job.dir / "coordinator.log").read_text()
    places = []
    for host, pid in zip(ALL, job.pids(), strict=True):
        places.append(
            place_of(
                ask_for_agent(job.dir, pid=pid, env={"MANAPY_SHIFT_DIR": str(tmp_path / host)}, inside=inside(host))
            )
        )
    with program(places[0], 0) as a, program(places[1], 1) as b, program(places[2], 2) as c:
        for number, ask in enumerate((a, b, c)):
            assert ask(f"PUT k{number} 0{number}") == "OK"
        for ask in (a, b, c):
            assert ask("GET k0 k1 k2 none") == "OK 00 01 02 -"
        job.checkpoint()
    job.kill()
    until(lambda: not any(where.address.exists() for where in places), "the agents' end")
