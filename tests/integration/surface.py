"""The programs programs/surface/*/surface_*.c: which ones share a job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from compiling import Programs
from jobs import PATIENCE, PROGRAMS

# Programs with states that other programs of the process would disturb. Those that start MPI themselves are alone, too.
ALONE = {
    "surface_buffers": "the buffer of the process",
    "surface_comm": "error handlers of MPI_COMM_SELF and MPI_COMM_WORLD",
}
Group = tuple[Path, ...]  # programs of one job
SURFACE = sorted((PROGRAMS / "surface").rglob("surface_*.c"), key=lambda path: path.stem)


def groups(sources: Iterable[Path]) -> list[Group]:
    """The programs that can be one process (together.c), and each of the others."""
    sources = list(sources)
    alone = [source for source in sources if source.stem in ALONE or "run_states(" in source.read_text()]
    joined = tuple(source for source in sources if source not in alone)
    return [joined, *((source,) for source in alone)] if joined else [(source,) for source in alone]


def name_of_group(group: Group) -> str:
    """For the names of tests."""
    return group[0].stem if len(group) == 1 else "together"


def patience(group: Group) -> float:
    """Seconds for the checks of a job."""
    return PATIENCE * len(group)


def program_of(programs: Programs, group: Group) -> Path:
    """The program of a job."""
    return programs(group[0]) if len(group) == 1 else programs.together(group)
