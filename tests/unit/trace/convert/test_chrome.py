"""Traces in Chrome's format, written by hand: NCCL's kernels by torch.profiler, and tracers of MPI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manapy.trace.capture import rings
from manapy.trace.convert import chrome, numbering, read
from manapy.trace.convert.foreign import Call, ForeignCommunicator, ForeignError, ForeignJob, ForeignRank, write
from manapy.trace.live.diagnose import diagnose
from manapy.trace.model.events import Op, Trace
from manapy.trace.model.verdict import State

BASE = 1_790_000_000 * 10**9
HOUR = 3600 * 10**6  # µs


def profile(rank: int, kernels: list[tuple[str, float, float]], *, size: int = 4, group: str = "0", clock: float = 0,
            host: str = "") -> dict[str, Any]:  # fmt: skip
    """The trace of one rank. kernels: name, begin and duration, µs. clock: what its clock is ahead, µs."""
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"ncclDevKernel_{name}",
            "ts": begin + clock,
            "dur": duration,
            "pid": 0,
            "tid": 20,
            "args": {
                "Collective name": name,
                "Process Group Name": group,
                "Process Group Ranks": str(list(range(size))),
                "In msg nelems": 10,
                "dtype": "Float",
                "stream": 20,
            },
        }
        for name, begin, duration in kernels
    ]
    end = {"ph": "i", "name": "Record Window End", "ts": max(begin + dur for _, begin, dur in kernels) + clock + 1}
    return {
        "baseTimeNanoseconds": BASE,
        "distributedInfo": {"rank": rank, "world_size": size},
        **({"host_name": host} if host else {}),
        "traceEvents": [*events, end],
    }


def imported(folder: Path, *files: Any) -> Trace:
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(files):
        (folder / f"rank{number}.json").write_text(json.dumps(data))
    write(read.read([folder]), folder / "out")
    return rings.read(folder / "out")


def training(slow: int, steps: int = 12, *, size: int = 4, skipped: int = 0, clock: float = 0) -> list[dict[str, Any]]:
    """A job in which a rank comes 40 ms late to each all_reduce. The window of the last rank begins some steps later,
    and its clock is ahead by `clock` µs."""
    found = []
    for rank in range(size):
        kernels = []
        for step in range(skipped if rank == size - 1 else 0, steps):
            end = 100_000.0 * (step + 1)
            begin = end - (1_000 if rank == slow else 41_000)
            kernels += [("allreduce", begin, end - begin), ("allgather", end + 10, 500)]
        found.append(profile(rank, kernels, clock=clock if rank == size - 1 else 0))
    return found


@pytest.mark.parametrize("skipped,clock", [(0, 0.0), (3, 0.0), (2, 3_000.0), (2, -3_000.0)])
def test_windows_and_clocks_that_differ_a_little(skipped: int, clock: float, tmp_path: Path) -> None:
    found = imported(tmp_path / "files", *training(1, skipped=skipped, clock=clock))
    said = diagnose(found)[0]
    assert said.state is State.SLOW and said.rank == 1, said
    last = found.events[(found.events["rank"] == 3) & (found.events["op"] == Op.ALLREDUCE)]
    assert int(last["context"][0]) == 2 * skipped + 1 and int(last["bytes"][0]) == 40


@pytest.mark.parametrize("clock", [HOUR, -HOUR])
def test_a_rank_with_a_wrong_clock_is_left_out(clock: float, tmp_path: Path) -> None:
    found = imported(tmp_path / "files", *training(1, skipped=2, clock=clock))
    assert sorted(found.ranks) == [0, 1, 2] and (found.events["op"] == Op.ALLREDUCE).sum() == 36
    said = diagnose(found)
    assert all(one.state is not State.SLOW and one.rank is None for one in said), said


def test_the_wrong_clock_may_be_the_first(tmp_path: Path) -> None:
    jobs = training(1)
    jobs[0] = profile(0, [("allreduce", 100_000.0 * step + 59_000, 41_000) for step in range(12)], clock=HOUR)
    assert sorted(imported(tmp_path / "files", *jobs).ranks) == [1, 2, 3]


def test_windows_that_do_not_overlap(tmp_path: Path) -> None:
    early, late = [[("allreduce", begin + 100.0 * i, 50.0) for i in range(9)] for begin in (0.0, 5e6)]
    job = read.read([save(tmp_path / "rank0.json", profile(0, early, size=2)),
                     save(tmp_path / "rank1.json", profile(1, late, size=2))])  # fmt: skip
    assert any("rank 1 belong to those of rank 0 can't be told" in note for note in job.notes)


def test_a_rank_without_calls_in_its_window_is_not_said_to_have_made_none(tmp_path: Path) -> None:
    files = training(1)
    files[3] = profile(3, [("send", 1_150_000, 10)])
    found = imported(tmp_path / "files", *files)
    assert found.ranks[3].first_ns > 0 and not (found.events["rank"] == 3)[found.events["op"] != Op.MARK].any()


def save(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def test_contradictions_between_files(tmp_path: Path) -> None:
    one = profile(0, [("allreduce", 0, 10)], size=2)
    other = {**profile(1, [("allreduce", 0, 10)], size=2), "distributedInfo": {"rank": 1, "world_size": 8}}
    with pytest.raises(ForeignError, match="jobs of 2 and 8 ranks"):
        chrome.job([(tmp_path / "a", one), (tmp_path / "b", other)])
    others = profile(1, [("allreduce", 0, 10)], size=2)
    others["traceEvents"][0]["args"]["Process Group Ranks"] = "[1, 2]"
    with pytest.raises(ForeignError, match="other members than in another trace"):
        chrome.job([(tmp_path / "a", one), (tmp_path / "b", others)])
    broken = profile(0, [("allreduce", 0, 10)])
    broken["traceEvents"][0]["ts"] = "yesterday"
    with pytest.raises(ForeignError, match="has no ts"):
        chrome.job([(tmp_path / "a", broken)])


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([Op.ALLREDUCE, Op.ALLGATHER, Op.BCAST]), min_size=1, max_size=14),
    st.integers(0, 6), st.integers(0, 6), st.integers(-30_000_000, 30_000_000), st.booleans(),
    st.lists(st.integers(1, 200_000_000), min_size=14, max_size=14),
)  # fmt: skip
def test_collectives_are_numbered_right_or_not_at_all(
    ops: list[Op], first: int, second: int, ahead: int, one_host: bool, gaps: list[int]
) -> None:
    """Two windows into one sequence of collectives. With one host the clocks agree; else they may differ by some ms."""
    ahead = 0 if one_host else max(min(ahead, numbering.TRUST // 2), -numbering.TRUST // 2)
    begin, truth = BASE, []
    for op, gap in zip(ops, gaps, strict=False):
        begin += gap
        truth.append((op, begin, begin + 1000))
    ranks = {}
    for rank, since in enumerate((first, second)):
        shift = ahead if rank else 0
        calls = [Call(op, enter + shift, exit + shift, "g") for op, enter, exit in truth[since:]]
        host = "one" if one_host else f"host {rank}"
        ranks[rank] = ForeignRank(rank, "", calls, begin + 2000, host, since=BASE)
    job = ForeignJob("", 2, ranks, {"g": ForeignCommunicator((0, 1))})
    numbering.number(job)
    numbers: list[dict[int, int]] = [{}, {}]
    for rank, since in enumerate((first, second)):
        for place, call in enumerate(job.ranks[rank].calls if rank in job.ranks else ()):
            if call.seq:
                numbers[rank][call.seq] = place + since
    for seq in numbers[0].keys() & numbers[1].keys():
        assert numbers[0][seq] == numbers[1][seq]
