"""The programs of examples/: each prints the same natively, and through a checkpoint, SIGKILL and a restart."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, Job
from needed import need

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
STEPS = {"mpi4py": 3000, "c": 8000, "fortran": 8000, "pytorch": 1000}


def command(language: str, where: Path, steps: int) -> list[str | Path]:
    folder = EXAMPLES / language
    match language:
        case "c":
            subprocess.run([BIN / "mpicc", "-O2", "-o", where / "heat", folder / "heat.c"], check=True)
            return [where / "heat", str(steps)]
        case "fortran":
            if not shutil.which("mpifort.mpich"):
                pytest.skip("no mpifort.mpich (apt install libmpich-dev gfortran)")
            subprocess.run(["mpifort.mpich", "-O2", "-o", "heat", folder / "heat.f90"], check=True, cwd=where)
            return [where / "heat", str(steps)]
    return [sys.executable, *folder.glob("*.py"), str(steps)]


@pytest.mark.parametrize("language", [*STEPS])
def test_an_example(make_job: Callable[..., Job], language: str) -> None:
    if language == "pytorch":
        need("torch", "no PyTorch (pip install '.[torch]')")
    job = make_job(2)
    program = command(language, job.where, STEPS[language])
    natively = subprocess.run([*job.mpirun, "-n", "2", *program], capture_output=True, text=True, timeout=200)
    assert natively.returncode == 0 and natively.stdout.count("step ") == 20, natively
    job.start(*program)
    job.wait_for("step ")
    job.checkpoint()
    job.kill()
    assert natively.stdout.startswith(job.output())
    job.restart()
    again = job.finish()
    assert again and natively.stdout.endswith(again), again


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*/job.sh")), ids=lambda path: path.parent.name)
def test_a_batch_script(script: Path) -> None:
    """It starts what is in its folder."""
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    words = script.read_text().split()
    assert "manapy-launch" in words
    sources = [path for path in script.parent.iterdir() if path != script]
    assert all(source.name in words for source in sources)


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_a_later_allocation_builds_nothing(tmp_path: Path, language: str) -> None:
    """A checkpoint continues only the same program file."""
    for name in ("mpicc", "mpifort", "srun"):
        (tmp_path / name).write_text(
            f"#!/bin/sh\necho {name} >> said\n[ {name} = srun ] || install -m 755 /dev/null heat\n"
        )
        (tmp_path / name).chmod(0o755)
    compiler = "mpicc" if language == "c" else "mpifort"
    for said in ([compiler, "srun"], [compiler, "srun", "srun"]):
        path = f"{tmp_path}:{os.environ['PATH']}"
        subprocess.run(
            ["bash", EXAMPLES / language / "job.sh"], check=True, cwd=tmp_path, env={**os.environ, "PATH": path}
        )
        assert (tmp_path / "said").read_text().split() == said
