"""Finds out whether every rank of a running job makes progress. Reads only the heads of its rings, so that a watch need
not analyse all records at each look.

Invariants
 1. The answer is yes only if every recording thread has made a call since the last question: then no rank has been
    stuck for longer than that.
 2. If a file is new or cannot be read, the answer is no, and an analysis follows.
"""

from __future__ import annotations

from pathlib import Path

from ..capture import format
from ..capture.rings import trace_files
from ..capture.tracefile import TraceFile


class ProgressWatch:
    """Watches the progress of the job that records in this folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, TraceFile] = {}
        self._heads: dict[tuple[Path, int], int] = {}

    def beats(self) -> bool:
        """Return whether all recording threads have made a call since the last question."""
        before = self._heads
        try:
            self._heads = self._look()
        except (OSError, ValueError):
            self._heads = {}
        return (
            bool(before)
            and before.keys() == self._heads.keys()
            and all(head > before[ring] for ring, head in self._heads.items())
        )

    def _look(self) -> dict[tuple[Path, int], int]:
        """Return the number of the newest record, by file and used ring, for each rank's newest generation."""
        generations = {
            key: path for path in trace_files(self._folder) if (key := format.rank_and_generation(path)) is not None
        }
        newest = {rank: generations[rank, generation] for rank, generation in sorted(generations)}
        self._files = {path: self._files.get(path) or TraceFile(path) for path in newest.values()}
        rings = {(path, i): file.ring(i) for path, file in self._files.items() for i in range(file.head.rings)}
        return {key: int(ring.head) for key, ring in rings.items() if ring.used}
