"""Layouts and orders of training jobs."""

from __future__ import annotations

import pytest

from manapy.trace.model.graph import graph_of
from manapy.trace.model.schedule import ScheduleError, parse


def order(text: str, stage: int) -> str:
    return " ".join(
        f"{'B' if block.backward else 'F'}{block.micro}" + (f".{block.chunk}" if block.chunk else "")
        for block in parse(text).blocks_of(stage)
    )


def test_1f1b_has_as_many_passes_ahead_as_there_are_stages_behind() -> None:
    assert order("pp=4,micro=5", 0) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert order("pp=4,micro=5", 3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    assert order("pp=4,micro=2", 0) == "F0 F1 B0 B1"


def test_gpipe_does_all_forward_passes_first() -> None:
    assert order("pp=2,micro=3,kind=gpipe", 1) == "F0 F1 F2 B0 B1 B2"


def test_interleaved_takes_pp_micro_batches_through_each_chunk() -> None:
    assert (
        order("pp=2,micro=4,kind=interleaved,chunks=2", 1)
        == "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3"
    )


@pytest.mark.parametrize(
    "text", ["tp=2,pp=3,dp=2,micro=4", "pp=4,micro=8,kind=interleaved,chunks=3", "pp=5,micro=3,kind=gpipe", "tp=2,dp=2"]
)
def test_every_block_is_done_once_and_messages_have_two_ends(text: str) -> None:
    schedule = parse(text)
    for stage in range(schedule.pp):
        blocks = schedule.blocks_of(stage)
        assert len(set(blocks)) == len(blocks) == schedule.blocks
        for block in blocks:
            if (target := schedule.target(stage, block)) is not None:
                assert schedule.source(*target) == (stage, block)
    assert sum(map(len, graph_of(schedule).levels)) == schedule.pp * schedule.blocks


def test_ranks_are_counted_as_by_megatron() -> None:
    schedule = parse("tp=2,pp=2,dp=3")
    assert schedule.ranks[1, 2].tolist() == [10, 11]
    assert schedule.places[9].tolist() == [1, 1, 1]
    assert parse("tp=2,pp=2,dp=3,order=tp-pp-dp").ranks[1, 2].tolist() == [10, 11]
    assert parse("tp=2,pp=2,dp=3,order=tp-pp-dp").ranks[1, 0].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp=0", "tp=0 is not"), ("tp=x", "tp=x is not"), ("tp=-2", "tp=-2 is not"), ("tp", "'tp' is not one of"),
        ("zp=2", "'zp=2' is not one of"), ("tp=2,tp=2", "twice"), ("", "'' is not one of"),
        ("pp=2,micro=3,kind=interleaved", "multiple of pp"), ("micro=4,kind=interleaved", "at least 2"),
        ("kind=zigzag", "no kind 'zigzag'"), ("chunks=2", "needs kind=interleaved"),
        ("order=pp-tp-dp", "no order"),
    ],
)  # fmt: skip
def test_bad_schedules_are_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ScheduleError) as raised:
        parse(text)
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["tp=2,pp=4,dp=2,micro=8", "tp=1,pp=2,dp=1,micro=4,kind=interleaved,chunks=2,order=tp-pp-dp"]
)
def test_a_schedule_is_written_as_it_is_read(text: str) -> None:
    assert str(parse(text)) == text
