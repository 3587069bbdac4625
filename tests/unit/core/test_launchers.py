"""The command that starts a job again, by what runs above a rank: here a shell under the name of Open MPI's mpirun."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from manapy.core import launchers

ROOT = Path(__file__).resolve().parents[3]
RANK = "sleep 60 & echo $!; wait"
AS_ROOT = "" if os.geteuid() else " --allow-run-as-root"


def command(program: Path, *words: str, env: dict[str, str] | None = None) -> str | None:
    """What starts a rank again that `PROGRAM -c RANK WORDS` has started."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PRTE_"))} | (env or {})
    with subprocess.Popen([program, "-c", RANK, *words], env=clean, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rank = int(process.stdout.readline())
        try:
            return launchers.command(rank)
        finally:
            process.kill()
            os.kill(rank, 9)


@pytest.fixture
def orterun(tmp_path: Path) -> Path:
    return Path(shutil.copy("/bin/bash", tmp_path / "orterun"))


@pytest.mark.parametrize(
    ("words", "env", "more"),
    [
        ((), {}, ""),
        (("--oversubscribe",), {}, " --oversubscribe"),
        (("--map-by", "slot:OVERSUBSCRIBE"), {}, " --oversubscribe"),
        (("--nooversubscribe",), {}, ""),
        (("/bin/manapy-launch", "--oversubscribe"), {}, ""),
        ((), {"OMPI_MCA_rmaps_base_oversubscribe": "1"}, " --oversubscribe"),
        ((), {"OMPI_MCA_rmaps_base_oversubscribe": "0"}, ""),
        ((), {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}, " --oversubscribe"),
    ],
)
def test_open_mpi_is_allowed_what_it_was(orterun: Path, words: tuple[str, ...], env: dict[str, str], more: str) -> None:
    assert command(orterun, *words, env=env) == f"{orterun}{AS_ROOT}{more}"


def test_open_mpi_5(tmp_path: Path) -> None:
    prterun = Path(shutil.copy("/bin/bash", tmp_path / "prterun"))
    assert command(prterun) == f"{prterun} --personality ompi{AS_ROOT}"


@pytest.mark.parametrize(("daemon", "program"), [("orted", "orterun"), ("prted", "prterun --personality ompi")])
def test_a_daemon_of_open_mpi(tmp_path: Path, daemon: str, program: str) -> None:
    """mpirun runs on another host; its program stands beside the daemon's."""
    assert command(Path(shutil.copy("/bin/bash", tmp_path / daemon))) == f"{tmp_path}/{program}{AS_ROOT}"


def test_unknown(tmp_path: Path) -> None:
    assert command(Path(shutil.copy("/bin/bash", tmp_path / "starter"))) is None


def names_in_c(variable: str) -> set[str]:
    """The strings of the table `variable` in the C sources."""
    for path in sorted((ROOT / "lowerhalf").rglob("*.c")):
        if found := re.search(rf"\b{variable}\[\] = \{{(.*?)\}};", path.read_text(), re.S):
            return set(re.findall(r'"([^"]*)"', found[1]))
    raise AssertionError(f"no table {variable} in lowerhalf/")


def test_c_knows_the_same_process_managers() -> None:
    """C compares beginnings of names: `mpiexec` is mpiexec.hydra, too. It looks at what runs above a rank (hydra's
    proxy), not at what a person calls."""
    managers = names_in_c("managers")
    assert {*launchers.OPEN_MPI, *launchers.DAEMONS} <= managers
    assert managers - {*launchers.OPEN_MPI, *launchers.DAEMONS, "hydra_pmi_proxy"} == {
        name for name in launchers.LAUNCHERS if name not in launchers.OPEN_MPI and "." not in name
    } - {"srun"}
    assert all(name.startswith(tuple(managers)) for name in launchers.HYDRA)
