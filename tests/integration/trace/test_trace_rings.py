"""Records of real jobs under manapy-launch: calls of all kinds, checkpoint and restart inside a call, SIGKILL, an
overrun ring, no room, --no-trace."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from jobs import PROGRAMS, Job
from phases import answer, request

from manapy.core.proc import START, stat_fields
from manapy.trace.capture import format, locate, rings
from manapy.trace.model import windows
from manapy.trace.model.events import ANY, NO_PEER, OPEN, PROC_NULL, Flag, Op, Trace
from waiting import until


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a trace root for this test only."""
    where = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="manapy-test-"))
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(where))
    yield where
    shutil.rmtree(where)


@pytest.fixture
def program(c_program: Callable[[Path], Path]) -> Path:
    return c_program(PROGRAMS / "trace/trace_calls.c")


def read(job: Job) -> Trace:
    return rings.read(locate.find(str(job.dir)).folder)


def calls(trace: Trace, rank: int, thread: int = 0) -> list[np.void]:
    """Return the calls of one thread, in order."""
    return list(trace.events[(trace.events["rank"] == rank) & (trace.events["thread"] == thread)])


def only(found: list[np.void], *ops: Op) -> list[np.void]:
    return [e for e in found if e["op"] in ops]


def test_calls_of_all_kinds(job: Job, program: Path) -> None:
    job.start(program, "calls").finish()
    trace = read(job)
    assert trace.size == 2 and all(r.ended and not r.lost and not r.problems for r in trace.ranks.values())
    assert not np.any(trace.events["exit"] == OPEN) and np.all(trace.events["exit"] >= trace.events["enter"])
    assert [c.name for c in trace.comms][:2] == ["MPI_COMM_WORLD", "MPI_COMM_SELF"]
    zero, one = calls(trace, 0), calls(trace, 1)
    assert [zero[0]["op"], zero[-1]["op"]] == [Op.INIT, Op.FINALIZE]

    for rank, mine in enumerate((zero, one)):
        bcast = only(mine, Op.BCAST)[0]
        assert (bcast["peer"], bcast["bytes"], bcast["context"]) == (1, 24, 2)
        post, complete = only(mine, Op.ALLREDUCE)[0], only(mine, Op.TEST)[0]
        assert post["flags"] & Flag.NONBLOCKING and post["request"] == complete["request"] != 0 and post["context"] == 3
        receive, send = (
            e for e in mine if e["flags"] & Flag.NONBLOCKING and e["tag"] in (ANY, 1) and e["op"] in (Op.RECV, Op.SEND)
        )
        waits = only(mine, Op.WAITALL)
        assert [e["request"] for e in waits] == [receive["request"], send["request"]]
        assert [bool(e["flags"] & Flag.MORE) for e in waits] == [True, False]
        assert (waits[0]["peer"], waits[0]["tag"]) == (1 - rank, 1), (
            "the wildcard is resolved, though no status was asked for"
        )
        first, second = [e for e in mine if e["tag"] == 3]
        assert (first["op"], second["op"], first["flags"], first["enter"]) == (
            Op.SEND,
            Op.RECV,
            Flag.MORE,
            second["enter"],
        )
        failed = [e for e in mine if e["flags"] & Flag.FAILED]
        assert [(e["op"], e["peer"]) for e in failed] == [(Op.SEND, NO_PEER)]
        assert [int(e["op"]) for e in mine if e["op"] >= Op.WIN_FENCE] == [
            Op.WIN_FENCE,
            Op.WIN_FENCE,
            Op.WIN_LOCK,
            Op.WIN_UNLOCK,
        ]
        lock = only(mine, Op.WIN_LOCK)[0]
        assert lock["peer"] == 0, "rank 1 of the window is rank 0 of the world"
        assert lock["tag"] == windows.SHARED
    received = only(one, Op.RECV)[0]
    assert (received["peer"], received["tag"], received["bytes"], received["flags"]) == (0, 5, 4, Flag.WILDCARD)
    sent = [e for e in zero if e["tag"] == 4]
    assert (sent[0]["peer"], sent[0]["bytes"]) == (1, 48), "a derived type; and the split has turned the ranks round"
    assert [e["op"] for e in calls(trace, 0, 1)] == [Op.SEND], "the other thread has a ring of its own"
    for row, members in ((c.cid, c.members.tolist()) for c in trace.comms):
        assert row and members in ([0, 1], [1, 0], [0], [1])
    assert (
        len(
            {(e["comm"], e["context"]) for e in only(zero, Op.BARRIER)}
            & {(e["comm"], e["context"]) for e in only(one, Op.BARRIER)}
        )
        == 1
    )


