"""A process whose connections fail while its threads post and poll (switch_driver.c), over the null provider. Nothing
is lost, doubled or reordered, no error is shown, and the sanitizers find nothing. The same test on real queue pairs is
tests/rdma/test_shift.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from rounds import rounds
from switching import build_driver, environment

FAILURES = rounds(20, 60)


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, root: Path) -> tuple[Path, Path]:
    """The program and the null provider, with a sanitizer."""
    made = tmp_path_factory.mktemp("switch-" + request.param.replace(",", "-"))
    return build_driver(made, root, "switch_driver", request.param)


@pytest.mark.parametrize(
    "more", [{}, {"MANAPY_SHIFT_FENCES": "1"}, {"MANAPY_SHIFT_REWIND": "off"}], ids=["rewind", "fences", "journal"]
)
@pytest.mark.parametrize("pairs", [1, 4])
def test_failures_under_traffic(driver: tuple[Path, Path], tmp_path: Path, more: dict[str, str], pairs: int) -> None:
    program, library = driver
    if "thread" in program.parent.name and "MANAPY_SHIFT_REWIND" in more:
        pytest.skip("a journal's end is read without a lock: an older one is as good")
    run = [program, library, str(FAILURES), "1", str(pairs)]
    done = subprocess.run(run, capture_output=True, text=True, env=environment(tmp_path, more), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("ok ") and int(done.stdout.split()[1]) >= FAILURES // 2


def test_gids_that_move(driver: tuple[Path, Path], tmp_path: Path) -> None:
    """A path is made ready again with the current index of its GID. The same holds for the default path."""
    program, library = driver
    run = [program, library, "gids", "1", "2"]
    done = subprocess.run(run, capture_output=True, text=True, env=environment(tmp_path, {}), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok ") and int(done.stdout.split()[1]) >= 10
    away = "manapy shift: {} has lost the address that its connections use; they wait until it returns"
    assert set(done.stderr.splitlines()) <= {away.format("null0"), away.format("null1")}


@pytest.mark.parametrize("more", [{}, {"MANAPY_SHIFT_REWIND": "off"}], ids=["rewind", "journal"])
def test_a_lost_connection(driver: tuple[Path, Path], tmp_path: Path, more: dict[str, str]) -> None:
    """The program gets what it would get without the interposer: the error, then all other requests flushed, in order
    and once."""
    program, library = driver
    variables = environment(tmp_path, {"ASAN_OPTIONS": "detect_leaks=0", **more})
    done = subprocess.run(
        [program, library, "lost", "1", "4"], capture_output=True, text=True, env=variables, timeout=240
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    first, *others = done.stderr.splitlines()
    assert first == "manapy shift: a connection of null0 is lost: no path to its peer is left"
    assert others in ([], ["manapy shift: a connection of null0 is lost: its peer has ended it"]), (
        "it is told of each at once, and may not have come to all"
    )


def test_the_last_receive_of_a_shared_queue(driver: tuple[Path, Path], tmp_path: Path) -> None:
    """The program stays on a leg until its RNIC reports that it takes no more receives for it, and leaves at once then.
    An RNIC that doesn't report this gets 20 ms."""
    program, library = driver
    done = subprocess.run(
        [program, library, "last", "1", "5"],
        capture_output=True,
        text=True,
        env=environment(tmp_path, {"ASAN_OPTIONS": "detect_leaks=0"}),
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, *told, untold = map(int, done.stdout.split())
    assert min(told) < 15_000_000 and untold >= 20_000_000, "that there is such an event is known since the first"
    assert first > 0


def test_what_is_stuck_is_switched(driver: tuple[Path, Path], tmp_path: Path) -> None:
    """The provider's queues can't be read. Stuck queue pairs are switched in time, and no others."""
    program, library = driver
    variables = environment(tmp_path, {"ASAN_OPTIONS": "detect_leaks=0"})
    del variables["NULLVERBS_SYSFS"]
    done = subprocess.run(
        [program, library, "stuck", "1", "3"],
        capture_output=True,
        text=True,
        env={**variables, "NULLVERBS_DEVICES": "2"},
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
