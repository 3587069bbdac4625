"""`manapy status` and `inspect` show the processes of ranks that are trees, `manapy stop` ends them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated
import pytest
from emulated import NODES, inside
from jobs import PROGRAMS, Job, manapy, oks
from manapy.bench.shared.cluster import Cluster
from restarts import restart
from waiting import until, until_gone

pytestmark = pytest.mark.mpi

# bash ─┬─ timeout ─── sleep
#       └─ wide, the MPI program
SCRIPT = "timeout 1000 sleep 1000 & helper=$!; $SOLVER go; kill $helper; wait; echo ended"
NAMES = ["bash", "sleep", "timeout", "wide"]


@pytest.fixture
def wide(c_program: Callable[[Path], Path]) -> str:
    return str(c_program(PROGRAMS / "native/wide.c"))


def status(job: Job, *options: str) -> str:
    done = manapy("status", job.dir, *options, inside=job.inside)
    assert done.returncode == 0, done
    return done.stdout


def trees(job: Job) -> list[dict[str, dict[str, Any]]]:
    """The processes of each rank, by name."""
    ranks = json.loads(status(job, "--json"))["ranks"]
    return [{process["name"]: process for process in rank["processes"] or []} for rank in ranks]


def start(job: Job, wide: str) -> list[dict[str, dict[str, Any]]]:
    job.env["SOLVER"] = wide
    job.start("bash", "-c", SCRIPT)
    job.wait_for("ready")
    return whole(job)


def whole(job: Job) -> list[dict[str, dict[str, Any]]]:
    """When the trees are complete."""
    until(lambda: all(sorted(tree) == NAMES for tree in trees(job)), lambda: f"the whole trees: {trees(job)}")
    found = trees(job)
    for rank, tree in enumerate(found):
        assert tree["bash"]["parent"] is None
        assert tree["wide"]["parent"] == tree["timeout"]["parent"] == tree["bash"]["pid"]
        assert tree["sleep"]["parent"] == tree["timeout"]["pid"]
        assert tree["wide"]["pid"] == job.pids()[rank]
        for name, process in tree.items():
            assert Path("/proc", str(process["pid"]), "comm").read_text().strip() == name
    return found


def end(job: Job) -> None:
    (job.where / "go").touch()
    output = job.finish()
    assert oks(output) == 1 and output.count("ended") == job.ranks, output


def test_of_living_ranks(job: Job, wide: str) -> None:
    first, second = start(job, wide)
    assert "2 ranks with 4 processes each" in status(job)
    shown = status(job, "--rank", "1").splitlines()
    top = next(i for i, line in enumerate(shown) if line.strip().startswith(str(second["bash"]["pid"])))
    assert shown[top - 1] == "rank 1:" and "rank 0:" not in shown
    assert "(MPI process)" in next(line for line in shown[top:] if "wide" in line)
    assert manapy("status", job.dir, "--rank", "7").stderr.strip().endswith("the job has no rank 7")

    os.kill(first["sleep"]["pid"], signal.SIGSTOP)
    until(lambda: trees(job)[0]["sleep"]["state"] == "T", "the stopped process")
    assert "sleep: stopped" in status(job, "--ranks")
    os.kill(first["sleep"]["pid"], signal.SIGKILL)  # then timeout ends, too
    until_gone([first["sleep"]["pid"], first["timeout"]["pid"]])
    assert sorted(trees(job)[0]) == ["bash", "wide"], "a dead process is shown"
    assert "1 rank with 2 processes, 1 with 4" in status(job)

    os.kill(first["wide"]["pid"], signal.SIGSTOP)
    assert trees(job)[0] == {} and sorted(trees(job)[1]) == NAMES
    assert "rank 0 has not reported its processes" in status(job, "--rank", "0")
    os.kill(first["wide"]["pid"], signal.SIGCONT)
    end(job)


def test_of_checkpoints_and_restarted_ranks(job: Job, wide: str) -> None:
    before = start(job, wide)
    checkpoint = job.checkpoint()
    shown = manapy("inspect", checkpoint).stdout
    for rank, tree in enumerate(before):
        lines = shown.splitlines()[shown.splitlines().index(f"rank {rank}, 4 processes:") + 1 :][:4]
        assert lines[0].split()[0] == str(tree["bash"]["pid"]) and "bash: 1 thread, image " in lines[0]
        (mpi,) = (line for line in lines if "(MPI process)" in line)
        assert mpi.split()[1:3] == [str(tree["wide"]["pid"]), "wide"] and re.search(
            r"descriptors: \d+ standard,.* 1 file$", mpi
        )
        (sleep,) = (line for line in lines if " sleep: " in line)
        assert sleep.index("─ ") > mpi.index("─ "), "not below its parent"
    saved = json.loads(manapy("inspect", checkpoint, "--json").stdout)["images"]
    for image, tree in zip(saved, before, strict=True):
        assert sorted(Path(process["program"]).name for process in image["processes"]) == NAMES
        assert {p["pid"]: p["parent"] for p in image["processes"]}[tree["sleep"]["pid"]] == tree["timeout"]["pid"]

    restart(job)
    for old, new in zip(before, whole(job), strict=True):
        assert {name: process["known_as"] for name, process in new.items()} == {
            name: process["pid"] for name, process in old.items()
        }
        assert f"known to the program as {old['sleep']['pid']}" in status(job, "--ranks")
    end(job)


def test_on_other_hosts(make_job: Callable[..., Job], nodes: Cluster, wide: str) -> None:
    hosts = f"{NODES[0]}:1,{NODES[1]}:1"
    job = make_job(2, mpirun=emulated.mpirun(NODES[0], hosts), inside=inside(NODES[0]), env={"UCX_TLS": "tcp,self"})
    start(job, wide)
    assert "2 ranks with 4 processes each" in status(job)
    end(job)


@pytest.mark.parametrize("script", [SCRIPT, f"timeout 900 sleep 900; {SCRIPT}"], ids=["solver", "before the solver"])
def test_stop_ends_all_processes(job: Job, wide: str, script: str) -> None:
    """mpirun ends its own children, and their process group; timeout(1) has made one of its own."""
    job.env["SOLVER"] = wide
    job.start("bash", "-c", script)
    names = NAMES if script == SCRIPT else ["bash", "sleep", "timeout"]
    until(lambda: all(sorted(tree) == names for tree in trees(job)), lambda: f"the trees: {trees(job)}")
    pids = [process["pid"] for tree in trees(job) for process in tree.values()]
    assert manapy("stop", job.dir, "--no-checkpoint").returncode == 0
    until_gone(pids)
    job.wait()
    assert job.output().count("the job was stopped (manapy stop)") == 1
