"""lowerhalf/rdma/requests/work.c: journals of work requests, compared with a list in Python. work_driver.c plays the
owner; it is built with sanitizers."""

from __future__ import annotations

import json
import subprocess
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import rounds
from work_requests import ATOMICS, DRIVERS, INLINE, build, u32, u64


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    work = root / "lowerhalf" / "rdma" / "requests" / "work.c"
    return build(tmp_path_factory.mktemp("work") / "work_driver", [DRIVERS / "work_driver.c", work])


def run(driver: Path, commands: list[str]) -> list[str]:
    done = subprocess.run([driver], input="\n".join(commands), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@dataclass
class Journal:
    """The model: the expected answers."""

    capacity: int
    max_sge: int
    max_inline: int
    sends: bool

    def __post_init__(self) -> None:
        self.held: deque[dict[str, Any]] = deque()
        self.first = 0

    def append(self, request: dict[str, Any], elements: list[tuple[int, int, int]]) -> str:
        inline = self.sends and request["flags"] & INLINE
        length = sum(element[1] for element in elements)
        if len(self.held) == self.capacity or (length > self.max_inline if inline else len(elements) > self.max_sge):
            return "-"
        entry = request | {
            "length": length,
            "sge": [] if inline else [list(element) for element in elements],
            "next": False,
        }
        entry["inline"] = b"".join(bytes([address % 256]) * n for address, n, _ in elements).hex() if inline else ""
        self.held.append(entry)
        return str(self.first + len(self.held) - 1)

    def drop(self, n: int) -> str:
        for _ in range(n):
            self.held.popleft()
        self.first += n
        return str(self.first)


@settings(max_examples=rounds(50, 150), deadline=None)
@given(st.data())
def test_a_journal_holds_what_was_appended(driver: Path, data: st.DataObject) -> None:
    sends = data.draw(st.booleans())
    depth, max_sge = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 4))
    max_inline = data.draw(st.sampled_from([0, 1, 28, 100])) if sends else 0
    capacity = 1
    while capacity < depth:
        capacity *= 2
    model = Journal(capacity, max(max_sge, 1), max_inline, sends)
    commands, answers = (
        [f"sends {depth} {max_sge} {max_inline}" if sends else f"recvs {depth} {max_sge}"],
        [str(capacity)],
    )
    for step in data.draw(st.lists(st.sampled_from(["append", "append", "append", "drop", "show"]), max_size=40)):
        if step == "append":
            opcode, flags = (
                data.draw(st.sampled_from([0, 1, 2, 3, 4, 5, 6])),
                data.draw(st.integers(0, 31)) if sends else 0,
            )
            inline = flags & INLINE
            elements = data.draw(st.lists(st.tuples(u64, st.integers(0, 40) if inline else u32, u32), max_size=6))
            scatter = " ".join(f"{address} {n} {key}" for address, n, key in elements)
            request: dict[str, Any] = {"wr_id": data.draw(u64)}
            if sends:
                extra, remote, operands = (
                    data.draw(u32),
                    [data.draw(u64), data.draw(u32)],
                    [data.draw(u64), data.draw(u64)] if opcode in ATOMICS else [0, 0],
                )
                commands.append(
                    f"send {request['wr_id']} {opcode} {flags} {extra} {remote[0]} {remote[1]} {operands[0]} "
                    f"{operands[1]} {len(elements)} {scatter}"
                )
                request |= {
                    "opcode": opcode,
                    "flags": flags,
                    "extra": extra,
                    "first_psn": 0,
                    "packets": 0,
                    "remote": remote,
                    "operands": operands,
                }
            else:
                commands.append(f"recv {request['wr_id']} {len(elements)} {scatter}")
            answers.append(model.append(request, elements))
        elif step == "drop":
            n = data.draw(st.integers(0, len(model.held)))
            commands.append(f"drop {n}")
            answers.append(model.drop(n))
        else:
            commands.append("show")
            answers.extend(map(json.dumps, model.held))
    commands.append("show")
    answers.extend(map(json.dumps, model.held))
    for actual, wanted in zip(run(driver, commands), answers, strict=True):
        assert json.loads(actual) == json.loads(wanted) if wanted.startswith("{") else actual == wanted


def test_no_memory_is_an_error(driver: Path) -> None:
    """4 G entries of 64 KiB are more than the address space."""
    assert run(driver, ["sends 4294967295 65535 4294967295"]) == ["0"]
