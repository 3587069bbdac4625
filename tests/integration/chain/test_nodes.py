"""A 4-rank job over two emulated nodes, checkpointed and restarted with the ranks placed differently."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import emulated
import pytest
from compiling import TESTS, mpi_programs
from emulated import NODES, SPARE, TOOLS, inside
from jobs import BIN, Job
from manapy.bench.shared.cluster import Cluster
from solver import MIDDLE, SOLVER, after, in_c, residuals, step
from waiting import until
from runs import LAUNCH, Run
from starved import starved

HOSTS = [f"{name}:1" for name in (*NODES, SPARE)]


def mpirun(hosts: str) -> list[str | Path]:
    return emulated.mpirun(NODES[0], hosts)


def test_ranks_placed_differently(make_job: Callable[..., Job], nodes: Cluster, undisturbed: bytes) -> None:
    job = make_job(4, mpirun=mpirun(f"{NODES[0]}:2,{NODES[1]}:2"), inside=inside(NODES[0]), env={"UCX_TLS": "tcp,self"})
    job.hold(MIDDLE)
    before = nodes.received()[1]
    job.start_solver()
    job.wait_for(after(200))
    until(lambda: {r["host"] for r in job.status()["ranks"]} == set(NODES), job.report)
    assert nodes.received()[1] - before > 200 * 96 * 8 / 2, "the ranks don't talk over the network"
    job.checkpoint()
    last = step(job.output())
    job.kill()
    job.mpirun = mpirun(f"{NODES[1]}:3,{NODES[0]}:1")
    job.restart()
    job.wait_until_it_runs()
    assert [r["host"] for r in job.status()["ranks"]] == [NODES[1]] * 3 + [NODES[0]]
    assert step(job.finish()) > last
    # The field, not the residuals: MPICH adds in a different order when the ranks are placed differently.
    assert (job.where / "field.npy").read_bytes() == undisturbed


def test_a_script_around_the_program(make_job: Callable[..., Job], nodes: Cluster, undisturbed: bytes) -> None:
    """The ranks of the second node hand over and come back through its agent."""
    job = make_job(4, mpirun=mpirun(f"{NODES[0]}:2,{NODES[1]}:2"), inside=inside(NODES[0]), env={"UCX_TLS": "tcp,self"})
    job.hold(MIDDLE)
    program = shlex.join(map(str, (job.solver, *SOLVER, "--out", "field.npy")))
    job.start("sh", "-c", f"{program}; echo behind: $?")
    job.wait_for(after(100))
    job.checkpoint()
    last = step(job.output())
    job.kill()
    job.restart()
    job.wait_until_it_runs()
    output = job.finish()
    assert step(output) > last and output.count("behind: 0") == 4
    assert (job.where / "field.npy").read_bytes() == undisturbed
    assert job.record()["state"] == "done"


def test_agent_lost(make_job: Callable[..., Job], nodes: Cluster, undisturbed: bytes) -> None:
    """The agent of a node is killed: the job ends at once, says why, and can be restarted."""
    job = make_job(4, mpirun=mpirun(f"{NODES[0]}:2,{NODES[1]}:2"), inside=inside(NODES[0]), env={"UCX_TLS": "tcp,self"})
    go = job.hold(MIDDLE)
    job.start_solver()
    job.wait_for(after(100))
    job.checkpoint()
    last = step(job.output())
    (agent,) = re.findall(rf"host {NODES[1]}: its agent is process (\d+)", (job.dir / "coordinator.log").read_text())
    os.kill(int(agent), signal.SIGKILL)
    assert job.wait() != 0
    assert f"the agent of host {NODES[1]} is lost (see {job.dir}/node-{NODES[1]}.log): the job ends" in job.output()
    go.touch()
    job.restart()
    job.wait_for(after(last))
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed


@pytest.fixture
def chain(tmp_path: Path, nodes: Cluster) -> Iterator[Callable[..., Run]]:
    """Starts a chain on the first two of three nodes, by default of a solver that is held in the middle."""
    run = Run(tmp_path, inside=inside(NODES[0]), env={"UCX_TLS": "tcp,self", "PATH": f"{BIN}:{os.environ['PATH']}"})

    def started(*options: str, program: Sequence[str | Path] = ()) -> Run:
        launch = ["mpirun", "-launcher", "ssh", "-launcher-exec", TOOLS / "nodes-launch", *LAUNCH[1:-1]]
        if not program:
            run.hold(MIDDLE)
        command = [*launch, *(program or (in_c(), *SOLVER, "--out", "field.npy"))]
        chain = ["--dir", run.chain, "--interval", "500ms", "--hosts", ",".join(HOSTS), *options]
        run.spawn([*run.inside, BIN / "manapy", "run", *chain, "--", *command])
        run.wait_for_event("checkpoint")
        assert [rank["host"] for rank in run.status()["ranks"]] == NODES
        return run

    yield started
    run.end()


def test_chain_leaves_a_node_out(chain: Callable[..., Run], undisturbed: bytes) -> None:
    """The job needs two of three nodes. A rank dies on the second one, and the job continues on the first and third."""
    run = chain()
    run.kill_rank(1)
    run.wait_for(lambda text: f"rank 1 died on {NODES[1]}: starting again" in text)
    run.wait_for_event("checkpoint", len(run.events("checkpoint")) + 1)
    assert [rank["host"] for rank in run.status()["ranks"]] == [NODES[0], SPARE]
    run.finish()
    assert [event["nodes"] for event in run.events("attempt")] == [HOSTS, [HOSTS[0], HOSTS[2]]]
    assert (run.where / "field.npy").read_bytes() == undisturbed


def test_chain_leaves_a_slow_node(chain: Callable[..., Run]) -> None:
    """Another process takes the processor of a rank. The job is saved, and goes on elsewhere; nothing is lost."""
    run = chain("--on-slow", "move", "--patience", "2s", program=[mpi_programs()(TESTS / "programs/trace/computing.c")])
    with starved(run.pids()[1]):
        run.wait_for_event("running", 2)
    slow = run.events("slow")[-1]
    assert slow["host"] == NODES[1] and slow["moves"] and slow["gain"] > slow["cost"], run.report()
    assert [rank["host"] for rank in run.status()["ranks"]] == [NODES[0], SPARE]
    assert run.ends() == ["yielded"] and run.events("step")[-1]["verdict"] == "resume"
    assert [event["nodes"] for event in run.events("attempt")] == [HOSTS, [HOSTS[0], HOSTS[2]]]
    assert f"{slow['sentence']}: another host would save about" in run.output()
    last = step(run.output())
    run.wait_for(after(last))
    steps = [int(line.split()[1]) for line in residuals(run.output())]
    assert steps == list(range(1, steps[-1] + 1))
