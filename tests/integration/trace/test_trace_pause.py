"""MPI_Pcontrol(0) under both recorders: paused calls leave no record, no rank is accused because of them, and the calls
after the pause match those of the ranks that did not pause."""

from __future__ import annotations

import json
import sys
import time

import pytest
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy

from manapy.trace.capture import locate, rings
from manapy.trace.hang import hang
from manapy.trace.model import match
from manapy.trace.model.events import OPEN, Flag, Op
from manapy.trace.model.verdict import State


pytestmark = pytest.mark.usefixtures("trace_root")


def nobody_is_accused(job: Job) -> None:
    """Wait until the verdict is UNKNOWN, with the reason."""
    deadline = time.monotonic() + PATIENCE
    while True:
        done = manapy("why", job.dir, "--json")
        said = json.loads(done.stdout)
        assert said["state"] in ("healthy", "unknown"), said
        if (
            said["state"] == "unknown"
            and "rank 1, whose recording is paused (MPI_Pcontrol)" in said["verdicts"][0]["sentence"]
        ):
            assert (
                "rank 0 has waited" in said["verdicts"][0]["sentence"]
                and "MPI_Recv from rank 1, tag 4" in said["verdicts"][0]["sentence"]
            )
            return
        assert time.monotonic() < deadline, said


@pytest.mark.parametrize("recorder", ["manapy-launch", "manapy trace run"])
def test_a_pause_of_one_rank(job: Job, recorder: str) -> None:
    program = [sys.executable, PROGRAMS / "trace/paused.py", job.where / "go"]
    if recorder == "manapy-launch":
        job.start(*program)
    else:
        job.spawn([BIN / "manapy", "trace", "run", "--name", job.dir, "--", *job.mpirun, "-n", "2", *program])
    job.wait_for("paused")
    nobody_is_accused(job)
    folder = locate.find(str(job.dir)).folder
    if recorder == "manapy-launch":
        checkpoint = job.checkpoint()
        job.kill()
        (job.where / "go").touch()
        job.restart(checkpoint)
    (job.where / "go").touch()
    assert job.finish().endswith("ok\n")

    trace = rings.read(folder)
    zero, one = trace.ranks[0], trace.ranks[1]
    assert zero.whole and not one.lost and not one.paused and len(one.pauses) == 1
    events, matching = trace.events, match.match(trace)
    before = [Op(e["op"]) for e in events if e["rank"] == 1 and e["enter"] < one.pauses[0][0]]
    after = [int(i) for i in range(len(events)) if events["rank"][i] == 1 and events["enter"][i] > one.first_ns]
    assert before == [Op.INIT, Op.BARRIER, Op.RECV, Op.SEND], "a restart doesn't bring back what it has done meanwhile"
    assert [Op(events["op"][i]) for i in after] == [
        Op.SEND,
        Op.WAIT,
        Op.START,
        Op.RECV,
        Op.WAIT,
        Op.REQUEST_FREE,
        Op.BARRIER,
        Op.BARRIER,
        Op.FINALIZE,
    ]
    assert len(before) + len(after) == (events["rank"] == 1).sum()
    late, start, done = after[1], after[2], after[4]
    assert matching.post[late] == -1, "what it completes was begun meanwhile"
    assert (events["peer"][start], events["tag"][start], matching.post[done]) == (0, 3, start)
    # one barrier is on the communicator made during the pause, one follows a collective made during the pause
    for barrier in (after[6], after[7]):
        assert len(matching.collectives.calls(int(matching.collectives.of[barrier]))) == 2
    assert not (events["flags"] & Flag.FAILED).any() and (events["exit"] != OPEN).all()
    assert [verdict.state for verdict in hang.verdicts(trace)] == [State.HEALTHY]
