"""protocol.py is the mirror of control.h."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import layout
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manapy.ckpt import protocol
from manapy.clock import messages


def sections(include: Path) -> dict[str, set[str]]:
    """The names of the messages in each section of control.h's comment."""
    text = (include / "manapy" / "control.h").read_text().partition("*/")[0]
    found: dict[str, set[str]] = {}
    current = None
    for line in (raw.removeprefix(" *") for raw in text.splitlines()):
        if heading := re.match(r" (rank|coordinator|command|node) -> (rank|coordinator|command|node)( \w+ it)?", line):
            current = found.setdefault(heading[0].strip(), set())
        elif current is not None and line.startswith("   "):
            columns = line if " | " in line else line[:60]  # descriptions begin after this column
            current.update(re.findall(r"(?:^   |\| |       )([A-Z]{2,})\b", columns))
    return found


def test_same_messages(include: Path) -> None:
    found = sections(include)
    assert found["rank -> coordinator"] == protocol.FROM_RANK
    assert found["coordinator -> rank"] == protocol.TO_RANK
    assert found["node -> coordinator"] | {"LOST", "GONE"} == protocol.FROM_NODE
    assert found["coordinator -> node"] == protocol.TO_NODE
    own = {
        "COLLECT",
        "ASK",
        "MORE",
        "LEAVE",
        "PIECE",
        "ENDED",
        "SERVE",
        "SERVES",
        "KEYS",
        "KEYED",
        "STORE",
        "STORED",
    }  # through FOR and FROM
    assert found["node -> node above it"] | own & protocol.FROM_NODE == protocol.FROM_BELOW
    assert found["node -> node below it"] | own & protocol.TO_NODE == protocol.TO_BELOW
    assert found["command -> coordinator"] == protocol.FROM_COMMAND
    assert found["coordinator -> command"] == protocol.TO_COMMAND


def test_same_constants(include: Path, tmp_path: Path) -> None:
    names = {
        "MPY_PROTOCOL_VERSION": protocol.VERSION,
        "MPY_LINE_MAX": protocol.LINE_MAX,
        "MPY_SECRET_BYTES": protocol.SECRET_BYTES,
        "MPY_EXIT_CHECKPOINTED": protocol.EXIT_CHECKPOINTED,
        "MPY_INIT_MS": protocol.INIT_MS,
    }
    assert layout.c_values(tmp_path, include, "manapy/control.h", {name: name for name in names}) == names


def test_clock_messages_are_a_part() -> None:
    assert messages.KINDS <= protocol.FROM_RANK | protocol.TO_RANK


@given(st.text())
def test_strings_survive(text: str) -> None:
    coded = protocol.encode_text(text) if text.isprintable() else protocol.encode_text(ascii(text))
    assert coded and not re.search(r"[\x00-\x20\x7f-\uffff]", coded)
    assert protocol.decode_text(coded) == (text if text.isprintable() else ascii(text))


@pytest.mark.parametrize("text", ["", " ", "%", "a b\nc", "größe", "a:b,c"])
def test_join(text: str) -> None:
    line = protocol.join("KILL", 3, text)
    kind, code, coded = line.split(" ")
    assert (kind, code, protocol.decode_text(coded)) == ("KILL", "3", text)


@pytest.mark.parametrize("socket", ["local", "network"])
def test_last_words_are_read_after_sending_has_failed(driver: Callable[[str], Path], socket: str) -> None:
    """An agent has said that the coordinator is lost: then the agent is not, and the job goes on."""
    done = subprocess.run([driver("last_words"), socket], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "UNLED\n", "")
