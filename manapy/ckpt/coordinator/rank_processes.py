"""The processes of each rank, for the status: ranks are asked (TREE) only when a person asks.

Invariants
 1. A rank that does not answer in time (its process is stopped, or it has just ended) is left out: the answer does not
    contain its processes, and no command waits for it.
 2. An answer to an earlier question is ignored.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

from ..protocol import decode_text
from .ranks import Ranks


@dataclass(eq=False)
class _Question:
    missing: set[int]
    found: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class RankProcesses:
    """Asks the ranks of one job."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._questions: dict[str, _Question] = {}
        self._names = map(str, itertools.count(1))

    async def ask(self, seconds: float) -> dict[int, list[dict[str, Any]]]:
        """The processes of each rank that answers within that many seconds; an empty list if it is a single one."""
        asked = [number for number, rank in self._ranks.known.items() if rank.connected and not rank.done]
        name, question = next(self._names), _Question(set(asked))
        if not asked:
            return {}
        self._questions[name] = question
        self._ranks.send(asked, f"TREE {name}")
        try:
            async with asyncio.timeout(seconds):
                await question.answered.wait()
        except TimeoutError:
            pass
        finally:
            del self._questions[name]
        return question.found

    def on_answer(self, rank: int, fields: list[str]) -> None:
        """A rank has sent TREE."""
        name, text = fields
        if (question := self._questions.get(name)) is None:
            return
        question.found[rank] = [_process(line) for line in decode_text(text).split("\n") if line]
        question.missing.discard(rank)
        if not question.missing:
            question.answered.set()


def _process(line: str) -> dict[str, Any]:
    pid, known_as, parent, state, name = line.split(" ", 4)
    return {"pid": int(pid), "known_as": int(known_as), "parent": int(parent) or None, "state": state, "name": name}
