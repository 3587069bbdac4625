"""lowerhalf/mpi/find.c: the MPI library of a rank that no mpirun has started. `manapy doctor` finds the same one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from compiling import build_core
from manapy.core import installation
from manapy.mpi import Family, under_srun

MPICH, OPEN_MPI, STANDARD = "lib/libmpi.so.12", "lib64/libmpi.so.40", "lib/libmpi_abi.so.1"
MODES = {Family.MPICH: {}, Family.OPENMPI: {"PMIX_RANK": "0"}}


@pytest.fixture
def driver(root: Path, tmp_path: Path) -> Path:
    sources = [root / "tests/unit/lowerhalf/find_driver.c", root / "lowerhalf/mpi/find.c"]
    return build_core(tmp_path / "driver", sources)


def install(prefix: Path, *libraries: str, launcher: str = "mpirun", mode: int = 0o755) -> Path:
    """An installation of MPI; returns its bin folder."""
    for name in (*libraries, f"bin/{launcher}"):
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).touch(mode)
    return prefix / "bin"


# What is on PATH, and what each family gets: a library, or nothing.
@pytest.mark.parametrize(
    ("installed", "mpich", "open_mpi"),
    [
        ({}, None, None),
        ({"a": [MPICH]}, f"a/{MPICH}", None),
        ({"a": [OPEN_MPI], "b": [MPICH]}, f"b/{MPICH}", f"a/{OPEN_MPI}"),
        ({"a": [STANDARD], "b": [MPICH]}, f"b/{MPICH}", f"a/{STANDARD}"),
        ({"a": [MPICH], "b": [MPICH, OPEN_MPI]}, f"a/{MPICH}", f"b/{OPEN_MPI}"),
        ({"own": [MPICH], "a": [MPICH, OPEN_MPI]}, f"own/{MPICH}", f"a/{OPEN_MPI}"),
    ],
    ids=str,
)
def test_srun_takes_the_mpi_of_the_mpirun_on_path(
    driver: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: dict[str, list[str]],
    mpich: str | None,
    open_mpi: str | None,
) -> None:
    folders = [install(tmp_path / name, *libraries) for name, libraries in installed.items()]
    launcher = install(tmp_path / "own", launcher="manapy-launch") / "manapy-launch"
    path = ["", "relative", str(tmp_path / "missing"), *map(str, folders)]
    for family, expected in ((Family.MPICH, mpich), (Family.OPENMPI, open_mpi)):
        said = asked(driver, launcher, path, family, monkeypatch)
        if expected is None and family is Family.OPENMPI and said:  # that of the dynamic linker
            assert not said.is_relative_to(tmp_path)
        else:
            assert said == (tmp_path / expected if expected else None)


def asked(
    driver: Path, launcher: Path, path: list[str], family: Family, monkeypatch: pytest.MonkeyPatch
) -> Path | None:
    """The answer of the driver, which is also the doctor's."""
    monkeypatch.setenv("PATH", ":".join(path))
    monkeypatch.setattr(installation, "executable", lambda name: launcher)
    environment = {"PATH": ":".join(path), **MODES[family]}
    done = subprocess.run([driver, launcher], capture_output=True, text=True, env=environment, check=True)
    said = Path(done.stdout.strip()) if done.stdout.strip() else None
    found = under_srun(family).path
    assert (found.resolve() if found else None) == said
    return said


def test_what_is_no_program_on_path_is_passed_over(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be run, a folder, and a link to an installation elsewhere."""
    plain = install(tmp_path / "plain", MPICH, mode=0o644)
    folder = tmp_path / "folder/bin"
    (folder / "mpirun").mkdir(parents=True)
    install(tmp_path / "folder", MPICH, launcher="other")
    install(tmp_path / "there", MPICH, launcher="mpiexec.hydra")
    link = tmp_path / "links"
    link.mkdir()
    (link / "mpiexec").symlink_to(tmp_path / "there/bin/mpiexec.hydra")
    launcher = tmp_path / "own/bin/manapy-launch"
    path = [str(plain), str(folder), str(link)]
    assert asked(driver, launcher, path, Family.MPICH, monkeypatch) == tmp_path / "there" / MPICH
