"""Which GPUs a program gets after a restart (wrappers/cuda.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from compiling import LOWER, SANITIZED, STRICT, build

ALL = "0123"
A, B, C, D = (f"GPU-{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "1a2f")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        tmp_path_factory.mktemp("cuda") / "driver",
        Path(__file__).with_name("cuda_driver.c"),
        *STRICT,
        *SANITIZED,
        "-Wno-unused-function",
        f"-I{LOWER / 'include'}",
    )


def host(where: Path, gpus: list[str], allowed: str = ALL) -> Path:
    """A folder as /proc/driver/nvidia/gpus, in another order than that of the addresses, with the devices of those that
    the program may use."""
    for number, uuid in reversed([*enumerate(gpus)]):
        folder = where / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t {uuid}\nBus Type: PCIe\nDevice Minor: \t {number}\n"
        )
        if str(number) in allowed:
            (where / f"nvidia{number}").touch()
    where.mkdir(exist_ok=True)
    return where


def printed(driver: Path, old: Path, new: Path, program: list[str]) -> list[tuple[str, str]]:
    """The pairs, as UUIDs."""
    words = [driver, old, new, *(uuid.removeprefix("GPU-") for uuid in program)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    names = {uuid.removeprefix("GPU-").replace("-", ""): uuid for uuid in (A, B, C, D)}
    return [(names[a], names[b]) for a, b in (line.split() for line in done.stdout.splitlines())]


@pytest.mark.parametrize(
    ("old", "new", "program", "pairs"),
    [
        ([A, B], [A, B], [B], []),  # the same host
        ([A, B], [B, A], [A, B], []),  # only their addresses have changed
        ([A, B], [C, D], [A, B], [(A, C), (B, D)]),
        ([A, B], [C, D], [B], [(B, D)]),  # CUDA_VISIBLE_DEVICES
        ([A, B], [C, D], [B, A], [(B, D), (A, C)]),
        ([A, B], [C], [A, B], [(A, C)]),  # too few: the driver says so
        ([A, B], [B, C], [A, B], [(A, B), (B, C)]),  # by their places, so that none is used twice
        ([], [C], [A], []),  # unknown: the driver decides
        ([A], [], [A], []),
    ],
)
def test_gpus_of_another_host(
    driver: Path, tmp_path: Path, old: list[str], new: list[str], program: list[str], pairs: list[tuple[str, str]]
) -> None:
    assert printed(driver, host(tmp_path / "old", old), host(tmp_path / "new", new), program) == pairs


@pytest.mark.parametrize(
    ("allowed", "pairs"),
    [
        ("01", []),
        ("23", [(A, C), (B, D)]),  # another allocation on the same host
        ("0", [(A, A)]),  # too few: the driver says so
        ("3", [(A, D)]),
    ],
)
def test_gpus_of_another_allocation(driver: Path, tmp_path: Path, allowed: str, pairs: list[tuple[str, str]]) -> None:
    every = [A, B, C, D]
    old, new = host(tmp_path / "old", every, "01"), host(tmp_path / "new", every, allowed)
    assert printed(driver, old, new, [A, B]) == pairs


def test_hosts_without_gpus(driver: Path, tmp_path: Path) -> None:
    words = [driver, tmp_path / "none", tmp_path / "neither", A.removeprefix("GPU-")]
    assert subprocess.run(words, capture_output=True, check=True).stdout == b""


def test_a_uuid_that_is_none(driver: Path, tmp_path: Path) -> None:
    for text in ("GPU-1", "11111111-1111-1111-1111-11111111111x", ""):
        assert subprocess.run([driver, tmp_path, tmp_path, text], check=False).returncode == 1
