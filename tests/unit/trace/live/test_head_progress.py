"""Progress of all ranks, judged by the heads of their rings."""

from __future__ import annotations

from pathlib import Path

import pytest

from manapy.trace.capture import format
from manapy.trace.live.head_progress import ProgressWatch
from manapy.trace.model.events import Op


def writer(folder: Path, rank: int, generation: int = 0) -> format.Writer:
    found = format.Writer(folder, rank, 2, generation=generation, capacity=64, rings=2)
    found.ring()
    call(found)
    return found


def call(writer: format.Writer) -> None:
    writer.put(op=Op.BARRIER, enter=1, exit=2)


@pytest.fixture
def ranks(tmp_path: Path) -> list[format.Writer]:
    return [writer(tmp_path, rank) for rank in range(2)]


@pytest.fixture
def pulse(tmp_path: Path, ranks: list[format.Writer]) -> ProgressWatch:
    """Return a ProgressWatch that has been asked once."""
    found = ProgressWatch(tmp_path)
    assert not found.beats()
    return found


def test_all_go_on(pulse: ProgressWatch, ranks: list[format.Writer]) -> None:
    for _ in range(100):  # the rings wrap around
        for rank in ranks:
            call(rank)
        assert pulse.beats()
    assert not pulse.beats()


def test_one_does_not(pulse: ProgressWatch, ranks: list[format.Writer]) -> None:
    call(ranks[0])
    assert not pulse.beats()
    call(ranks[1])
    assert not pulse.beats()


def test_a_thread_does_not(pulse: ProgressWatch, ranks: list[format.Writer]) -> None:
    second = ranks[1].ring(1)
    for used in (1, 1, 0, 0):  # at last it ends
        second.used = used
        call(ranks[0])
        call(ranks[1])
        beats = pulse.beats()
        assert not beats or not used
    assert beats


def test_a_restart_is_looked_at_and_then_goes_on(
    tmp_path: Path, pulse: ProgressWatch, ranks: list[format.Writer]
) -> None:
    again = [writer(tmp_path, rank, generation=10) for rank in range(2)]
    assert not pulse.beats()
    for rank in again:
        call(rank)
    assert pulse.beats()


def test_what_cannot_be_read(tmp_path: Path, pulse: ProgressWatch, ranks: list[format.Writer]) -> None:
    (tmp_path / format.file_name(0, 1)).write_bytes(b"nothing")
    for _ in range(2):
        for rank in ranks:
            call(rank)
        assert not pulse.beats()


def test_a_job_that_has_not_begun(tmp_path: Path) -> None:
    pulse = ProgressWatch(tmp_path / "nowhere")
    assert not pulse.beats() and not pulse.beats()
