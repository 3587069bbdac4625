"""Allocations with spare nodes, in a real Slurm: a chain goes on in the same allocation without the nodes that it has
lost."""

from __future__ import annotations

import io
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import TESTS, mpi_programs
from manapy.ckpt import command
from manapy.ckpt.store.job import read
from manapy.cli.watch.status_watch import event_line
from slurm import Cluster
from solver import LAST, SOLVER
from starved import starved
from test_slurm_chain import HYDRA, SRUN, Chain, check, expand, submitted

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

PATIENCE = "2s"


@pytest.fixture(scope="module")
def nodes(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Five nodes: two for the program, one spare, and two for another allocation."""
    return make_cluster(nodes=5, own_hostnames=True)


@pytest.fixture
def submit(nodes: Cluster, heat2d: Path, tmp_path: Path) -> Iterator[Callable[..., Chain]]:
    """Submits a chain of a program on two nodes, with one more as a spare. By default a solver that is held before its
    last steps until finish()."""
    made: list[Chain] = []

    def chain(launch: str, *options: str, program: Sequence[str | Path] = (), sbatch: str = "--time=5") -> Chain:
        words = program or [heat2d, *SOLVER, "--out", tmp_path / "field.npy"]
        lines = [
            f"{launch} {shlex.join(map(str, words))} || exit $?",
            f"echo after >> {tmp_path}/field.npy.after",
        ]
        given = ("--spares", "1", "--interval", "1s", *options)
        made.append(submitted(tmp_path / "chain", nodes, "\n".join(lines), sbatch, given, last=LAST))
        return made[-1]

    yield chain
    for one in made:
        for job in {str(one.job), *(event["id"] for event in one.events("successor"))}:
            nodes.command("scancel", job)
    for name, state in nodes.node_states().items():
        if name not in nodes.daemons:
            nodes.bring_back(name)
        elif "DRAIN" in state:
            nodes.command("scontrol", "update", f"NodeName={name}", "State=RESUME")
    nodes.wait_idle()


def finish(chain: Chain, undisturbed: bytes) -> None:
    """The program ends, with the right result."""
    chain.finish()
    check(chain, chain.dir.parent.parent / "field.npy", np.load(io.BytesIO(undisturbed)))


def places(chain: Chain) -> list[list[str]]:
    """The nodes of each attempt."""
    return [event["nodes"] for event in chain.events("attempt")]


def ranks(chain: Chain) -> list[dict[str, Any]]:
    """The ranks of the running step, with their hosts and process ids."""
    found: list[dict[str, Any]] = command.status(read(chain.dir / "step-001"))["ranks"]
    return found


def hosts(chain: Chain) -> list[str]:
    """The host of each rank."""
    return [rank["host"] for rank in ranks(chain)]


def another_checkpoint(chain: Chain) -> None:
    chain.wait_for_events("checkpoint", len(chain.events("checkpoint")) + 1)


@pytest.mark.parametrize("launcher", [SRUN, HYDRA], ids=["srun", "mpiexec"])
def test_a_lost_node(nodes: Cluster, submit: Callable[..., Chain], undisturbed: bytes, launcher: str) -> None:
    chain = submit(f"{launcher} manapy-launch")
    chain.wait_for_events("checkpoint", 2)
    first, lost, spare = expand(nodes, nodes.show(chain.job)["NodeList"])
    assert places(chain) == [[first, lost]] and hosts(chain) == [first] * 2 + [lost] * 2, chain.report()
    nodes.lose(lost)
    chain.wait_for_events("moved", 1)
    (moved,) = chain.events("moved")
    assert (moved["away"], moved["to"], moved["left"]) == ([lost], [spare], 0)
    assert f"{lost} left out, {spare} used" in event_line(moved)
    another_checkpoint(chain)
    assert hosts(chain) == [first] * 2 + [spare] * 2, chain.report()
    assert f"{lost} left out, {spare} used instead; spare nodes left: 0" in chain.output()
    finish(chain, undisturbed)
    assert places(chain)[-1] == [first, spare]
    assert {event["id"] for event in chain.events("attempt")} == {str(chain.job)}
    assert nodes.show(chain.job)["Restarts"] == "0", "the allocation was not left"
    assert {event["verdict"] for event in chain.events("step")[1:]} == {"resume"}, chain.report()


@pytest.mark.parametrize("launcher", [SRUN, HYDRA], ids=["srun", "mpiexec"])
def test_slurm_notices_it_late(nodes: Cluster, submit: Callable[..., Chain], undisturbed: bytes, launcher: str) -> None:
    """The job runs elsewhere by then, although Slurm still waits for the end of the old step."""
    chain = submit(f"{launcher} manapy-launch")
    another_checkpoint(chain)
    ((first, lost),) = places(chain)
    nodes.kill(lost)
    chain.wait_for_events("running", 2)
    assert places(chain)[-1][0] == first and lost not in places(chain)[-1], chain.report()
    nodes.notice(lost)
    finish(chain, undisturbed)
    assert nodes.show(chain.job)["Restarts"] == "0"


@pytest.mark.parametrize("mode", ["requeue", "chain"])
def test_no_spare_left(nodes: Cluster, submit: Callable[..., Chain], undisturbed: bytes, mode: str) -> None:
    """A node is drained: the job is saved, and goes on without it. Another one is lost: the job goes on in another
    allocation, without both."""
    chain = submit(f"{SRUN} manapy-launch", "--mode", mode)
    another_checkpoint(chain)
    first, drained, spare = expand(nodes, nodes.show(chain.job)["NodeList"])
    nodes.command("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=maintenance")
    chain.wait_for_events("attempt", 2)
    (end,) = chain.events("end")
    assert end["how"] == "yielded" and drained in end["reason"], chain.report()
    assert places(chain)[1] == [first, spare]
    another_checkpoint(chain)
    nodes.lose(spare)
    chain.wait_for(lambda: "no spare node is left" in chain.output())
    chain.wait_for(lambda: len(set(map(str, places(chain)))) == 3)
    last = int(chain.events("attempt")[-1]["id"])
    assert len(expand(nodes, nodes.show(last)["NodeList"])) == 3, "there is a spare again"
    finish(chain, undisturbed)
    assert not {drained, spare} & set(places(chain)[-1]), chain.report()
    assert (last == chain.job) == (mode == "requeue")


@pytest.mark.parametrize("mode", ["requeue", "chain"])
def test_the_first_node_is_lost(nodes: Cluster, submit: Callable[..., Chain], undisturbed: bytes, mode: str) -> None:
    """The script ran there. Slurm keeps the other nodes for the job, so it must be ended."""
    chain = submit(f"{SRUN} manapy-launch", "--mode", mode)
    another_checkpoint(chain)
    (first, _), *_ = places(chain)
    nodes.lose(first)
    chain.wait_for_events("attempt", 2)
    finish(chain, undisturbed)
    assert first not in places(chain)[-1], chain.report()
    assert (int(chain.events("attempt")[-1]["id"]) == chain.job) == (mode == "requeue")
    assert [event["how"] for event in chain.events("end")] == ["lost", "finished"]


def test_lost_before_the_program_starts(
    nodes: Cluster, submit: Callable[..., Chain], undisturbed: bytes, tmp_path: Path
) -> None:
    """srun fails, and with it the script. This is no end of the chain."""
    chain = submit(f"until [ -e {tmp_path}/start ]; do sleep 0.1; done; {SRUN} manapy-launch")
    chain.wait_for_events("attempt", 1)
    ((first, lost),) = places(chain)
    nodes.lose(lost)
    (tmp_path / "start").touch()
    finish(chain, undisturbed)
    assert [event["how"] for event in chain.events("end")] == ["crashed", "finished"], chain.report()
    assert f"{lost} can no longer be used" in chain.events("end")[0]["reason"]
    assert first in places(chain)[-1] and lost not in places(chain)[-1]


def test_cause_of_a_hang(nodes: Cluster, submit: Callable[..., Chain], undisturbed: bytes) -> None:
    """A rank is stopped. Its node is well for Slurm, but it is left out."""
    chain = submit(f"{SRUN} manapy-launch", "--patience", PATIENCE)
    another_checkpoint(chain)
    first, accused, spare = expand(nodes, nodes.show(chain.job)["NodeList"])
    os.kill(ranks(chain)[3]["pid"], signal.SIGSTOP)
    chain.wait_for_events("attempt", 2)
    assert chain.events("hung")[0]["host"] == accused and places(chain)[1] == [first, spare], chain.report()
    chain.wait_for_events("running", 2)  # no remains of the stopped step keep the processors of the other node
    finish(chain, undisturbed)
    assert [event["verdict"] for event in chain.events("step")] == ["new", "resume"], chain.report()
    assert nodes.show(chain.job)["Restarts"] == "0"


def test_a_slow_node(nodes: Cluster, submit: Callable[..., Chain]) -> None:
    """Another process takes the processor of a rank: the job is saved, and goes on with the spare node. It is the first
    node: these nodes share /dev/shm, so the watch there takes no samples of others."""
    program = mpi_programs()(TESTS / "programs/trace/computing.c")
    how = ("--patience", PATIENCE, "--on-slow", "move")
    chain = submit(f"{SRUN} manapy-launch", *how, program=[program], sbatch="--time=5 --ntasks=2")
    another_checkpoint(chain)
    slow, second, spare = expand(nodes, nodes.show(chain.job)["NodeList"])
    with starved(ranks(chain)[0]["pid"]):
        chain.wait_for_events("running", 2)
    decided = chain.events("slow")[-1]
    assert decided["host"] == slow and decided["moves"] and places(chain)[1] == [second, spare], chain.report()
    assert [event["how"] for event in chain.events("end")] == ["yielded"], chain.report()
    assert nodes.show(chain.job)["Restarts"] == "0"
