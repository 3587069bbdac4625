"""A real MPI program over real verbs (MPICH, UCX, Soft-RoCE) through the failure of a rail: without SHIFT the failure
kills it, with SHIFT it does not notice.

The program is osu_bench/rdma/train.py or, with SHIFT, programs/rdma/epochs.c, which sends the same and starts faster.
Its weights at the end are the same bit by bit, whatever has happened on the way.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiling import mpi_programs
from histories import events_in
from manapy.ckpt.store.job import read
from vm import VM, GuestProcess, mpi, shift
from vm.machine import PATIENCE
from waiting import until

BIN = Path(sys.executable).parent
TESTS = Path(__file__).resolve().parents[1]
TRAIN = TESTS.parent / "osu_bench" / "rdma" / "train.py"
EPOCHS = TESTS / "programs" / "rdma" / "epochs.c"
REMAPPED = TESTS / "programs" / "rdma" / "remapped.c"
STEPS = 20  # of an epoch; there are two epochs
LAST = 2 * STEPS
UNPROTECTED = "queue pairs of another type than RC are not protected"

Start = Callable[..., GuestProcess]
Lead = Callable[[int], None]

pytestmark = pytest.mark.slow


@pytest.fixture
def lead(shared_path: Path) -> Lead:
    """Lets the job do so many steps, and no more until the next call: commands in the machine take time."""

    def up_to(steps: int) -> None:
        new = shared_path / "up-to.new"
        new.write_text(str(steps))
        new.rename(shared_path / "up-to")

    return up_to


@pytest.fixture
def start(rdma_vm: VM) -> Start:
    """Starts a command as both ranks."""
    env = {"MANAPY_SHIFT_VERBOSE": "1", "MANAPY_SHIFT_DIR": "/tmp/agents", "MANAPY_SHIFT_BACKUP": shift.BACKUPS}
    return lambda *command, **how: mpi.start(rdma_vm, BIN, command, env=env, **how)


@pytest.fixture
def train(start: Start, shared_path: Path) -> Start:
    """Starts the training inside a command. It continues from its saved state."""
    files = ["--dir", shared_path, "--up-to", shared_path / "up-to"]
    size = ["--epochs", 2, "--steps", STEPS, "--batch", 4, "--pause", 0.05]
    return lambda *inside: start(*inside, sys.executable, TRAIN, *files, *map(str, size))


@pytest.fixture
def epochs(rdma_share: Path, shared_path: Path) -> list[str | Path]:
    """The command that runs epochs.c."""
    program = dataclasses.replace(mpi_programs(), where=rdma_share)(EPOCHS)
    return [program, shared_path, "2", str(STEPS)]


@pytest.fixture
def launch(start: Start, epochs: list[str | Path]) -> Start:
    """Starts epochs.c under manapy-launch, which gets these options."""
    return lambda *options, **how: start(BIN / "manapy-launch", *options, *epochs, **how)


def wait_back(process: GuestProcess) -> None:
    """Wait until every queue pair that has moved is on its own rail again."""

    def away() -> set[tuple[int, int]]:
        last = {
            (event["pid"], event["qp"]): event["event"]
            for event in shift.events(process)
            if event["event"] in ("fallback", "return")
        }
        return {key for key, event in last.items() if event == "fallback"}

    with process.vm.changed:
        process.vm.changed.wait_for(lambda: not away() or process.poll() is not None, PATIENCE)
    assert not away(), process.report()


def step(process: GuestProcess) -> int:
    """The last step that was done."""
    return max((int(number) for number in re.findall(r"^step (\d+) ", process.stdout, re.M)), default=0)


def wait_protected(process: GuestProcess) -> None:
    """Wait until the queue pairs of both ranks are protected: those of their connection with each other, and those of
    each rank with itself."""
    with process.vm.changed:
        process.vm.changed.wait_for(
            lambda: len(shift.events(process, "protected")) >= 4 or process.poll() is not None, PATIENCE
        )
    assert len(shift.events(process, "protected")) >= 4 and process.poll() is None, process.report()


def check_end(process: GuestProcess, weights: list[str]) -> None:
    """It ends with exit code 0, and with the same weights as all runs before."""
    assert process.wait(PATIENCE) == 0, process.report()
    found = re.search(r"^weights (\w+)$", process.stdout, re.M)
    assert found and step(process) == LAST, process.report()
    weights.append(found[1])
    assert len(set(weights)) == 1


def sent(vm: VM) -> list[int]:
    """The number of packets that host a has sent on rails 0 and 1."""
    return [vm.counter(f"rxa{rail}", "sent_pkts") for rail in (0, 1)]


RECORDED = """
import json, sys
from manapy.trace.capture import locate, rings
trace = rings.read(locate.find(sys.argv[1]).folder)
print(json.dumps([[int(e["rank"]), int(e["comm"]), trace.devices[e["tag"]], int(e["request"]), \
int(e["context"]), int(e["bytes"])] for e in trace.rdma]))
"""


def check_recorded(vm: VM, job: Path, host: str, rank: int) -> None:
    """Besides the MPI calls of the rank on a node there are the RDMA records: on both rails, counts that never
    decrease, and never more completed than posted requests."""
    records = json.loads(vm.run([*mpi.on_node(host), sys.executable, "-c", RECORDED, job], check=True).stdout)
    assert {device[-1] for who, _, device, *_ in records if who == rank} == {"0", "1"}, records
    for pair in {(rank, qp) for rank, qp, *_ in records}:
        counts = [rest for rank, qp, _, *rest in records if (rank, qp) == pair]
        assert all(now[i] >= before[i] for before, now in zip(counts, counts[1:], strict=False) for i in range(3)), (
            counts
        )
        assert all(completed <= posted for posted, completed, _ in counts), counts


@pytest.fixture(scope="module")
def weights() -> list[str]:
    """The final weights of all runs of the training so far."""
    return []


@pytest.fixture(scope="module")
def sums() -> list[str]:
    """Those of epochs.c."""
    return []


def test_without_shift_it_dies(rdma_vm: VM, train: Start, lead: Lead, weights: list[str]) -> None:
    """Only the last saved state remains. Started again, the job ends normally."""
    before = sent(rdma_vm)
    lead(LAST - 10)
    process = train()
    process.wait_for(f"step {STEPS + 10} ")
    rdma_vm.cut(0)
    lead(LAST)
    assert process.wait(PATIENCE) != 0 and mpi.GIVES_UP in process.stderr, process.report()
    assert step(process) < LAST
    rdma_vm.repair()
    again = train()
    again.wait_for("begins with epoch 1")
    check_end(again, weights)
    carried = [now - then for now, then in zip(sent(rdma_vm), before, strict=True)]
    assert carried[0] > 20 * LAST and carried[1] == 0


def test_with_shift_it_goes_on(
    rdma_vm: VM, start: Start, epochs: list[str | Path], lead: Lead, sums: list[str]
) -> None:
    """On the backup, and on its own rail again after the repair: also idle queue pairs, and those of a rank with
    itself."""
    lead(STEPS)
    process = start(*shift.inside(), "env", f"LD_LIBRARY_PATH={BIN.parent / 'lib'}", *epochs)
    process.wait_for("step 10 ")
    wait_protected(process)
    before = sent(rdma_vm)
    rdma_vm.cut(0, how="admin-down")
    lead(STEPS + 10)
    process.wait_for(f"step {STEPS + 10} ")
    on_backup = sent(rdma_vm)
    assert on_backup[1] - before[1] > 50, "the backup carries it"
    assert len(shift.events(process, "fallback")) >= 4, "the port says that it is down, so nobody waits for an error"
    rdma_vm.repair()
    wait_back(process)
    lead(LAST)
    check_end(process, sums)
    assert not shift.events(process, "unprotected") and mpi.GIVES_UP not in process.stderr, process.report()


def test_checkpoint_on_the_backup(
    rdma_vm: VM, start: Start, launch: Start, lead: Lead, sums: list[str], shared_path: Path
) -> None:
    """With --shift the lower half has the interposer, and the program doesn't see it. On two nodes: the agent of a rank
    is the coordinator, or that of its node. A job that was checkpointed on the backup continues on its own rail,
    protected again."""
    job = shared_path / "job"
    mpi.make_nodes(rdma_vm)
    lead(10)
    process = launch("--shift", "require", "--dir", job, nodes=True)
    process.wait_for("step 1 ")
    wait_protected(process)
    coordinator, agent = (served(rdma_vm, host, [rank]) for rank, host in enumerate("ab"))
    assert coordinator["pid"] == read(job).record["pid"] != agent["pid"]
    assert coordinator["store"] == agent["store"] and agent["store"].startswith("coordinator://")
    lead(STEPS)
    process.wait_for("step 15 ")
    rdma_vm.cut(0)
    lead(STEPS + 5)
    process.wait_for(f"step {STEPS + 5} ")
    assert shift.events(process, "fallback")
    for rank, host in enumerate("ab"):
        check_recorded(rdma_vm, job, host, rank)
    done = rdma_vm.run([*mpi.on_node("a"), BIN / "manapy", "checkpoint", job, "--then", "exit"], check=True)
    assert "ckpt-" in done.stdout
    process.wait(PATIENCE)
    rdma_vm.repair()
    assert process.stderr.count(UNPROTECTED) == 2, "a line for each rank: UCX makes some UD queue pairs"
    again = start(BIN / "manapy-restart", "--shift", "auto", job, nodes=True)
    wait_protected(again)
    lead(LAST - 10)
    again.wait_for(f"step {LAST - 10} ")
    rdma_vm.cut(0)
    lead(LAST)
    check_end(again, sums)
    assert again.stderr.count(UNPROTECTED) == 1, "one for the job, which has asked for nothing"


def served(vm: VM, host: str, ranks: list[int]) -> dict[str, Any]:
    """SHIFT's agent on a node, which has these ranks."""
    ask = [*mpi.on_node(host), BIN / "manapy", "rdma", "status", "--json"]
    status = json.loads(vm.run(ask, env=mpi.agents(host), check=True).stdout)
    (found,) = [one for one in status if one["job"].startswith("job-")]
    assert sorted(client["rank"] for client in found["clients"]) == ranks
    return found


