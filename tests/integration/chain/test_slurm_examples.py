"""The batch scripts of examples/ as chains in a real Slurm: what they print is complete after a requeue."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from histories import events_in
from jobs import manapy
from needed import need
from slurm import Cluster
from waiting import until

pytestmark = pytest.mark.slurm

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
LONG = re.compile(r"\d{6,}$")  # the number of steps in a script
STEPS = {"mpi4py": 1000, "c": 3000, "fortran": 3000, "pytorch": 400}
LINES = 20  # that each program prints


def with_fortran(where: Path, path: str) -> str:
    """PATH in which mpifort is that of Debian's MPICH."""
    if not (compiler := shutil.which("mpifort.mpich")):
        pytest.skip("no mpifort.mpich (apt install libmpich-dev gfortran)")
    where.mkdir()
    (where / "mpifort").symlink_to(compiler)
    return f"{where}:{path}"


@pytest.mark.parametrize("language", [*STEPS])
def test_a_batch_script(cluster: Cluster, tmp_path: Path, language: str) -> None:
    if language == "pytorch":
        need("torch", "no PyTorch (pip install 'manapy[torch]')")
    folder, env = tmp_path / language, dict(cluster.env)
    if language == "fortran":
        env["PATH"] = with_fortran(tmp_path / "bin", env["PATH"])
    shutil.copytree(EXAMPLES / language, folder)
    script = folder / "job.sh"
    text, found = LONG.subn(str(STEPS[language]), script.read_text().rstrip())
    assert found == 1, text
    script.write_text(text + "\n")
    options = ["--dir", "chain", "--interval", "1s", "--poll", "1s"]
    done = manapy("slurm", "chain", *options, "job.sh", env=env, cwd=folder)
    assert done.returncode == 0, done.stderr

    def has(kind: str) -> bool:
        return bool(events_in(folder / "chain", kind))

    def report() -> str:
        return "\n".join([str(events_in(folder / "chain")), printed(folder), cluster.report(int(done.stdout))])

    until(lambda: has("checkpoint") and "step " in printed(folder), report)
    cluster.command("scontrol", "requeue", done.stdout.strip())
    until(lambda: has("finished"), report)
    steps = [line for line in printed(folder).splitlines() if line.startswith("step ")]
    assert events_in(folder / "chain", "finished")[0]["code"] == 0, report()
    assert len(set(steps)) == LINES and len({line.split()[1] for line in steps}) == LINES, report()
    assert any(event["verdict"] == "resume" for event in events_in(folder / "chain", "step")), report()


def printed(folder: Path) -> str:
    """What the script has printed so far."""
    output = folder / "out.txt"
    return output.read_text(errors="replace") if output.exists() else ""
