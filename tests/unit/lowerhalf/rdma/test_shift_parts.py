"""Parts of lowerhalf/rdma: objects/states.c agrees with the SHIFT paper's picture (Figure 5, section 4.2), common/map.c
with a dict, links/backoff.c with its rules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work_requests import DRIVERS, build

FAIL, RECOVERED, SIGNALED, RETURNED, GIVE_UP = range(5)

# The transitions that the paper draws, and our FAIL on the way back; (send queue, receive queue).
PICTURE = {
    ("default", "default"): {FAIL: ("fallback", "fallback")},
    ("fallback", "fallback"): {FAIL: ("fallback", "fallback"), RECOVERED: ("wait-signaled", "fallback")},
    ("wait-signaled", "fallback"): {FAIL: ("fallback", "fallback"), SIGNALED: ("wait-sinked", "fallback")},
    ("wait-sinked", "fallback"): {FAIL: ("fallback", "fallback"), RETURNED: ("default", "default")},
    ("released", "released"): {},
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    rdma = root / "lowerhalf" / "rdma"
    parts = [rdma / f"{name}.c" for name in ("objects/states", "common/map", "common/sections", "links/backoff")]
    return build(tmp_path_factory.mktemp("shift") / "shift_driver", [DRIVERS / "shift_driver.c", *parts], "-pthread")


@settings(max_examples=60, deadline=None)
@given(events=st.lists(st.sampled_from([FAIL, RECOVERED, SIGNALED, RETURNED, GIVE_UP]), min_size=1, max_size=8))
def test_states(driver: Path, events: list[int]) -> None:
    states, expected, legal = ("default", "default"), [], True
    for event in events:
        after = ("released", "released") if event == GIVE_UP else PICTURE[states].get(event)
        if after is None:
            legal = False
            break
        states = after
        expected.append(" ".join(states))
    done = subprocess.run([driver, "states", *map(str, events)], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == expected
    if legal:
        assert done.returncode == 0
    else:
        assert done.returncode != 0 and f"in states {'/'.join(states)}" in done.stderr


KEYS = st.integers(1, 40) | st.integers(1, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["put", "remove", "get"]), KEYS, st.integers(1, 2**40)), max_size=400))
def test_map(driver: Path, steps: list[tuple[str, int, int]]) -> None:
    model: dict[int, int] = {}
    lines, expected = [], []
    for what, key, value in steps:
        lines.append(f"{what} {key} {value}" if what == "put" else f"{what} {key}")
        if what == "put":
            model[key] = value
        elif what == "remove":
            model.pop(key, None)
        else:
            expected.append(model.get(key, 0))
    done = subprocess.run([driver, "map"], input="\n".join(lines), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [int(line) for line in done.stdout.split()] == expected


def test_a_map_grows(driver: Path) -> None:
    keys = [k * 4096 + 1 for k in range(20000)]  # like addresses
    text = "\n".join(
        [*(f"put {k} {k + 1}" for k in keys), *(f"remove {k}" for k in keys[::2]), *(f"get {k}" for k in keys)]
    )
    done = subprocess.run([driver, "map"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [int(line) for line in done.stdout.split()] == [0 if i % 2 == 0 else k + 1 for i, k in enumerate(keys)]


class Flapping:
    """A path as backoff.c sees it; `now` in ms."""

    def __init__(self, driver: Path) -> None:
        self._driver, self._lines, self.now = driver, list[str](), 1000

    def does(self, what: str, after: int = 0) -> int:
        """What the path does so many ms later; returns the ms for which it isn't probed then."""
        self.now += after
        self._lines.append(f"{what} {self.now}\n")
        done = subprocess.run(
            [self._driver, "backoff"], input="".join(self._lines), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return max(0, int(done.stdout.split()[-1]) - self.now)

    def flaps(self, times: int) -> list[int]:
        """The path is up as soon as allowed, and fails under traffic a second later."""
        waits = []
        for _ in range(times):
            self.does("up", waits[-1] if waits else 0)
            waits.append(self.does("failed", 1000))
        return waits


def test_a_path_that_only_answers_probes_is_probed_ever_later(driver: Path) -> None:
    assert Flapping(driver).flaps(12) == [200, 400, 800, 1600, 3200, *7 * [5000]]


def test_a_stable_path_is_forgiven(driver: Path) -> None:
    path = Flapping(driver)
    assert path.flaps(4)[-1] == 1600
    path.does("up", 1600)
    assert path.does("failed", 29_999) == 3200
    path.does("up", 3200)
    assert path.does("failed", 30_000) == 200


def test_an_outage_that_probes_see_is_no_flapping(driver: Path) -> None:
    path = Flapping(driver)
    for _ in range(5):
        path.does("up", 5000)
        assert path.does("failed", 1000) == 200
        assert path.does("silent", 200) == 0


@pytest.mark.parametrize(
    "what, printed",
    [
        ("churn", "256 0"),  # slots; older tables
        ("sections", "1 0"),  # a thread is in the section; none is
    ],
)
def test_nothing_is_left(driver: Path, what: str, printed: str) -> None:
    """Of keys that were removed, in a map that is used with a lock; and of a thread that was cancelled in a verb."""
    done = subprocess.run([driver, what], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, printed + "\n"), done
