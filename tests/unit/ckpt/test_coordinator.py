"""The coordinator with ranks played in this process: every possible course of a checkpoint."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fake_jobs
import pytest
from fake_jobs import PATIENCE, FakeJob, FakeRank, fake_job
from manapy.ckpt import command
from manapy.ckpt.coordinator import connections, coordinator, flow, later_stop, ranks, report, requests
from manapy.ckpt.coordinator.requests import Requests, CheckpointCalls
from manapy.ckpt.store import job, publish
from manapy.clock import WORLD
from manapy.core import processes
from manapy.core.errors import CoordinatorError

Test = Callable[[FakeJob], Awaitable[None]]
NEVER = 10 * PATIENCE  # seconds: longer than the test lasts


@pytest.fixture(params=[0, 1, 2], ids=["direct", "agent", "tree"], autouse=True)
def through_agents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with ranks that are connected directly, with all but rank 0 behind the agent of a node, and with
    rank 1 behind the agent of a node and all others behind an agent below that one."""
    monkeypatch.setattr(fake_jobs, "AGENTS", request.param)


def play(directory: Path, test: Test, **settings: Any) -> None:
    async def run() -> None:
        async with fake_job(directory / "job", **settings) as fake, asyncio.timeout(2 * PATIENCE):
            await test(fake)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are short where a test waits for the end of a time, and very long where something else must come first."""
    for module, name, seconds in (
        (ranks, "GRACE_SECONDS", 0.2),
        (ranks, "EXEC_SECONDS", 0.2),
        (flow, "STALL_SECONDS", NEVER),
        (requests, "TICKET_SECONDS", NEVER),
        (connections, "HANDSHAKE_SECONDS", NEVER),
        (report, "LATE_SECONDS", NEVER),
        (coordinator, "PROGRESS_AFTER", NEVER),
    ):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are told early which ranks are waited for."""
    monkeypatch.setattr(coordinator, "PROGRESS_AFTER", 0.1)
    monkeypatch.setattr(coordinator, "PROGRESS_EVERY", 0.1)


def ended_process() -> int:
    """The pid of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def asked(fake: FakeJob) -> int:
    """The number of commands whose request for a checkpoint has arrived and isn't answered yet."""
    return sum(
        len(batch.futures) for batch in (fake.coordinator.requests.current, fake.coordinator.requests.next) if batch
    )


