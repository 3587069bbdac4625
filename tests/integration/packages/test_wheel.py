"""The wheel of tools/wheels, in an environment that has nothing but it and what it requires. The demonstration runs
there where no compiler and no header can be found."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from jobs import run
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from vm import VM, ImageError, card

HIDDEN = ("/usr/include", "/usr/lib/gcc", "/usr/libexec/gcc", "/usr/local/include")
COMPILERS = ("cc", "gcc", "c99", "g++", "clang", "cmake", "ninja", "make", "mpicc.mpich", "mpicc.openmpi")


def required(name: str, extras: set[str]) -> Iterator[metadata.Distribution]:
    """What an installed package with some extras requires, itself included. A package may come several times."""
    distribution = metadata.distribution(name)
    yield distribution
    for text in distribution.requires or ():
        requirement = Requirement(text)
        if any(requirement.marker is None or requirement.marker.evaluate({"extra": e}) for e in extras or {""}):
            yield from required(requirement.name, requirement.extras)


def give(distribution: metadata.Distribution, prefix: Path) -> None:
    """Put the files of an installed package into another environment."""
    here, there = Path(sys.prefix), prefix
    for file in distribution.files or ():
        source = Path(os.path.normpath(distribution.locate_file(file)))
        target = there / os.path.relpath(source, here)
        if source.is_file() and source.is_relative_to(here) and source.suffix != ".pyc" and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:  # another file system
                shutil.copy2(source, target)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment in which manapy[mpich,demo] was installed from the wheel. What it requires comes from the
    environment of the tests, so nothing is downloaded."""
    prefix = tmp_path_factory.mktemp("bare")
    run([sys.executable, "-m", "venv", "--without-pip", prefix])
    python = prefix / "bin/python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python, "install"]
    done = run([*pip, "--no-index", "--no-deps", wheel])
    assert done.returncode == 0, done.stderr
    (there,) = (prefix / "lib").glob("python*/site-packages")
    (ours,) = metadata.distributions(path=[str(there)], name="manapy")
    assert ours.metadata["Provides-Extra"] and ours.files
    for distribution in required("manapy", {"mpich", "demo"}):
        if canonicalize_name(distribution.metadata["Name"]) != "manapy":
            give(distribution, prefix)
    return prefix


@pytest.fixture(scope="module")
def without_compiler(bare: Path) -> list[str]:
    """Put before a command: it runs with a PATH that has the bare environment's programs alone. As root headers and
    compilers are also hidden in a mount namespace of its own."""
    command = ["/usr/bin/env", f"PATH={bare}/bin"]
    hide = "".join(f"if [ -d {place} ]; then mount -t tmpfs none {place}; fi; " for place in HIDDEN)
    for name in COMPILERS:
        if found := shutil.which(name, path="/usr/bin:/bin:/usr/local/bin"):
            hide += f"mount --bind /dev/null {os.path.realpath(found)}; "
    inside = ["/usr/bin/unshare", "--mount", "/bin/sh", "-ec", f'{hide}exec "$@"', "sh", *command]
    if os.geteuid() or run([*inside, "/bin/true"]).returncode:
        return command
    assert run([*inside, "/bin/sh", "-c", "! [ -e /usr/include/stdio.h ] && ! /usr/bin/gcc --version"]).returncode == 0
    return inside


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the C parts are compiled, beside other work
def test_one_wheel_for_all(wheel: Path) -> None:
    assert re.fullmatch(r"manapy-.*-py3-none-manylinux_2_28_x86_64\.whl", wheel.name)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_demonstration_without_a_compiler(root: Path, bare: Path, without_compiler: list[str], tmp_path: Path) -> None:
    """tools/demo with what the wheel has installed: checkpoint, SIGKILL, restart, `manapy why`, the same result. It
    names what is missing for the virtual machine."""
    demo = [root / "tools/run_demo.py", "--ranks", "2", "--n", "96", "--steps", "5000", "--out", tmp_path / "out"]
    done = run([*without_compiler, bare / "bin/python", *demo], timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal bit for bit" in done.stdout
    assert "5 a network card fails: left out, no " in done.stdout  # QEMU is not on that PATH


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_doctor_finds_the_parts(bare: Path, without_compiler: list[str]) -> None:
    done = run([*without_compiler, bare / "bin/manapy", "doctor"])
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("libmanapy_shift.so", "libmanapy_trace.so"):
        (found,) = bare.glob(f"lib/manapy/{part}")
        loaded = run([*without_compiler, bare / "bin/python", "-c", f"import ctypes; ctypes.CDLL({str(found)!r})"])
        assert loaded.returncode == 0, loaded.stderr


@pytest.mark.slow
@pytest.mark.rdma_vm
@pytest.mark.timeout(1200)
def test_failover_in_the_machine(bare: Path) -> None:
    """The step of tools/demo that needs the machine: traffic under the wheel's `manapy rdma run` goes on over the
    second card, and returns."""
    if reason := card.lacking():
        pytest.skip(reason)
    try:
        with VM(rails=2) as machine:
            steps = list(card.fail_and_repair(machine, bare / "bin/manapy"))
    except ImageError as error:
        pytest.skip(str(error))
    assert len(steps) == 2
