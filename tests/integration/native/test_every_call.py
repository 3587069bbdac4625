"""Every function of MPI with NULL for an output, before MPI_Init, and after MPI_Finalize, behaves as natively
(every_call.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import every_call
import compiling
import pytest
from jobs import BIN, PATIENCE

pytestmark = pytest.mark.mpi

ERR_ARG = "returned 12"
# They only compute, or are called so often that they don't check whether MPI is initialized. Natively they end the
# process.
LENIENT = {
    "MPI_Aint_add",
    "MPI_Aint_diff",
    "MPI_Get_count",
    "MPI_Get_count_c",
    "MPI_Test",
    "MPI_Test_cancelled",
    "MPI_Type_size",
    "MPI_Wait",
    "MPI_Wtick",
    "MPI_Wtime",
}
# Natively it begins an operation that nothing can complete; and MPI can't be initialized again after MPI_Finalize
# (LIMITATIONS.md).
OTHERWISE = {"MPI_Grequest_start", "MPI_Grequest_complete", "MPI_Session_init"}

Build = Callable[[str, str], Path]
Ran = dict[str, str]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a program text."""

    def made(name: str, text: str) -> Path:
        return compiling.build(tmp_path_factory.mktemp(name) / name, text, "-w", "-rdynamic", compiler=BIN / "mpicc")

    return made


def came_of(program: Path, names: list[str], skipped: Collection[str], *arguments: str, launch: bool) -> Ran:
    """The result of each call: `returned CLASS`, `exited`, or `died`. After `died` a new process makes the following
    calls."""
    where = program.parent / ("here" if launch else "native")
    where.mkdir(exist_ok=True)
    launcher = [str(BIN / "manapy-launch"), "--dir", str(where / "job")] if launch else []
    env = {**os.environ, "LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib"), "MANAPY_TRACE_ROOT": str(where)}
    wanted, found = ["0" if name in skipped else "1" for name in names], {}
    while True:
        command = [*launcher, str(program), "".join(wanted), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=env, cwd=where, stdin=subprocess.DEVNULL
        )
        made = re.findall(r"^(\d+) MPI.*? ?(returned -?\d+|exited|)$", done.stdout, re.MULTILINE)
        found |= {names[int(number)]: what or "died" for number, what in made}
        if done.stdout.endswith("end\n"):
            return found
        assert made and not made[-1][1], (made[-1:], done.stdout[-300:], done.stderr[-3000:])
        wanted[: int(made[-1][0]) + 1] = ["0"] * (int(made[-1][0]) + 1)


def test_null_is_refused_as_natively(build: Build) -> None:
    names = [name for name, _, _ in every_call.cases()]
    program = build("nulls", every_call.nulls())
    native = came_of(program, names, (), "file", launch=False)
    died = {name for name in names if native[name] == "died"}
    refused = {name for name in native if native[name] not in ("died", "returned 0")}
    assert len(refused) > 400, native
    here = came_of(program, names, [name for name in names if name not in refused], "file", launch=True)
    # where another argument is wrong, too, reporting the NULL is enough
    assert {name: (here[name], native[name]) for name in refused if here[name] not in (native[name], ERR_ARG)} == {}
    ours = {
        name
        for name, f, _ in every_call.cases()
        if f.cls == "manual" and name in died and not name.startswith("MPI_Comm_spawn")
    }
    better = came_of(program, names, [name for name in names if name not in ours], "file", launch=True)
    assert {name: what for name, what in better.items() if what != ERR_ARG} == {}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_outside_of_init_and_finalize_as_natively(build: Build, after: bool) -> None:
    names = [f.symbol for f in every_call.functions()]
    program = build("outside", every_call.outside())
    arguments = ["after"] if after else []
    native = came_of(program, names, OTHERWISE, *arguments, launch=False)
    # The finalized library itself ends the process for a wrong info.
    skipped = {name for name in names if native.get(name, "died") == "died" or after and name.startswith("MPI_Info_")}
    here = came_of(program, names, skipped, *arguments, launch=True)
    differs = {name: (here[name], native[name]) for name in here if here[name] != native[name]}
    assert {name: came for name, came in differs.items() if name not in LENIENT} == {}
    assert differs.keys() == LENIENT
    assert sum(what == "exited" for what in here.values()) > 500
