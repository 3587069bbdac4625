"""Which run of a job a command reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
from histories import History
from manapy.ckpt import command
from manapy.ckpt.store import job
from manapy.core.errors import DiedError


@pytest.mark.parametrize("then", ["hold", "continue"])
def test_ranks_that_die_while_a_restart_begins(history: History, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """The next run is asked instead. But it isn't held: nobody would end it, and its ranks would stand for ever."""
    old = job.read(history.job(1, "running", port=1, rank0_pid=1))
    asked: list[int] = []

    class Connection:
        """Of the coordinator of a run: the ranks of the first one have died, and the second one begins."""

        def __init__(self, which: job.Job, answer: float) -> None:
            asked.append(which.port)

        def __enter__(self) -> Connection:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send(self, line: str) -> None:
            assert line.startswith(f"CHECKPOINT {then} ")

        def patient(self) -> None:
            pass

        def receive(self) -> str:
            if asked == [1]:
                history.job(1, "running", port=2, rank0_pid=2)
                return "RESULT died rank%201%20died"
            return "RESULT ok /ckpt-000001"

    monkeypatch.setattr(command, "Connection", Connection)
    if then == "hold":
        with pytest.raises(DiedError, match="rank 1 died"):
            command.checkpoint(old, then=then)
        assert asked == [1]
    else:
        assert command.checkpoint(old, then=then) == Path("/ckpt-000001")
        assert asked == [1, 2]