def test_memory_mapped_again(rdma_vm: VM, start: Start, rdma_share: Path) -> None:
    """MPI's library in the lower half sees no munmap of the program, so it must not remember registered memory."""
    program = dataclasses.replace(mpi_programs(), where=rdma_share)(REMAPPED)
    process = start(BIN / "manapy-launch", "--shift", "off", program)
    assert process.wait(PATIENCE) == 0 and process.stdout == "ok\n", process.report()


def test_without_the_coordinator(rdma_vm: VM, launch: Start, lead: Lead, sums: list[str], shared_path: Path) -> None:
    """What has been protected remains so: there and back, although nobody holds keys or takes events any more."""
    job = shared_path / "job"
    lead(10)
    process = launch("--shift", "require", "--dir", job)
    process.wait_for("step 1 ")
    wait_protected(process)
    rdma_vm.run(["kill", "-KILL", str(read(job).record["pid"])], check=True)
    rdma_vm.cut(0)
    lead(STEPS + 5)
    process.wait_for(f"step {STEPS + 5} ")
    assert shift.events(process, "fallback")
    rdma_vm.repair()
    wait_back(process)
    lead(LAST)
    check_end(process, sums)


def test_a_chain_saves_after_a_failure_of_a_rail(
    rdma_vm: VM, launch: Start, lead: Lead, sums: list[str], shared_path: Path
) -> None:
    """`manapy run` continues from that checkpoint when a rank has ended on the backup."""
    chain = shared_path / "chain"
    lead(10)
    run = [BIN / "manapy", "run", "--dir", chain, "--interval", "1h", "--"]
    process = launch("--shift", "require", "--on-failover", "checkpoint", before=run)
    process.wait_for("step 1 ")
    wait_protected(process)
    rdma_vm.cut(0)
    lead(STEPS + 5)
    until((chain / "step-001" / "latest").exists, process.report)
    process.wait_for(f"step {STEPS + 5} ")
    rdma_vm.repair()
    rdma_vm.run(["kill", "-KILL", str(shift.events(process, "fallback")[0]["pid"])], check=True)
    lead(LAST)
    check_end(process, sums)
    assert [event["how"] for event in events_in(chain, "end")] == ["crashed", "finished"], process.report()
    assert process.stdout.count("begins with epoch 0") == 2, "not from the beginning"
