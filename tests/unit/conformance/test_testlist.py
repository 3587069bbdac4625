"""Lists of programs in the layout of MPICH's test/mpi."""

from __future__ import annotations

from pathlib import Path

import pytest
import testlist
from testlist import Case, ListError


@pytest.mark.parametrize(
    ("line", "case"),
    [
        ("plain", Case("f", "plain", 2)),
        ("plain 5  # five", Case("f", "plain", 5)),
        ("@feature@plain 4", Case("f", "plain", 4)),
        ("below/plain 1", Case("f/below", "plain", 1)),
        ("plain 2 arg=-x=1 arg=-y=a,b", Case("f", "plain", 2, ("-x=1", "-y=a,b"))),
        ("plain 2 env=A=1 env=B=x=y timeLimit=30", Case("f", "plain", 2, env=(("A", "1"), ("B", "x=y")), limit=30.0)),
        (
            "plain 3 mpiexecarg=-ppn resultTest=TestStatus",
            Case("f", "plain", 3, launcher=("-ppn",), result="TestStatus"),
        ),
        ("plain 1 mem=6.5 xfail=ticket7 strict=false", Case("f", "plain", 1, memory=6.5, expected_to_fail="ticket7")),
        ("# plain 2", None),
        ("!sub:target", None),
        ("   ", None),
    ],
)
def test_lines(line: str, case: Case | None) -> None:
    assert testlist.parse(line, "f") == case


@pytest.mark.parametrize("line", ["plain two", "plain 2 timeLimit=long"])
def test_lines_that_are_wrong_name_their_folder(line: str) -> None:
    with pytest.raises(ListError, match="folder: not a number"):
        testlist.parse(line, "folder")


def test_folders_below_and_folders_that_may_be_left_out(tmp_path: Path) -> None:
    for folder, name, text in (
        ("top", "testlist.in", "one 1\n@rmadir@\n@faultsdir@\nother\n"),
        ("top/rma", "testlist", "two 2 arg=2\n"),
        ("top/rma", "testlist.in", "not this one, testlist is there\n"),
        ("top/rma", "testlist.dtp", "two 2 arg=3\n"),
        ("top/other", "testlist", "three 3\n"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    names = [case.name for case in testlist.cases(tmp_path, "top")]
    assert names == ["top/one 1", "top/rma/two 2 2", "top/rma/two 2 3", "top/other/three 3"]


def test_a_folder_without_a_list(tmp_path: Path) -> None:
    with pytest.raises(ListError, match="has no testlist"):
        list(testlist.cases(tmp_path, "."))