FLUSHES = """
#include <mpi.h>
int main(int argc, char **argv) {
    int *base, one = 1;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Win_allocate(sizeof *base, sizeof *base, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    MPI_Win_lock_all(0, window);
    MPI_Accumulate(&one, 1, MPI_INT, 0, 0, 1, MPI_INT, MPI_SUM, window);
    MPI_Win_flush_local(0, window);
    MPI_Win_flush_local(0, window);
    MPI_Win_flush(0, window);
    MPI_Win_flush(0, window);
    MPI_Win_flush_local(0, window);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    return MPI_Finalize();
}
"""


def test_flushes_that_the_library_must_do(job: Job, c_program: Callable[[Path], Path], tmp_path: Path) -> None:
    """A local flush completes nothing at the target: one of the target must follow. One that is not needed takes no
    time."""
    source = tmp_path / "flushes.c"
    source.write_text(FLUSHES)
    job.start(c_program(source)).finish()
    for rank in range(2):
        flushes = only(calls(read(job), rank), Op.WIN_FLUSH)
        assert [bool(e["exit"] > e["enter"]) for e in flushes] == [True, True, True, False, False]


def test_a_restart_inside_a_call(job: Job, program: Path) -> None:
    job.start(program, "wait", job.where / "go").wait_for("ready")
    checkpoint = job.checkpoint()
    before = read(job)
    waits = [e for e in calls(before, 1) if e["op"] == Op.WAITALL]
    assert [e["exit"] for e in waits] == [OPEN] * 3 and all(e["flags"] & Flag.STOPPED for e in waits)
    assert not before.ranks[1].ended and before.now - waits[0]["enter"] > 0
    job.kill()
    (job.where / "go").touch()
    job.restart(checkpoint).finish()

    trace = read(job)
    assert all(r.generation == 1 and r.ended and not r.lost and r.first_ns == 0 for r in trace.ranks.values())
    for rank in range(2):
        mine = calls(trace, rank)
        assert [int(e["seq"]) for e in mine] == list(range(1, len(mine) + 1)), "the numbers go on"
        assert np.all(np.diff([int(e["enter"]) for e in mine]) >= 0)
        barriers = only(mine, Op.BARRIER)
        assert [(int(e["generation"]), int(e["context"])) for e in barriers] == [
            (0, 2),
            (0, 3),
            (0, 4),
            (0, 5),
            (0, 6),
            (1, 7),
        ]
        assert len({int(e["comm"]) for e in barriers}) == 1
    waits = only(calls(trace, 1), Op.WAITALL)
    assert [(int(e["generation"]), int(e["peer"]), int(e["tag"])) for e in waits] == [(1, 0, 0), (1, 0, 1), (1, 0, 2)]
    assert all(e["flags"] & Flag.STOPPED and e["exit"] != OPEN for e in waits)
    posts = only(calls(trace, 1), Op.RECV)
    assert [int(e["request"]) for e in posts] == [int(e["request"]) for e in waits]
    assert {int(e["generation"]) for e in posts} == {0}


