"""A C program that runs with nullverbs (programs/rdma) in place of libibverbs and with libmanapy_shift.so preloaded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from compiling import SHARED, build

from manapy.core import installation


def run(
    tmp_path: Path, root: Path, program: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Compile a program's text and run it, with the device null0, its backup null1, and no agent."""
    interposer = installation.library("libmanapy_shift.so")
    if interposer is None:
        pytest.skip("built without libibverbs-dev")
    programs = root / "tests" / "programs" / "rdma"
    library, executable = tmp_path / "libibverbs.so.1", tmp_path / "program"
    if not executable.exists():
        flags = [*SHARED, "-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={programs / 'nullverbs.map'}"]
        build(library, programs / "nullverbs.c", "-O1", *flags, "-pthread")
        build(executable, program, "-O1", f"-I{programs}", library)
    shift = {
        "LD_PRELOAD": str(interposer),
        "MANAPY_SHIFT_AGENT": str(tmp_path / "no-agent"),
        "MANAPY_SHIFT_JOB": "j",
        "MANAPY_SHIFT_BACKUP": "null0:null1",
    }
    null = {"LD_LIBRARY_PATH": str(tmp_path), "NULLVERBS_DEVICES": "2"}
    return subprocess.run(
        [executable],
        capture_output=True,
        text=True,
        env={**os.environ, **null, **shift, **(environment or {})},
        timeout=60,
    )
