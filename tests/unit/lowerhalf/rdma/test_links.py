"""The links between processes (links_driver.c), over the null provider."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from switching import build_driver, environment


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, root: Path) -> tuple[Path, Path]:
    return build_driver(tmp_path_factory.mktemp("links"), root, "links_driver", "address,undefined", real_links=True)


def test_room_for_many_peers(driver: tuple[Path, Path], tmp_path: Path) -> None:
    done = subprocess.run([*driver, "100"], capture_output=True, text=True, env=environment(tmp_path, {}), timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_a_backup_that_carries_nothing(driver: tuple[Path, Path], tmp_path: Path) -> None:
    """It was said to protect the connection, and now it is said that it does not."""
    variables = environment(tmp_path, {"ASAN_OPTIONS": "detect_leaks=0"})
    done = subprocess.run([*driver, "dead"], capture_output=True, text=True, env=variables, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["protected", "unprotected"]), done
    assert done.stderr == "manapy shift: null1 carries nothing to a peer: connections to it cannot move there\n"


def test_a_missing_key_is_not_asked_for_all_the_time(driver: tuple[Path, Path], tmp_path: Path) -> None:
    variables = environment(tmp_path, {"ASAN_OPTIONS": "detect_leaks=0"})
    done = subprocess.run([*driver, "missing"], capture_output=True, text=True, env=variables, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and 1 <= int(done.stdout) <= 30, done
