"""Tables, bars and JSON: plain text where there is no terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os

import pytest
from manapy.cli.shared.arguments import seconds
from manapy.cli.shared.output import Output
from manapy.core.units import ago, size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make(json: bool = False, terminal: bool = False) -> tuple[Output, io.StringIO, io.StringIO]:
    kind = Terminal if terminal else io.StringIO
    file, err = kind(), kind()
    return Output(json=json, file=file, err=err), file, err


def test_plain_table() -> None:
    out, file, _ = make()
    out.table(("rank", "state"), [(0, "running"), (10, "blocked")])
    assert file.getvalue() == "rank  state\n   0  running\n  10  blocked\n"


def test_rich_table_keeps_brackets_of_the_data() -> None:
    out, file, _ = make(terminal=True)
    out.table(("a",), [("[bold]x",)])
    assert "[bold]x" in file.getvalue()


def test_json_only() -> None:
    out, file, err = make(json=True)
    out.line("no")
    out.table(("a",), [("no",)])
    with out.activity("no") as show, out.bar("no", 3) as advance:
        show("no")
        advance(1)
    out.data({"a": 1})
    assert json.loads(file.getvalue()) == {"a": 1} and err.getvalue() == ""


def test_path_that_is_not_utf8() -> None:
    with io.TextIOWrapper(io.BytesIO(), "utf-8") as file:
        Output(file=file).line(os.fsdecode(b"/home/m\xfcller"))
        file.seek(0)
        assert os.fsencode(file.read()) == b"/home/m\xfcller\n"


def test_full_disk() -> None:
    """An error that cannot be written ends nothing; a result that cannot be written does."""
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as full:
        out = Output(file=full, err=full)
        out.error("a checkpoint failed")
        with pytest.raises(OSError, match="No space"):
            out.line("a result")


def test_progress_goes_to_stderr() -> None:
    for terminal in (False, True):
        out, file, err = make(terminal=terminal)
        with out.activity("first") as show:
            show("rank 3 has computed for 40 s")
        with out.bar("checking", 100) as advance:
            advance(100)
        assert file.getvalue() == ""
        assert terminal or err.getvalue() == "rank 3 has computed for 40 s\n"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB"), (3e13, "30.0 TB")]
)
def test_size(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(("value", "text"), [(3, "3 s"), (150, "2 min"), (7200, "2 h"), (200000, "2 d")])
def test_ago(value: float, text: str) -> None:
    assert ago(value) == text


@pytest.mark.parametrize(
    ("text", "value"), [("5", 5.0), ("500ms", 0.5), ("30s", 30.0), ("2m", 120.0), ("1.5h", 5400.0)]
)
def test_seconds(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "-3s", "3 days"])
def test_no_seconds(text: str) -> None:
    with pytest.raises(Exception, match="not a time"):
        seconds(text)