def saved_at_the_entry_of_init(job: Job) -> bool:
    """Try to take a checkpoint of a job whose rank 0 has called MPI_Init, where it waits for the checkpoint, and whose
    rank 1 has not called it. Rank 1 goes on in small steps, so that it may be late with the answer on which the
    checkpoint depends. The checkpoint may also come before rank 0 is there, or have to wait for rank 1."""
    go, end = job.where / "go", job.where / "end"
    job.start_python("moments/edges.py", "early", str(go), str(end)).wait_for("in early")
    other = int(until(lambda: job.status()["ranks"][1]["pid"], job.report))
    asked = request(job)
    while job.status()["phase"] != "waiting for a safe moment":
        os.kill(other, signal.SIGCONT)
        if asked.poll() is not None:
            assert answer(asked)[0] == 0
            asked = request(job)
        time.sleep(0.001)
        os.kill(other, signal.SIGSTOP)
    go.touch()
    there, inits = time.monotonic() + 1, 0
    while not inits and time.monotonic() < there:
        inits = len(only(calls(read(job), 0), Op.INIT))
    os.kill(other, signal.SIGCONT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        asked.communicate(timeout=3)
    return asked.poll() == 0 and inits == 1


def test_a_restart_at_the_entry_of_init(make_job: Callable[..., Job]) -> None:
    """Rank 0 has made the world's communicator before the checkpoint. The new recording has one world."""
    job = make_job(2)
    for _ in range(40):
        if saved_at_the_entry_of_init(job):
            break
        job.kill()
        job = make_job(2)
    job.kill()
    (job.where / "end").touch()
    job.restart().finish()

    trace = read(job)
    assert [c.name for c in trace.comms].count("MPI_COMM_WORLD") == 1
    inits = only(list(trace.events), Op.INIT)
    assert [bool(e["flags"] & Flag.STOPPED) for e in inits] == [True, False]
    assert {trace.comms[e["comm"]].name for e in inits} == {"MPI_COMM_WORLD"}
    barriers = [e for e in only(list(trace.events), Op.BARRIER) if e["generation"] == 1]
    assert {trace.comms[e["comm"]].name for e in barriers} == {"MPI_COMM_WORLD"}


def test_a_checkpoint_that_the_job_outlives(job: Job, program: Path) -> None:
    job.start(program, "wait", job.where / "go").wait_for("ready")
    job.checkpoint()
    (job.where / "go").touch()
    job.finish()
    trace = read(job)
    assert all(r.generation == 0 and r.ended for r in trace.ranks.values())
    assert [bool(e["flags"] & Flag.STOPPED) for e in only(calls(trace, 1), Op.WAITALL, Op.BARRIER)] == [False] * 5 + [
        True
    ] * 3 + [False]


def test_overrun_and_sigkill(job: Job, program: Path) -> None:
    many = format.CAPACITY + 1000
    job.start(program, "overrun", str(many)).wait_for("ready")
    until(lambda: all(any(e["op"] == Op.RECV for e in calls(read(job), r)[-1:]) for r in range(2)), "the last calls")
    folder = locate.find(str(job.dir)).folder
    pids = [r.pid for r in read(job).ranks.values()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # mpirun kills the other rank, too
            os.kill(pid, signal.SIGKILL)
    job.wait()
    trace = rings.read(folder)
    for rank in range(2):
        mine = calls(trace, rank)
        assert trace.ranks[rank].lost == many + 2 - format.CAPACITY and not trace.ranks[rank].ended
        assert mine[-1]["exit"] == OPEN and mine[-1]["peer"] == 1 - rank
        assert trace.ranks[rank].first_ns == mine[0]["enter"] and mine[0]["peer"] == PROC_NULL
        assert np.all(np.diff([int(e["tag"]) for e in mine[:-1]]) == 1)


MANY = """
#include <mpi.h>
#include <stdio.h>
enum { N = 70 };
int main(int argc, char **argv) {
    int rank, which, into[N];
    MPI_Request requests[N];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < N; i++) MPI_Irecv(&into[i], 1, MPI_INT, 1 - rank, i, MPI_COMM_WORLD, &requests[i]);
    if (rank == 0) puts("ready"), fflush(stdout);
    MPI_Waitany(N, requests, &which, MPI_STATUS_IGNORE); /* for ever */
}
"""


def test_a_call_with_more_requests_than_records_says_so_while_it_waits(
    job: Job, c_program: Callable[[Path], Path], tmp_path: Path
) -> None:
    source = tmp_path / "many.c"
    source.write_text(MANY)
    job.start(c_program(source)).wait_for("ready")
    until(lambda: all(any(e["op"] == Op.WAITANY for e in calls(read(job), r)[-1:]) for r in range(2)), "the last calls")
    for rank in range(2):
        waits = only(calls(read(job), rank), Op.WAITANY)
        assert {int(e["exit"]) for e in waits} == {OPEN}
        assert [bool(e["flags"] & Flag.CUT) for e in waits] == [False] * (len(waits) - 1) + [True]


def test_no_trace(job: Job, program: Path, root: Path) -> None:
    job.start(program, "calls", options=["--no-trace"]).finish()
    assert list(root.iterdir()) == []


def test_no_place_for_it(make_job: Callable[..., Job], program: Path) -> None:
    job = make_job(2)
    job.env["MANAPY_TRACE_ROOT"] = str(job.where / "nowhere")
    output = job.start(program, "calls").finish()
    assert sorted(output.splitlines()) == [
        f"manapy-launch: calls of rank {rank} are not recorded: cannot make"
        f" {job.where}/nowhere/manapy-trace-{os.getuid()}: No such file or directory"
        for rank in range(2)
    ]


def test_dead_jobs_are_cleared_away(job: Job, program: Path, root: Path) -> None:
    old = root / f"manapy-trace-{os.getuid()}" / "old"
    young = old.with_name("young")
    for folder in (old, young):
        folder.mkdir(parents=True, mode=0o700)
        folder.parent.chmod(0o700)
        format.Writer(folder, 0, 1, pid=2**22 + 5, pid_start=1, capacity=16).close()
    day = time.time() - 25 * 3600
    os.utime(old, (day, day))
    living = old.with_name("living")
    living.mkdir(mode=0o700)
    start = int(stat_fields(Path("/proc/self"))[START])
    host = socket.gethostname()
    format.Writer(living, 0, 1, host=host, pid=os.getpid(), pid_start=start, capacity=16)
    os.utime(living, (day, day))
    for name, where, space, changed in (
        ("killed", host, 0, day),
        ("on another host", "elsewhere", 0, day),
        ("in a container", host, 5, time.time()),
        ("in a container that is gone", host, 5, day),
    ):
        folder = old.with_name(name)
        folder.mkdir(mode=0o700)
        made = format.Writer(folder, 0, 1, host=where, pid=2**22 + 5, pid_start=1, capacity=16)
        made.head.pid_space = space
        made.close(format.RUNNING)
        os.utime(made.path, (changed, changed))
        os.utime(folder, (day, day))
    job.start(program, "calls").finish()
    assert (old.exists(), young.exists(), living.exists()) == (False, True, True)
    left = {folder.name for folder in old.parent.iterdir()}
    assert left >= {"on another host", "in a container"} and not left & {"killed", "in a container that is gone"}


def test_marks(job: Job) -> None:
    script = job.where / "marks.py"
    script.write_text(
        "import manapy.trace\nfrom mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
        "manapy.trace.mark(7) or print('unrecorded')\n"
        "world.Sendrecv(bytearray(3), world.rank, recvbuf=bytearray(3), source=world.rank)\n"
    )
    assert job.start(sys.executable, script).finish() == ""
    mine = calls(read(job), 0)
    assert [int(e["context"]) for e in only(mine, Op.MARK, Op.SEND, Op.RECV)] == [7, 7, 7]
