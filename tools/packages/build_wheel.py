"""Build the wheel: one file for all versions of Python and all distributions with glibc 2.28 or newer.

 1. Libraries with the symbols of that glibc are made (old_glibc.py), and the C parts are linked with them. Only linking
    is special: the folder of an installation from this tree is used, and what it has compiled already.
 2. The wheel is checked (wheel_check.py, and auditwheel), and only then gets the tag manylinux_2_28.

manapy has no extension module, so the wheel's tag for Python is py3-none. The headers of libibverbs are needed here, so
that the wheel has the RDMA part; its users need neither them nor a compiler.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import old_glibc
import wheel_check

ROOT = Path(__file__).resolve().parents[2]
GLIBC = "2.28"  # of RHEL 8; SLES 15 has 2.31, Debian 11 too
LINKED = ("EXE", "MODULE", "SHARED")  # CMake's kinds of what is linked
TAG = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"


class WheelError(Exception):
    """A step failed; the text says which one."""


def build(into: Path) -> Path:
    """The checked and tagged wheel, in a folder. Raises WheelError, OldGlibcError."""
    _check_headers()
    link = " ".join(old_glibc.link_options(GLIBC, ROOT / "build" / f"glibc-{GLIBC}"))
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into, prefix="building-") as name:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run(
            "the build",
            *pip,
            "--wheel-dir",
            name,
            *(f"--config-settings=cmake.define.CMAKE_{kind}_LINKER_FLAGS={link}" for kind in LINKED),
            ROOT,
        )
        (plain,) = Path(name).glob("*.whl")
        _check(plain)
        _run("tagging", sys.executable, "-m", "wheel", "tags", "--platform-tag", TAG, plain)
        (tagged,) = Path(name).glob(f"*{TAG}.whl")
        return tagged.rename(into / tagged.name)


def _check_headers() -> None:
    done = subprocess.run(
        ["gcc", "-E", "-", "-o", os.devnull], input="#include <infiniband/mlx5dv.h>\n", capture_output=True, text=True
    )
    if done.returncode:
        raise WheelError("no headers of libibverbs, which the RDMA part needs: apt install libibverbs-dev")


def _run(step: str, *command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise WheelError(f"{step} failed:\n{(done.stdout + done.stderr).strip()}")


def _check(wheel: Path) -> None:
    glibc = wheel_check.version(GLIBC)
    try:
        lines = wheel_check.faults(wheel, glibc)
        oldest = wheel_check.audited(wheel)
    except ValueError as error:
        raise WheelError(str(error)) from None
    if oldest > glibc:
        lines.append(f"auditwheel accepts it only from glibc {'.'.join(map(str, oldest))} on")
    if lines:
        raise WheelError("\n".join([f"the wheel does not run everywhere where {TAG} is installed:", *lines]))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/wheels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="folder for the wheel (default: dist/)")
    try:
        print(build(parser.parse_args().into.resolve()))
    except (WheelError, old_glibc.OldGlibcError, OSError) as error:
        print(f"tools/wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
