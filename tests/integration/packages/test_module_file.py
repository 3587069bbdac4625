"""The module file, in a shell with Environment Modules or Lmod (a machine has one of them)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from jobs import BIN, run

SYSTEMS = {
    "Environment Modules": "/usr/share/modules/init/bash",
    "Lmod": "/usr/share/lmod/lmod/init/bash",
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_load_and_unload(system: str, root: Path, tmp_path: Path) -> None:
    if not Path(SYSTEMS[system]).exists():
        pytest.skip(f"no {system} (apt install environment-modules, or lmod)")
    prefix = tmp_path / "opt/manapy/0.1.0"
    (prefix / "commands").mkdir(parents=True)
    (prefix / "commands/manapy").symlink_to(BIN / "manapy")
    (prefix / "share").symlink_to(BIN.parent / "share")
    file = tmp_path / "modules/manapy/0.1.0"
    file.parent.mkdir(parents=True)
    file.write_text((root / "tools/packages/modulefile").read_text().replace("/opt/[", f"{tmp_path}/opt/["))
    steps = [
        f". {SYSTEMS[system]}",
        f"module use {file.parents[1]}",
        "module load manapy/0.1.0",
        "command -v manapy",
        "manapy --version",
        "man -w manapy-launch" if shutil.which("man") else f"echo {prefix}/share/man/man1/manapy-launch.1",
        "module unload manapy",
        "command -v manapy || echo gone",
        "export MANPATH=/usr/share/man",
        "module load manapy/0.1.0",
        "echo ${MANPATH%%:*}",
    ]
    clean = {name: value for name, value in os.environ.items() if name not in ("MANPATH", "MODULEPATH", "BASH_ENV")}
    done = run(["/bin/bash", "-c", "\n".join(steps)], {**clean, "PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            f"{prefix}/commands/manapy",
            "manapy 0.1.0",
            f"{prefix}/share/man/man1/manapy-launch.1",
            "gone",
            f"{prefix}/share/man",
        ],
    ), done.stderr