def test_checkpoint(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        assert await fake.command("CHECKPOINT continue -1") == [f"RESULT ok {fake.dir}/ckpt-000001"]
        assert await fake.checkpoint() == f"RESULT ok {fake.dir}/ckpt-000002"
        assert os.readlink(fake.dir / "latest") == "ckpt-000002" and not fake.temporary()
        for rank in fake.ranks:
            assert rank.kinds()[:8] == ["CHECK", "INTENT", "TARGETS", "FREEZE", "STOP", "DRAIN", "WRITE", "RESUME"]
            assert rank.seen[0] == "CHECK 1 5000"
        manifest = publish.read_manifest(fake.dir / "latest")
        assert len(manifest.ranks) == 3 and manifest.argv == ["prog", "arg"] and manifest.record["job"] == "test"
        status = await fake.status()
        assert status["state"] == "running" and status["last_checkpoint"]["path"].endswith("ckpt-000002")
        assert [(r["rank"], r["state"], r["host"]) for r in status["ranks"]] == [
            (n, "running", "elsewhere") for n in range(3)
        ]
        await fake.end()
        assert job.read(fake.dir).state == "done"

    play(tmp_path, test)


def test_grace_time_of_the_command(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        await fake.command("CHECKPOINT continue 700")
        assert fake.ranks[0].seen[0] == "CHECK 1 700"

    play(tmp_path, test, ranks=1)


def test_refused_before_anything_stops(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[1].act["CHECK"] = "REFUSED {epoch} descriptor%207%20is%20a%20socket"
        assert await fake.checkpoint() == "RESULT failed rank 1: descriptor 7 is a socket"
        for rank in fake.ranks:
            await rank.until("CHECK")
            assert rank.kinds() == ["CHECK"]
        assert not fake.temporary() and not fake.published()
        fake.ranks[1].act.clear()
        assert "ok" in await fake.checkpoint()

    play(tmp_path, test)


@pytest.mark.parametrize("kind", ["STOP", "DRAIN", "WRITE"])
def test_failure_leaves_the_last_one(tmp_path: Path, kind: str) -> None:
    async def test(fake: FakeJob) -> None:
        await fake.checkpoint()
        fake.ranks[2].act[kind] = "FAILED {epoch} No%20space%20left%20on%20device"
        assert await fake.checkpoint() == "RESULT failed rank 2: No space left on device"
        for rank in fake.ranks:
            assert "No%20space" in await rank.until("ABORT")
        assert os.readlink(fake.dir / "latest") == "ckpt-000001" and not fake.temporary()
        fake.ranks[2].act.clear()
        assert await fake.checkpoint() == f"RESULT ok {fake.dir}/ckpt-000002"

    play(tmp_path, test)


@pytest.mark.parametrize("kind", ["CHECK", "INTENT", "TARGETS", "FREEZE", "STOP", "DRAIN", "WRITE"])
def test_rank_lost(tmp_path: Path, kind: str) -> None:
    """The checkpoint fails. The other ranks are told, and are killed if mpirun doesn't end them."""

    async def test(fake: FakeJob) -> None:
        await fake.checkpoint()
        fake.ranks[1].act[kind] = "die"
        assert (await fake.checkpoint()).startswith("RESULT died rank 1 ")
        assert not fake.temporary() and os.readlink(fake.dir / "latest") == "ckpt-000001"
        if kind != "CHECK":
            await fake.ranks[0].until("ABORT")
        assert "rank%201%20died" in await fake.ranks[0].until("KILL")
        assert (await fake.ranks[2].until("KILL")).endswith(" %")
        await fake.task
        assert job.read(fake.dir).state == "failed"

    play(tmp_path, test)


def test_rank_lost_after_publication(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[1].act["RESUME"] = "die"
        assert await fake.checkpoint() == f"RESULT ok {fake.dir}/ckpt-000001"
        await fake.task
        assert fake.published() == ["ckpt-000001"]

    play(tmp_path, test)


def test_rank_comes_back_after_exec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank reconnects in time, and the end of that time has no effect. The test itself checks that end."""

    async def test(fake: FakeJob) -> None:
        ranks = fake.coordinator.ranks
        before = ranks.known[1]
        fake.ranks[1].die()
        await fake.until(lambda: not before.connected)
        await fake.ranks[1].connect(fake.dir)
        await fake.until(lambda: ranks.known[1] is not before)
        ranks._on_gone(before)
        assert "ok" in await fake.checkpoint() and not ranks.dying

    monkeypatch.setattr(ranks, "EXEC_SECONDS", NEVER)
    play(tmp_path, test)


@pytest.mark.parametrize("answered", [True, False])
def test_rank_comes_back_while_ranks_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: None, answered: bool
) -> None:
    """A rank that execs, or hands over to a child, gets CHECK again: its answer was that of another process."""

    async def test(fake: FakeJob) -> None:
        fake.ranks[2].act["CHECK"] = "hold"
        if not answered:
            fake.ranks[1].act["CHECK"] = "hold"
        command = await fake.ask("CHECKPOINT continue -1")
        for rank in fake.ranks:
            await rank.until("CHECK")
        fake.ranks[1].die()
        await command.until("PROGRESS rank 1: not connected")
        fake.ranks[1].act.clear()
        await fake.ranks[1].connect(fake.dir)
        await fake.ranks[1].until("CHECK", 2)
        fake.ranks[2].send("CHECKED 1")
        assert (await command.end())[-1] == f"RESULT ok {fake.dir}/ckpt-000001"

    monkeypatch.setattr(ranks, "EXEC_SECONDS", NEVER)
    play(tmp_path, test)


def test_rank_execs_instead_of_saying_that_it_has_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was halted right before the exec, which RESUME lets it make."""

    async def test(fake: FakeJob) -> None:
        fake.ranks[1].act["RESUME"] = "hold"
        command = await fake.ask("CHECKPOINT continue -1")
        await fake.ranks[1].until("RESUME")
        fake.ranks[1].die()
        await fake.until(lambda: not fake.coordinator.ranks.known[1].connected)
        await fake.ranks[1].connect(fake.dir)
        assert (await command.end())[-1] == f"RESULT ok {fake.dir}/ckpt-000001"
        fake.ranks[1].act.clear()
        assert await fake.checkpoint() == f"RESULT ok {fake.dir}/ckpt-000002"

    monkeypatch.setattr(ranks, "EXEC_SECONDS", NEVER)
    play(tmp_path, test, background=False)


def test_ranks_go_on_before_the_remains_of_a_checkpoint_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large images take long, and a file system may hang."""
    delete, deleting = threading.Event(), threading.Event()
    cancel = publish.cancel

    def cancel_slowly(temporary: Path) -> None:
        deleting.set()
        assert delete.wait(PATIENCE)
        cancel(temporary)

    async def test(fake: FakeJob) -> None:
        fake.ranks[0].act["WRITE"] = "FAILED {epoch} full"
        command = await fake.ask("CHECKPOINT continue -1")
        for rank in fake.ranks:
            await rank.until("ABORT")
        await fake.until(deleting.is_set)
        assert fake.temporary() and (await fake.status())["state"] == "running"
        delete.set()
        assert (await command.end())[-1] == "RESULT failed rank 0: full"
        assert not fake.temporary()

    monkeypatch.setattr(publish, "cancel", cancel_slowly)
    try:
        play(tmp_path, test, agents=1, background=False)
    finally:
        delete.set()


def test_checkpoint_while_a_rank_is_away(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[1].die()
        await fake.until(lambda: not fake.coordinator.ranks.known[1].connected)
        command = await fake.ask("CHECKPOINT continue -1")
        await fake.ranks[0].until("CHECK")
        await fake.ranks[1].connect(fake.dir)
        assert (await command.end())[-1] == f"RESULT ok {fake.dir}/ckpt-000001"

    play(tmp_path, test)


def test_rank_lost_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has answered CHECK, and has come back before the next step begins. But CHECK was answered by another
    process."""

    async def test(fake: FakeJob) -> None:
        async def open_slowly(*arguments: Any) -> Path:
            fake.ranks[1].die()
            await fake.until(lambda: not fake.coordinator.ranks.known[1].connected)
            await fake.ranks[1].connect(fake.dir)
            await fake.until(lambda: fake.coordinator.ranks.known[1].connected)
            return await opened(*arguments)

        opened = fake.coordinator.storage.open
        with monkeypatch.context() as patched:
            patched.setattr(fake.coordinator.storage, "open", open_slowly)
            assert await fake.checkpoint() == "RESULT failed rank 1 is lost"
        assert "ok" in await fake.checkpoint()

    play(tmp_path, test)


def test_contradicting_report(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[0].act["INTENT"] = "ROWS {epoch} 1 1 nonsense"
        assert (await fake.checkpoint()).startswith("RESULT failed rank 0 sent an invalid report")
        fake.ranks[0].act.clear()
        assert "ok" in await fake.checkpoint()

    play(tmp_path, test)


def test_two_at_once(tmp_path: Path) -> None:
    """The second request comes while the first checkpoint is in progress: it gets the next one. A third request shares
    that."""

    async def test(fake: FakeJob) -> None:
        fake.ranks[0].act["WRITE"] = "hold"
        first = asyncio.create_task(fake.checkpoint())
        await fake.ranks[0].until("WRITE")
        others = [asyncio.create_task(fake.checkpoint()) for _ in range(2)]
        await fake.until(lambda: asked(fake) == 3)
        fake.ranks[0].act.clear()
        fake.ranks[0]._answer(fake.ranks[0].seen[-1])
        assert await first == f"RESULT ok {fake.dir}/ckpt-000001"
        assert [line.split("/")[-1] for line in await asyncio.gather(*others)] == ["ckpt-000002"] * 2

    play(tmp_path, test)


def test_says_who_has_disabled_checkpoints(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[1].act["CHECK"] = "DISABLED {epoch}"
        fake.ranks[2].act["CHECK"] = "hold"
        request = asyncio.create_task(fake.command("CHECKPOINT continue -1"))
        line = "waiting for rank 1: checkpoints are disabled by the program"
        slow = "rank 2: no answer yet (child processes have not ended, or the host is slow)"
        waiting = fake.coordinator.report.waiting
        await fake.until(lambda: waiting() == [line, slow])
        fake.ranks[2].send("CHECKED 1")
        await fake.until(lambda: waiting() == [line])
        fake.ranks[1].send("CHECKED 1")
        assert (await request)[-1] == f"RESULT ok {fake.dir}/ckpt-000001"

    play(tmp_path, test)


def test_only_ranks_with_callbacks_are_asked_for_them(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        await fake.checkpoint()
        assert all("CALL" not in rank.kinds() for rank in fake.ranks)
        fake.ranks[1].act |= {"CHECK": "CHECKED {epoch} 1", "CALL": "hold"}
        request = asyncio.create_task(fake.checkpoint())
        await fake.ranks[1].until("CALL")
        assert fake.coordinator.report.waiting() == ["running callbacks: waiting for rank 1"]
        assert fake.ranks[1].kinds()[-2:] == ["FREEZE", "CALL"] and "STOP" not in fake.ranks[0].kinds()[-1]
        fake.ranks[1].send("CALLED 2")
        assert await request == f"RESULT ok {fake.dir}/ckpt-000002"
        fake.ranks[1].act["CALL"] = "FAILED {epoch} no%20license"
        assert await fake.checkpoint() == "RESULT failed rank 1: no license"
        assert [rank.kinds().count("CALL") for rank in fake.ranks[:2]] == [0, 2]
        for rank in fake.ranks:
            assert (await rank.until("ABORT")).startswith("ABORT 3 ")

    play(tmp_path, test)


def test_second_joins_while_ranks_are_checked(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[0].act["CHECK"] = "hold"
        first = asyncio.create_task(fake.checkpoint())
        await fake.ranks[0].until("CHECK")
        second = asyncio.create_task(fake.checkpoint())
        await fake.until(lambda: asked(fake) == 2)
        fake.ranks[0].send("CHECKED 1")
        assert await first == await second == f"RESULT ok {fake.dir}/ckpt-000001"

    play(tmp_path, test)


def test_waits_for_all_ranks_and_says_so(tmp_path: Path, progress: None) -> None:
    async def test(fake: FakeJob) -> None:
        await fake.join(fake.ranks[0])
        command = await fake.ask("CHECKPOINT continue -1")
        assert await command.until("PROGRESS") == "PROGRESS rank 1 and 1 more not started yet"
        status = await fake.status()
        assert status["state"] == "starting" and status["waiting"] == ["rank 1 and 1 more not started yet"]
        await fake.join(*fake.ranks[1:])
        assert (await command.end())[-1].startswith("RESULT ok")

    play(tmp_path, test, connect=False)


def test_ranks_that_find_no_room(tmp_path: Path, progress: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are sent away before the last descriptors are used up. Commands are accepted. They are told which ranks are
    missing and why, and that waiting has a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def test(fake: FakeJob) -> None:
        await fake.join(fake.ranks[0])
        monkeypatch.setattr(processes, "RESERVED", soft)
        for rank in fake.ranks[1:]:
            with pytest.raises(AssertionError):
                await rank.connect(fake.dir)
        reason = (
            f"ranks 1, 2 have not connected to the coordinator: the coordinator can open only {soft} files: raise "
            f"this limit on the host of rank 0 (ulimit -Hn)"
        )
        command = await fake.ask("CHECKPOINT continue -1")
        assert await command.until("PROGRESS") == f"PROGRESS {reason}"
        monkeypatch.setattr(coordinator, "CONNECT_SECONDS", 0.0)  # the time has expired
        assert (await command.end())[-1].startswith(f"RESULT failed {reason}; these ranks have stopped trying")
        assert (await fake.status())["waiting"] == [reason]
        monkeypatch.setattr(processes, "RESERVED", 0)
        await fake.join(*fake.ranks[1:])
        assert (await fake.checkpoint()).startswith("RESULT ok")

    monkeypatch.setattr(coordinator, "CONNECT_SECONDS", NEVER)
    # how often the coordinator checks whether the time has expired
    monkeypatch.setattr(report, "LATE_SECONDS", 0.1)
    play(tmp_path, test, connect=False)


def test_who_is_waited_for(tmp_path: Path, progress: None) -> None:
    """Rank 0 has entered a collective; rank 1 still computes before it."""

    async def test(fake: FakeJob) -> None:
        zero, one = fake.ranks
        zero.clock.enter_collective(WORLD)
        command = await fake.ask("CHECKPOINT continue -1")
        assert "'MPI_COMM_WORLD'" in await command.until("PROGRESS rank 1 has computed for ")
        status = await fake.status()
        assert status["phase"] == "waiting for a safe moment"
        assert (
            status["ranks"][0]["state"] == "collective"
            and status["ranks"][0]["waits_for"] == "communicator 'MPI_COMM_WORLD'"
        )
        one.clock.enter_collective(WORLD)
        one.clock.exit_collective()
        one.flush()
        zero.clock.exit_collective()
        zero.flush()
        assert (await command.end())[-1].startswith("RESULT ok")

    play(tmp_path, test, ranks=2)


def test_finishing(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[0].send("DONE 0")
        await fake.until(lambda: fake.coordinator.ranks.known[0].done)
        assert await fake.checkpoint() == "RESULT failed the job is finishing"
        await fake.end()
        assert job.read(fake.dir).state == "done"

    play(tmp_path, test)


def test_done_in_mid_checkpoint(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[2].act["FREEZE"] = "DONE 0"
        assert (await fake.checkpoint()).startswith("RESULT failed the job is finishing")
        await fake.ranks[0].until("ABORT")
        assert not fake.temporary()

    play(tmp_path, test)


def test_then_exit(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        assert "ok" in await fake.checkpoint("exit")
        await fake.task
        assert fake.ranks[0].seen[-1].startswith("RESUME 1 exit ")
        assert job.read(fake.dir).state == "checkpointed"

    play(tmp_path, test)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_stop(tmp_path: Path, checkpoint: bool) -> None:
    async def test(fake: FakeJob) -> None:
        answer = (await fake.command(f"STOP {int(checkpoint)}"))[-1]
        await fake.task
        assert answer.strip() == (f"RESULT ok {fake.dir}/ckpt-000001" if checkpoint else "RESULT ok")
        assert job.read(fake.dir).state == ("checkpointed" if checkpoint else "stopped")

    play(tmp_path, test)


async def ordered(fake: FakeJob, text: str) -> None:
    await fake.until(lambda: fake.coordinator.report.waiting() == [text])


def test_stop_with_the_next_checkpoint(tmp_path: Path) -> None:
    """Also if one fails meanwhile."""

    async def test(fake: FakeJob) -> None:
        stopped = asyncio.ensure_future(fake.command("STOP next"))
        await ordered(fake, "the job ends with its next checkpoint")
        fake.ranks[1].act["CHECK"] = "REFUSED {epoch} a socket"
        assert "failed" in await fake.checkpoint()
        del fake.ranks[1].act["CHECK"]
        await ordered(fake, "the job ends with its next checkpoint")
        assert "ok" in await fake.checkpoint()
        await fake.task
        assert (await stopped)[-1].strip() == f"RESULT ok {fake.dir}/ckpt-000001"
        assert job.read(fake.dir).state == "checkpointed"

    play(tmp_path, test)


def test_stop_before_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_stop, "LEAD_SECONDS", NEVER)

    async def test(fake: FakeJob) -> None:
        answer = (await fake.command(f"STOP before {int(NEVER * 500)} noon"))[-1]
        await fake.task
        assert answer.strip() == f"RESULT ok {fake.dir}/ckpt-000001"

    play(tmp_path, test)


@pytest.mark.parametrize(
    ("order", "text"), [("next", "with its next checkpoint"), ("before 99999999 noon", "before noon")]
)
def test_stop_is_taken_back(tmp_path: Path, order: str, text: str) -> None:
    async def test(fake: FakeJob) -> None:
        assert "there is no pending `manapy stop" in (await fake.command("STOP cancel"))[-1]
        stopped = asyncio.ensure_future(fake.command(f"STOP {order}"))
        await ordered(fake, f"the job ends {text}")
        assert (await fake.command("STOP cancel"))[-1].startswith("RESULT ok")
        assert "was withdrawn" in (await stopped)[-1]
        assert "ok" in await fake.checkpoint()
        assert job.read(fake.dir).state == "running"

    play(tmp_path, test)


def test_stop_is_taken_back_too_late(tmp_path: Path) -> None:
    """Its checkpoint has begun."""

    async def test(fake: FakeJob) -> None:
        stopped = asyncio.ensure_future(fake.command("STOP next"))
        await ordered(fake, "the job ends with its next checkpoint")
        fake.ranks[1].act["WRITE"] = "hold"
        asked = await fake.ask("CHECKPOINT continue -1")
        order = await fake.ranks[1].until("WRITE")
        assert "it is too late" in (await fake.command("STOP cancel"))[-1]
        fake.ranks[1].persist(order.split(" ")[1:])
        assert "RESULT ok" in (await asked.end())[-1] and "RESULT ok" in (await stopped)[-1]
        await fake.task

    play(tmp_path, test)


def test_job_that_ends_before_its_next_checkpoint(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        stopped = asyncio.ensure_future(fake.command("STOP next"))
        await ordered(fake, "the job ends with its next checkpoint")
        for rank in fake.ranks:
            rank.finish()
        await fake.task
        assert "the job has ended" in (await stopped)[-1]

    play(tmp_path, test)


def test_interval_and_keep(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        await fake.ranks[0].until("RESUME", 4)
        # one checkpoint may be new, and an old one not deleted yet
        kept = await fake.until(lambda: len(names := fake.published()) <= 3 and names)
        assert len(kept) >= 2 and kept[-1] >= "ckpt-000004"

    play(tmp_path, test, interval=0.1, keep=2)


def test_old_checkpoints_go_when_the_ranks_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are deleted not earlier, and neither ranks nor commands nor the next checkpoint wait for that."""
    deleted, delete = threading.Event(), publish.discard

    def slowly(tree: Path) -> None:
        assert deleted.wait(PATIENCE)
        delete(tree)

    async def test(fake: FakeJob) -> None:
        await fake.checkpoint()
        fake.ranks[0].act["RESUME"] = "hold"
        assert "ckpt-000002" in await fake.checkpoint()
        await fake.ranks[0].until("RESUME", 2)
        assert fake.published() == ["ckpt-000001", "ckpt-000002"]
        monkeypatch.setattr(publish, "discard", slowly)
        fake.ranks[0].act.clear()
        fake.ranks[0]._answer(fake.ranks[0].seen[-1])
        await fake.until(lambda: "ckpt-000001" not in fake.published())
        assert "ckpt-000003" in await fake.checkpoint() and fake.temporary()
        deleted.set()
        await fake.until(lambda: not fake.temporary())

    play(tmp_path, test, keep=1)


def test_program_asks(tmp_path: Path) -> None:
    """One checkpoint serves the calls of all ranks."""

    async def test(fake: FakeJob) -> None:
        for rank in fake.ranks[:2]:
            rank.send("REQUEST 1")
        await fake.until(lambda: len(fake.coordinator.tickets.called) == 2)
        await fake.status()
        assert fake.ranks[0].seen == []
        fake.ranks[2].send("REQUEST 1")
        for rank in fake.ranks:
            assert await rank.until("TICKET") == f"TICKET 1 ok {fake.dir}/ckpt-000001"
        assert fake.published() == ["ckpt-000001"]
        fake.ranks[0].act["CHECK"] = "REFUSED {epoch} no"
        for rank in fake.ranks:
            rank.send("REQUEST 2")
        assert await fake.ranks[1].until("TICKET", 2) == "TICKET 2 failed rank%200%3A%20no"

    play(tmp_path, test)


def test_patience_with_one_call_does_not_end_the_next() -> None:
    async def test() -> None:
        requests = Requests()
        tickets = CheckpointCalls(2, requests)
        tickets.add(0, 1)
        patience = tickets._patience
        tickets.add(1, 1)
        assert patience.cancelled() and (await requests.take()).tickets == [(0, 1), (1, 1)] and not tickets.called

    asyncio.run(test())


def test_restart_waits_for_all_ready(tmp_path: Path, progress: None) -> None:
    async def test(fake: FakeJob) -> None:
        command = await fake.ask("CHECKPOINT continue -1")
        for rank in fake.ranks[:2]:
            rank.send("READY 1")
        while await command.until("PROGRESS") != "PROGRESS rank 2 is still being restored":
            pass
        await fake.status()
        assert "GO" not in fake.ranks[0].kinds()
        fake.ranks[2].send("READY 1")
        for rank in fake.ranks:
            await rank.until("GO")
        assert (await command.end())[-1].startswith("RESULT ok")

    play(tmp_path, test, resume="/somewhere/ckpt-000001")


def test_restarted_job_knows_how_long_a_checkpoint_takes(tmp_path: Path) -> None:
    """`manapy stop --before` needs that."""

    async def test(fake: FakeJob) -> None:
        assert "ok" in await fake.checkpoint()
        await fake.end()

    async def restarted(fake: FakeJob) -> None:
        assert fake.coordinator.flow.took == 0.1

    play(tmp_path, test)
    play(tmp_path, restarted, agents=0, resume=str(tmp_path / "job" / "ckpt-000001"))


def test_leftovers_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "job" / "tmp-000001-0a1b2c"
    left.mkdir(parents=True)
    (left / "rank-00000.img").write_bytes(b"half")

    async def test(fake: FakeJob) -> None:
        assert not left.exists()
        assert "ckpt-000001" in await fake.checkpoint()

    play(tmp_path, test)


def test_unwritable_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(fake: FakeJob) -> None:
        real = Path.mkdir
        monkeypatch.setattr(
            Path,
            "mkdir",
            lambda self, *a, **k: (
                (_ for _ in ()).throw(PermissionError(13, "Permission denied", str(self)))
                if "tmp-" in self.name
                else real(self, *a, **k)
            ),
        )
        assert "Permission denied" in await fake.checkpoint()
        assert fake.ranks[0].seen == ["CHECK 1 5000"], "nothing has stopped"

    play(tmp_path, test)


def test_stranger_of_another_size(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        stranger = await FakeRank(0, 7).connect(fake.dir)
        await asyncio.wait_for(stranger.closed.wait(), PATIENCE)
        assert "ok" in await fake.checkpoint()

    play(tmp_path, test)


@pytest.mark.parametrize(("ranks", "state"), [(1, "ended"), (2, "failed")])
def test_ranks_that_never_came(tmp_path: Path, ranks: int, state: str) -> None:
    """Rank 0 ended before the coordinator listened."""

    async def test(fake: FakeJob) -> None:
        await fake.task
        record = job.read(fake.dir).record
        assert (record["state"], record["first_failure"]) == (state, None)

    play(tmp_path, test, ranks=ranks, connect=False, rank0_pid=ended_process())


def test_a_job_that_is_leaving_answers_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart directly after a failed one then waits for its end, instead of taking it for a running job."""
    monkeypatch.setattr(ranks, "LATE_SECONDS", NEVER)

    async def test(fake: FakeJob) -> None:
        while not fake.coordinator.ranks.leaving:
            await asyncio.sleep(0.01)
        with pytest.raises(CoordinatorError, match="job: its processes have ended$"):
            await asyncio.to_thread(command.Connection, job.read(fake.dir))
        assert await asyncio.to_thread(job.read(fake.dir).is_live)
        fake.coordinator.ranks.over.set()
        await fake.task

    play(tmp_path, test, ranks=2, connect=False, rank0_pid=ended_process())


def test_first_failure_is_the_one_whose_connection_was_lost_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1, on another host, dies, and mpirun kills rank 0. The coordinator learns of rank 0's death first, because
    rank 0 is on its host."""
    victim = subprocess.Popen(["sleep", "600"])

    async def test(fake: FakeJob) -> None:
        ranks = fake.coordinator.ranks
        processes.watch(victim.pid, lambda: ranks._on_gone(ranks.known[0]))
        fake.ranks[1].die()
        await fake.until(lambda: not ranks.known[1].connected)
        victim.kill()
        victim.wait()
        await fake.until(lambda: ranks.known[0].gone)
        assert not ranks.known[1].gone
        ranks._on_gone(ranks.known[1])
        await fake.task
        record = job.read(fake.dir).record
        assert record["state"] == "failed" and record["first_failure"] == {"rank": 1, "host": "elsewhere", "code": None}

    monkeypatch.setattr(ranks, "EXEC_SECONDS", NEVER)
    play(tmp_path, test, ranks=2)


def test_ranks_that_end_are_told_when_it_is_noted(tmp_path: Path) -> None:
    """The end of the last rank is on disk before any rank may leave. An error is written at once."""

    async def test(fake: FakeJob) -> None:
        for rank in fake.ranks[:2]:
            rank.send("DONE 0")
        await fake.until(lambda: all(fake.coordinator.ranks.known[number].done for number in (0, 1)))
        await fake.status()
        assert all("NOTED" not in rank.kinds() for rank in fake.ranks)
        fake.ranks[2].send("DONE 0")
        for rank in fake.ranks:
            await rank.until("NOTED")
        assert [job.read(fake.dir).record[key] for key in ("state", "code", "first_failure")] == ["done", 0, None]

    play(tmp_path, test)


def test_many_ends_are_noted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, written, write = 60, [], job.write

    async def test(fake: FakeJob) -> None:
        monkeypatch.setattr(job, "write", lambda *arguments: (written.append(1), write(*arguments)))
        for rank in fake.ranks:
            rank.send("DONE 3")
        for rank in fake.ranks:
            await rank.until("NOTED")
        assert len(written) < ranks / 4 and sum(len(rank.seen) for rank in fake.ranks) <= 2 * ranks
        record = job.read(fake.dir).record
        assert (record["state"], record["code"], record["first_failure"]["code"]) == ("done", 3, 3)

    play(tmp_path, test, ranks=ranks)


def test_rank_that_ends_with_an_error(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[0].send("DONE 0")
        fake.ranks[1].send("DONE 3")
        await fake.ranks[1].until("NOTED")
        record = job.read(fake.dir).record
        assert (record["state"], record["code"], record["first_failure"]["rank"]) == ("failed", 3, 1)
        await fake.status()
        assert "NOTED" not in fake.ranks[0].kinds()

    play(tmp_path, test)


def test_ranks_that_come_late_do_not_undo_what_is_noted(tmp_path: Path) -> None:
    """The coordinator may be killed directly after it has told a rank so. Ranks of other hosts may not have connected
    by then."""

    async def test(fake: FakeJob) -> None:
        await fake.join(fake.ranks[0])
        fake.ranks[0].send("DONE 3")
        await fake.ranks[0].until("NOTED")
        await fake.join(*fake.ranks[1:])
        await fake.until(lambda: fake.coordinator.state == "running")
        assert (await fake.status())["state"] == "running"
        record = job.read(fake.dir).record
        assert (record["state"], record["code"], record["first_failure"]["rank"]) == ("failed", 3, 0)

    play(tmp_path, test, connect=False)
