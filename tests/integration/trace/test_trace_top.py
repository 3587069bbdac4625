"""`manapy trace top` on a terminal: for a saved recording, for a job that runs until it ends, and for one that is
stuck."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import BIN, Job, manapy
from terminal import Terminal
from traces import receive, saved

from manapy.trace.capture import format

RANKS = 3

View = Callable[..., Terminal]


@pytest.fixture
def top() -> Iterator[View]:
    """Return a function that starts a view. Several views may look at one job at the same time."""
    made: list[Terminal] = []

    def start(*arguments: str | Path) -> Terminal:
        made.append(Terminal(BIN / "manapy", "trace", "top", *arguments))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, RANKS)
    try:
        yield job
    finally:
        job.end()


def ranks(lines: list[str]) -> dict[int, list[str]]:
    """Return the words of each rank's line."""
    return {int(words[0]): words for line in lines if (words := line.split()) and words[0].isdigit()}


def test_a_saved_recording_is_one_picture(tmp_path: Path, top: View) -> None:
    view = top(saved(tmp_path / "saved", receive(1), receive(0), end=format.RUNNING))
    assert view.wait() == 0 and view.is_sane()
    shown = view.screen()
    assert shown[0].startswith("saved: 2 ranks, ") and shown[-1].startswith("why: deadlock of ranks 0, 1")
    assert {rank: words[1] for rank, words in ranks(shown).items()} == {0: "waiting", 1: "waiting"}


@pytest.mark.mpi
def test_a_job_that_goes_on(job: Job, top: View) -> None:
    """The view is redrawn in place. Ctrl-C ends only the view. Otherwise it ends with the job."""
    job.start_python("trace/stuck.py", "healthy")
    job.wait_for("going on")
    left, to_the_end = top(job.dir, "--every", "300ms"), top(job.dir, "--sort", "wait")

    def busy(lines: list[str]) -> bool:
        return len(ranks(lines)) == RANKS and any(line.startswith("why: nobody is stuck") for line in lines)

    first = left.wait_for(busy)
    left.wait_for(lambda lines: busy(lines) and lines != first)
    to_the_end.wait_for(busy)
    left.type(b"\x03")
    assert left.wait() == 0 and left.is_sane()
    assert len([line for line in left.screen() if line.startswith("rank ")]) == 1 and "Traceback" not in "".join(
        left.screen()
    )
    assert job.process is not None and job.process.poll() is None

    said = json.loads(manapy("trace", "top", job.dir, "--json", "--every", "500ms").stdout)
    assert said["state"] == "unknown" and [row["rank"] for row in said["ranks"]] == list(range(RANKS))
    assert all(row["calls_s"] > 0 and row["sent_s"] > 0 and 0 <= row["waited"] <= 1 for row in said["ranks"]), said
    assert all(row["state"] in ("computing", "awaited", "waiting", "transfer") for row in said["ranks"]), said

    (job.where / "end").touch()
    job.wait()
    assert to_the_end.wait() == 0 and to_the_end.is_sane()
    final = to_the_end.screen()
    assert final[-1] == f"why: healthy: all {RANKS} ranks have finalized MPI", final
    assert {words[1] for words in ranks(final).values()} == {"finished"} and len(
        [line for line in final if line.startswith("rank ")]
    ) == 1, final


@pytest.mark.mpi
def test_a_rank_that_is_stuck(job: Job, top: View) -> None:
    job.start_python("trace/stuck.py", "spin")
    job.wait_for("stuck")
    view = top(job.dir, "--sort", "state")
    shown = view.wait_for(lambda lines: any(line.startswith("why: rank 1 ") for line in lines))
    assert "it has not called MPI_Recv" in shown[-1], shown  # the sentence is cut to fit into a line
    first, *others = ranks(shown).values()
    assert first[:2] == ["1", "awaited"] and all(words[1] == "waiting" for words in others), shown
    said = json.loads(manapy("trace", "top", job.dir, "--json").stdout)
    assert (
        said["ranks"][0]["waits_for"] == [1]
        and said["ranks"][0]["waited"] == pytest.approx(1)
        and said["ranks"][1]["waited"] == 0
    )
    assert (
        said["state"] == "late" and "it has not called MPI_Recv from rank 0, tag 7" in said["verdicts"][0]["sentence"]
    )
    job.kill()
    assert view.wait() == 0 and view.is_sane()
