"""The check of a wheel, on small wheels with real libraries, each with one fault."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import compiling
import pytest
from packages import wheel_check

GLIBC = (2, 28)
MISSING = {f"{name} is missing" for name in wheel_check.PARTS}
Pack = Callable[..., Path]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """Makes a wheel that holds these files, all in one folder."""

    def make(*files: Path) -> Path:
        wheel = tmp_path / "manapy-1-py3-none-linux_x86_64.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for file in files:
                archive.write(file, f"manapy-1.data/data/lib/{file.name}")
        return wheel

    return make


def faults(wheel: Path) -> list[str]:
    """Those other than the missing parts: these wheels have none of them."""
    found = wheel_check.faults(wheel, GLIBC)
    assert set(found) >= MISSING
    return [line for line in found if line not in MISSING]


def library(where: Path, name: str, text: str, *options: str) -> Path:
    return compiling.build(where / name, text, *compiling.SHARED, *options)


def test_a_library_that_every_machine_can_load(tmp_path: Path, pack: Pack) -> None:
    other = library(tmp_path, "libother.so", "int other(void) { return 1; }\n", "-Wl,-soname,libother.so")
    text = 'int other(void); char *getenv(const char *); int f(void) { return getenv("A") ? other() : 0; }\n'
    beside = (str(other), "-Wl,-rpath,$ORIGIN")
    assert faults(pack(library(tmp_path, "libgood.so", text, *beside), other)) == []


def test_a_symbol_of_a_newer_glibc(tmp_path: Path, pack: Pack) -> None:
    # glibc 2.34 moved this function to another library, with a new version
    text = "int pthread_key_create(unsigned *, void *); int f(void) { return pthread_key_create(0, 0); }\n"
    built = library(tmp_path, "libnew.so", text)
    if not any(wheel_check.version(name) > GLIBC for name in wheel_check.binaries(pack(built))[0].versions):
        pytest.skip("this machine's glibc is as old")
    assert faults(pack(built)) == ["libnew.so needs GLIBC_2.34"]


def test_a_library_that_is_not_everywhere(tmp_path: Path, pack: Pack) -> None:
    other = library(tmp_path, "libibverbs.so", "int verbs(void) { return 1; }\n", "-Wl,-soname,libibverbs.so.1")
    text = "int verbs(void); int f(void) { return verbs(); }\n"
    built = library(tmp_path, "libuser.so", text, str(other), f"-Wl,-rpath,{tmp_path}")
    assert faults(pack(built)) == [
        f"libuser.so looks for libraries in {tmp_path}",
        "libuser.so needs libibverbs.so.1, which not every machine has",
    ]


def test_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "no.whl").write_text("text")
    with pytest.raises(ValueError, match="no.whl: File is not a zip file"):
        wheel_check.faults(tmp_path / "no.whl", GLIBC)
    with pytest.raises(ValueError, match="gone.whl"):
        wheel_check.faults(tmp_path / "gone.whl", GLIBC)


def test_a_damaged_file(tmp_path: Path, pack: Pack) -> None:
    (tmp_path / "libbad.so").write_bytes(b"\x7fELF\x02\x01 and nothing more")
    with pytest.raises(ValueError, match="libbad.so"):
        wheel_check.faults(pack(tmp_path / "libbad.so"), GLIBC)
