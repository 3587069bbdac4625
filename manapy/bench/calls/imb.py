"""Unmodified third-party programs: the Intel MPI Benchmarks, as Intel built them, in the PyPI package impi-rt.

They are built for MPICH's ABI. Only the programs are taken from the package, not Intel's MPI library. So they run with
the installed MPI, natively and under manapy. pip downloads the package once (130 MB) into the user's cache directory.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from ...core.units import message_size
from ..shared.commands import LeftOutError, Setting
from ..shared.compare import Sample, compare
from ..shared.packages import cache
from ..shared.samples import CLOCK, NATIVE, VARIANTS, Row, Rows

PACKAGE = "impi-rt==2021.19.0"
PROGRAMS = {  # the programs, and their benchmarks that are measured
    "IMB-MPI1": (
        "PingPong",
        "Sendrecv",
        "Exchange",
        "Bcast",
        "Reduce",
        "Allreduce",
        "Allgather",
        "Alltoall",
        "Barrier",
    ),
    "IMB-NBC": ("Ibcast", "Ireduce", "Iallreduce", "Iallgather", "Ialltoall", "Ibarrier"),
    "IMB-RMA": ("Unidir_put", "Unidir_get", "All_put_all", "Exchange_put", "Accumulate", "Fetch_and_op"),
}
RANKS = 2
LENGTHS = (4, 1 << 10, 1 << 20)
DOWNLOAD_SECONDS = 300.0

_BENCHMARK = re.compile(r"^# Benchmarking (\S+)")
_MODE = re.compile(r"^#\s+MODE: (\S+)")
TIMES = ("t_avg[usec]", "t_pure[usec]", "t[usec]")  # the columns that are used, best first


def programs(source: Path | None, work: Path) -> Path:
    """A directory with the programs of PROGRAMS: `source` if it is a directory; if it is a wheel, the wheel is unpacked
    into `work`; otherwise the cache.

    pip fills the cache. Raises LeftOutError if the programs are not available.
    """
    if source is not None and source.is_dir():
        if missing := _missing(source):
            raise LeftOutError(f"no {missing} in {source}")
        return source.resolve()
    if source is not None:
        return _unpack(source, work / "imb")
    target = cache(PACKAGE)
    if _missing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="imb-", dir=target.parent) as scratch:
            unpacked = _unpack(_download(Path(scratch)), Path(scratch) / "bin")
            target.mkdir(exist_ok=True)
            for name in PROGRAMS:
                (unpacked / name).replace(target / name)
    return target


def _missing(where: Path) -> str | None:
    return next((name for name in PROGRAMS if not (where / name).is_file()), None)


def _download(where: Path) -> Path:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--dest", str(where)]
    command = [sys.executable, "-m", "pip", "download", *options, PACKAGE]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LeftOutError(
            f"pip did not download {PACKAGE} within {DOWNLOAD_SECONDS:.0f} s (--imb names a copy)"
        ) from None
    wheel = next(where.glob("*.whl"), None)
    if done.returncode or wheel is None:
        why = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise LeftOutError(f"pip can't download {PACKAGE} (--imb names a copy): {why}")
    return wheel


def _unpack(wheel: Path, target: Path) -> Path:
    target.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = Path(entry.filename).name
                if name in PROGRAMS:
                    with archive.open(entry) as source, (target / name).open("wb") as sink:
                        shutil.copyfileobj(source, sink)
                    (target / name).chmod(0o755)
    except (OSError, zipfile.BadZipFile) as error:
        raise LeftOutError(f"{wheel}: {error}") from error
    if missing := _missing(target):
        raise LeftOutError(f"{wheel.name} holds no {missing}")
    return target


def imb(setting: Setting) -> list[Row]:
    """µs per call, as printed by the programs."""
    where = programs(setting.imb, setting.work)
    lengths = setting.work / "lengths"
    lengths.write_text("".join(f"{length}\n" for length in LENGTHS))
    rows = Rows("imb")
    for i, (name, benchmarks) in enumerate(PROGRAMS.items()):
        compare(
            rows, setting, VARIANTS if name == "IMB-MPI1" else (NATIVE, CLOCK), RANKS,
            [where / name, *options(setting.ms, lengths), *benchmarks],
            group=name, read=functools.partial(table, name), rounds=max(setting.rounds // 2, 1),
            part=(i, len(PROGRAMS)),
        )  # fmt: skip
    return rows.all()


def options(ms: float, lengths: Path) -> list[str]:
    """Command line: short runs with the lengths in a file. -time is IMB's own limit; it is long enough that no run is
    cut short on a busy machine."""
    return ["-npmin", str(RANKS), "-iter", str(max(int(10 * ms), 20)), "-time", "20", "-msglen", str(lengths)]


def table(program: str, output: str) -> Iterable[Sample]:
    """Name, unit and value of each line of IMB's tables."""
    benchmark, columns = "", list[str]()
    seen: set[str] = set()
    for line in output.splitlines():
        words = line.split()
        if found := _BENCHMARK.match(line):
            benchmark, columns = found[1], []
        elif found := _MODE.match(line):
            benchmark = f"{benchmark}, {found[1].lower()}"
        elif any(time in words for time in TIMES):
            columns = words
        elif columns and len(words) == len(columns) and words[0].isdigit():
            time = next(time for time in TIMES if time in columns)
            length = int(words[columns.index("#bytes")]) if "#bytes" in columns else 0
            name = f"{program} {benchmark}" + (f", {message_size(length)}" if length else "")
            if name not in seen:
                seen.add(name)
                yield name, "µs", float(words[columns.index(time)])
