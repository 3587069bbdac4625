"""Requirements of a benchmark on the machine: mpirun, the real MPI, a C compiler; and the compiled programs of
osu_bench/."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ...core import installation
from ...core.errors import ManapyError
from ...mpi import candidates

PROGRAMS = (
    "calls/calls",
    "calls/p2p",
    "calls/rate",
    "calls/collectives",
    "calls/apps",
    "checkpoints/steps",
    "checkpoints/changes",
)
# Directories with mpi.h, relative to the prefix of the library.
HEADERS = ("include", "include/x86_64-linux-gnu/mpich", "lib/x86_64-linux-gnu/mpich/include")


@dataclass(frozen=True)
class Tools:
    """Executables and the real MPI library. sources: the folder osu_bench"""

    mpirun: Path
    launch: Path
    restart: Path
    manapy: Path
    library: Path
    sources: Path

    @property
    def python(self) -> Path:
        """The interpreter for mpi4py programs."""
        return Path(sys.executable)


def find() -> Tools:
    """All tools. Raises ManapyError with the first tool that is missing."""
    if importlib.util.find_spec("numpy") is None:
        raise ManapyError("manapy bench needs numpy: pip install numpy")
    launch, restart, command = (_needed(name) for name in ("manapy-launch", "manapy-restart", "manapy"))
    beside = command.parent / "mpirun"
    mpirun = beside if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if mpirun is None:
        raise ManapyError("manapy bench needs mpirun: pip install mpich, or put the one of an MPICH on PATH")
    library = _library(Path(mpirun).resolve().parent.parent)
    return Tools(Path(mpirun), launch, restart, command, library, sources())


def sources() -> Path:
    """The folder osu_bench: that of the installation, or of the source tree that contains this file."""
    tree = Path(__file__).resolve().parents[3] / "osu_bench"
    found = installation.library("osu_bench") or (tree if tree.is_dir() else None)
    if found is None:
        raise ManapyError("osu_bench is missing: this installation of manapy is incomplete")
    return found


def rdma_source(tools: Tools, name: str) -> Path:
    """The source of a verbs program. The tests use some of them, too: in a source tree these are with the tests; when
    installed, all are in one place."""
    places = (tools.sources / "rdma" / name, tools.sources.parent / "tests" / "programs" / "rdma" / name)
    return next((path for path in places if path.exists()), places[0])


def compile_programs(tools: Tools, target: Path) -> None:
    """Compile each osu_bench/ROOM/NAME.c to target/NAME. They are plain MPI programs: linked with the real library,
    without manapy."""
    header = _header(tools.library)
    for name in PROGRAMS:
        compile_one(
            tools.sources / f"{name}.c",
            target / Path(name).name,
            f"-I{header}",
            str(tools.library),
            "-Wl,--allow-shlib-undefined",
            "-lm",
        )


def compile_library(tools: Tools, source: Path, target: Path) -> None:
    """Compile a library to be preloaded, whose PMPI functions are those of the real library."""
    compile_one(
        source,
        target,
        "-shared",
        "-fPIC",
        f"-I{_header(tools.library)}",
        str(tools.library),
        f"-Wl,-rpath,{tools.library.parent},--allow-shlib-undefined",
    )


def compile_one(source: Path, target: Path, *flags: str) -> None:
    """Raises ManapyError without a compiler, or if it does not compile."""
    compiler = shlex.split(os.environ.get("CC", "")) or [
        next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), "cc")
    ]
    if shutil.which(compiler[0]) is None:
        raise ManapyError(
            f"manapy bench needs a C compiler: '{compiler[0]}' is not there (apt install gcc libc6-dev, or set CC)"
        )
    done = subprocess.run(
        [*compiler, "-O2", "-o", str(target), str(source), *flags], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ManapyError(f"{source} does not compile: {(done.stderr.strip().splitlines() or ['?'])[0]}")


def _needed(name: str) -> Path:
    found = installation.executable(name)
    if found is None:
        raise ManapyError(f"{name} is missing: this installation of manapy is incomplete")
    return found


def _library(prefix: Path) -> Path:
    """The library that manapy-launch would find: the one named by MANAPY_LIBMPI, otherwise mpirun's, otherwise the one
    in manapy's own prefix."""
    _, variable, _, own = candidates()
    given = candidates(str(prefix))[0]
    found = next((c.path for c in (variable, given, own) if c.path is not None), None)
    if found is None:
        raise ManapyError(
            f"no MPI library found for {prefix}/bin/mpirun: 'manapy doctor' tells where it was looked for"
        )
    return found


def _header(library: Path) -> Path:
    for prefix in library.parents[1:4]:
        for place in HEADERS:
            if (prefix / place / "mpi.h").is_file():
                return prefix / place
    raise ManapyError(f"manapy bench needs the mpi.h of {library}: pip install mpich, or apt install libmpich-dev")
