"""`manapy status` of many ranks fits a screen."""

from __future__ import annotations

import io
from typing import Any

import pytest
from manapy.cli.shared.output import Output
from manapy.cli.watch import job_status
from manapy.core.units import ranges


def status(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "j", "dir": "/d", "state": "running", "size": len(ranks), "protocol": "cc", "ranks": ranks,
        "checkpoint_dir": "/d", "dirty": "", "dirty_used": [], "last_checkpoint": None, "waiting": [],
    }  # fmt: skip


def rank(number: int, state: str = "running", waits_for: str | None = None) -> dict[str, Any]:
    host = f"n{number // 64}"
    return {"rank": number, "host": host, "pid": number, "state": state, "waits_for": waits_for, "program": "solver"}


def shown(ranks: list[dict[str, Any]], *, each: bool = False) -> list[list[str]]:
    out = io.StringIO()
    job_status.show(status(ranks), Output(file=out), each=each)
    return [line.split() for line in out.getvalue().splitlines()]


def test_few_ranks_one_by_one() -> None:
    lines = shown([rank(number) for number in range(job_status.MANY)])
    assert len(lines) == 1 + 1 + job_status.MANY + 1 and lines[2] == ["0", "n0", "0", "running", "solver"]


def test_many_ranks_in_groups() -> None:
    ranks = [rank(number, "collective" if number % 100 == 7 else "running") for number in range(10_000)]
    lines = shown(ranks)
    assert lines[1] == "ranks which hosts state waits for program".split()
    assert lines[2] == "9900 0-6, 8-106, 108-206, 208-306, 308-406, … n0 and 156 more running solver".split()
    assert lines[3][:3] == ["100", "7,", "107,"] and lines[3][-2:] == ["collective", "solver"]
    assert lines[4] == "--ranks shows each rank".split() and len(lines) == 6


def test_each_of_many() -> None:
    assert len(shown([rank(number) for number in range(100)], each=True)) == 1 + 1 + 100 + 1


def test_only_the_largest_groups() -> None:
    lines = shown([rank(number, "blocked", f"rank {number // 2}") for number in range(100)])
    assert len(lines) == 2 + job_status.GROUPS + 3
    assert lines[-3] == "and 60 ranks in 30 smaller groups".split()


def of_several(number: int, processes: int | None) -> dict[str, Any]:
    names = [(number + i, number if i else None) for i in range(processes or 0)]
    tree = [{"pid": p, "known_as": p + i, "parent": up, "state": "S", "name": "sh"} for i, (p, up) in enumerate(names)]
    return rank(number) | {"processes": None if processes is None else tree, "mpi": "up"}


def test_ranks_of_several_processes() -> None:
    numbers = [3, 3, 5, 0, None]
    lines = shown([of_several(number, each) for number, each in enumerate(numbers)])
    assert lines[1][-1] == "processes" and [line[-1] for line in lines[2:7]] == ["3", "3", "5", "1", "?"]
    assert " ".join(lines[7]) == "2 ranks with 3 processes each, 1 with 5: --rank R shows those of rank R"
    lines = shown([of_several(number, 3 + number % 2 if number < 9000 else 0) for number in range(10_000)])
    assert lines[2][-1] == "1-4" and len(lines) == 6
    assert " ".join(lines[4]).startswith("4500 ranks with 3 processes each, 4500 with 4: ")


def test_whole_trees() -> None:
    out = io.StringIO()
    ranks = [of_several(0, 2), of_several(7, None), of_several(8, 0)]
    job_status.show(status(ranks), Output(file=out), trees=True)
    assert out.getvalue().splitlines()[5:-1] == [
        "rank 0:",
        "  0 sh (MPI process): sleeping",
        "  └─ 1 sh: sleeping, known to the program as 2",
        "rank 7 has not reported its processes; process 7 may be stopped",
    ]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "3"),
        ([0, 1, 2, 5], "0-2, 5"),
        (list(range(9)), "0-8"),
        (list(range(0, 80, 2)), "0, 2, 4, 6, 8, 10, 12, 14"),
    ],
)
def test_lists_of_ranks(ranks: list[int], text: str) -> None:
    assert ranges(ranks, job_status.SHOWN).startswith(text)
    assert len(ranges(ranks, job_status.SHOWN)) <= job_status.SHOWN + len("12345-12345, …")
