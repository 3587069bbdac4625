"""Removes MPICH's files in /dev/shm of this host. MPICH removes them in MPI_Finalize, which a killed rank never
calls."""

from __future__ import annotations

from pathlib import Path


class Segments:
    """The files that ranks of this host have named."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    def add(self, field: str) -> None:
        """The last field of a rank's PROGRAM line."""
        if field != "-":
            self._paths.update(field.split(","))

    def remove(self) -> None:
        """Remove those that are left. Only for the end of the job."""
        for path in map(Path, self._paths):
            if path.parent == Path("/dev/shm"):
                path.unlink(missing_ok=True)
