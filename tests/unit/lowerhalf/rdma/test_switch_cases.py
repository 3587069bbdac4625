"""Single switches (switch_cases.c), and exactly what the program gets: each request's completion once, in order, the
oldest one with the error if the connection is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from switching import build_driver, environment

MODES = pytest.mark.parametrize("more", [{}, {"MANAPY_SHIFT_REWIND": "off"}], ids=["rewind", "journal"])
RETRY, RNR, FLUSHED, TOO_LONG = 12, 13, 5, 1  # enum ibv_wc_status


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, root: Path) -> tuple[Path, Path]:
    return build_driver(tmp_path_factory.mktemp("cases"), root, "switch_cases", "address,undefined")


def run(cases: tuple[Path, Path], tmp_path: Path, name: str, more: dict[str, str]) -> tuple[list[str], list[str]]:
    """The completions, and what standard error says."""
    variables = environment(tmp_path, {"ASAN_OPTIONS": "detect_leaks=0", **more})
    done = subprocess.run([*cases, name], capture_output=True, text=True, env=variables, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(), [line.removeprefix("manapy shift: ") for line in done.stderr.splitlines()]


@MODES
def test_progress_that_nobody_knows(cases: tuple[Path, Path], tmp_path: Path, more: dict[str, str]) -> None:
    """If the receiver's RNIC doesn't say how far it got, nothing counts as executed, and nothing is repeated."""
    got, said = run(cases, tmp_path, "unknown", more)
    assert [each for each in got if each[0] == "S"] == [f"S0:{RETRY}", f"S1:{FLUSHED}", f"S2:{FLUSHED}"]
    assert [each for each in got if each[0] == "R"] == ["R100:0", f"R101:{FLUSHED}"]  # of another completion queue
    assert "a connection of null0 is lost: its peer's RNIC does not say which requests it has executed" in said


def test_progress_that_nobody_needs(cases: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing is outstanding, so the connection is not lost."""
    assert run(cases, tmp_path, "unknown-idle", {})[0] == ["S0:0", "R100:0"]


@MODES
@pytest.mark.parametrize("executed", [0, 2])
def test_long_requests(cases: tuple[Path, Path], tmp_path: Path, executed: int, more: dict[str, str]) -> None:
    """More packets are outstanding than half of all packet numbers. Each message arrives once."""
    got, said = run(cases, tmp_path, "long-executed" if executed else "long", more)
    before = got.index("|")
    assert sorted(got[:before]) == sorted(f"{queue}{n}:0" for n in range(executed) for queue in ("S", "R10"))
    assert got[before + 1 :] == [f"{queue}{n}:0" for queue in ("S", "R10") for n in range(executed, 6)]
    assert said == []


@MODES
def test_an_error_of_the_program_on_a_backup(cases: tuple[Path, Path], tmp_path: Path, more: dict[str, str]) -> None:
    """It comes once, for the request that failed, before what is flushed."""
    got, said = run(cases, tmp_path, "caused", more)
    assert got == ["S0:0", "|", "S100:0", f"S2:{RNR}", f"S3:{FLUSHED}", f"S4:{FLUSHED}"]
    assert said == []


@MODES
@pytest.mark.parametrize("queues", ["one-queue", "two-queues"])
def test_an_error_of_a_receive(cases: tuple[Path, Path], tmp_path: Path, queues: str, more: dict[str, str]) -> None:
    got, _ = run(cases, tmp_path, f"too-long-{queues}", more)
    name = "S" if queues == "one-queue" else "R"
    assert got == ["S0:0", "|", f"{name}100:{TOO_LONG}", f"{name}101:{FLUSHED}", f"{name}102:{FLUSHED}"]


@MODES
@pytest.mark.parametrize(
    "case, expected",
    [
        ("washing", ["S0:0", "|", f"S1:{RETRY}"]),
        ("executed", ["S0:0", f"S1:{RETRY}"]),
        ("flushed-receives", ["S0:0", "|", *(f"S{n}:{FLUSHED}" for n in (100, 101, 102))]),
    ],
)
def test_what_went_wrong_is_told_once(
    cases: tuple[Path, Path], tmp_path: Path, case: str, expected: list[str], more: dict[str, str]
) -> None:
    """A request of our own fails first; or a request has succeeded before the connection is lost; or only receives are
    flushed."""
    assert run(cases, tmp_path, case, more)[0] == expected


def test_a_shared_queue_has_the_providers_size(cases: tuple[Path, Path], tmp_path: Path) -> None:
    assert run(cases, tmp_path, "rounded-up", {}) == (["S0:0", "|"], [])


def test_a_shared_queues_memory_that_the_backup_lacks(cases: tuple[Path, Path], tmp_path: Path) -> None:
    got, said = run(cases, tmp_path, "unregistered", {})
    assert got == [f"S0:{RETRY}"]
    why = "a receive of its shared queue uses memory that is not registered on the backup"
    assert said[0] == f"a connection of null0 is lost: {why}"


def test_a_remote_key_that_never_comes(cases: tuple[Path, Path], tmp_path: Path) -> None:
    got, said = run(cases, tmp_path, "unknown-key", {"MANAPY_SHIFT_WAIT": "1"})
    assert got == ["S0:0", "|", f"S1:{RETRY}", f"S2:{FLUSHED}"]
    assert said[0] == "a connection of null0 is lost: a work request uses memory whose key on the backup is not known"


@pytest.mark.parametrize("case", ["empty", "empty-shared"])
def test_elements_without_bytes(cases: tuple[Path, Path], tmp_path: Path, case: str) -> None:
    got, said = run(cases, tmp_path, case, {})
    assert (sorted(got), said) == (["R100:0", "S0:0", "S1:0", "|"], [])


def test_a_way_back_without_writes(cases: tuple[Path, Path], tmp_path: Path) -> None:
    """The way back needs no write that the queue pairs refuse: no path is lost on it."""
    got, said = run(cases, tmp_path, "no-writes", {})
    assert (sorted(got[:2]), got[2:], said) == (["R100:0", "S0:0"], ["|", "lost", "1", "0"], [])


def test_a_queue_pair_that_sends_late(cases: tuple[Path, Path], tmp_path: Path) -> None:
    """Its backup waits for receivers for ever, until the program says how long; then it has the program's attributes,
    and works."""
    got, said = run(cases, tmp_path, "late-sender", {})
    assert (got[:2], sorted(got[2:]), said) == (["6", "7"], ["R100:0", "S0:0"], [])


def test_the_program_can_release_its_domain(cases: tuple[Path, Path], tmp_path: Path) -> None:
    assert run(cases, tmp_path, "bell", {}) == (["S0:0", "0"], [])


def test_events_of_our_own_queue_pairs_are_hidden(cases: tuple[Path, Path], tmp_path: Path) -> None:
    assert run(cases, tmp_path, "tapped", {}) == (["S0:0", "|", "hidden"], [])
