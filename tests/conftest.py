"""Shared by all tests. Being here it also puts tests/ on sys.path: `import images` gives tests/images.py."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from histories import History
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
# seconds since the epoch: no test is begun later (tools/test says why)
UNTIL = float(os.environ.get("MANAPY_TEST_UNTIL", "inf"))
# Several processes share the whole suite (tools/test), a file at a time and in this order: what takes longest first,
# then what mostly waits; unit tests fill what is left at the end. A file's tests share what its fixtures have started,
# so they stay together; so do all files that use the RDMA machine, of which two at once would take all processors from
# everybody.
ORDER = ("rdma/", "integration/chain/test_slurm", "integration/conformance/test_conformance", "integration/", "unit/")
TOGETHER = "tests/rdma/"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two choices that tools/test offers."""
    group = parser.getgroup("manapy")
    group.addoption(
        "--quick", action="store_true", help="unit tests under 2 seconds, and one real job of each kind: a few minutes"
    )
    group.addoption("--long", action="store_true", help="also the long random runs: for a night")


def pytest_configure(config: pytest.Config) -> None:
    """Examples of property-based tests: the same ones in each run, new ones in --long. None has a deadline: the machine
    may be busy."""
    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.register_profile("random", deadline=None)
    settings.load_profile("random" if config.getoption("--long") else "repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the two options leave out, and put files in their order."""
    quick, long = config.getoption("--quick"), config.getoption("--long")
    kept = [item for item in items if (_is_quick(item) if quick else long or not item.get_closest_marker("long"))]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept
    items.sort(key=lambda item: _place(item.path.relative_to(ROOT / "tests").as_posix()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out files, and those that stay together as one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return TOGETHER if nodeid.startswith(TOGETHER) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def _place(path: str) -> int:
    """Of a file in the order of the whole suite, by its path below tests/."""
    return next((place for place, start in enumerate(ORDER) if path.startswith(start)), len(ORDER))


def _is_quick(item: pytest.Item) -> bool:
    """A test marked quick; or a unit test that is not slow and not of RDMA, which needs Debian packages."""
    if item.get_closest_marker("quick"):
        return True
    folders = item.path.relative_to(ROOT / "tests").parts[:-1]
    return folders[0] == "unit" and "rdma" not in folders and not any(map(item.get_closest_marker, ("slow", "long")))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before any fixture. A test that could not be run has not passed."""
    if time.time() > UNTIL:
        pytest.fail("no time was left to run this test: MANAPY_TEST_MINUTES sets how much there is", pytrace=False)


@pytest.fixture(scope="session")
def root() -> Path:
    """The source tree."""
    return ROOT


@pytest.fixture(scope="session")
def include() -> Path:
    """Directory of the C headers that Python mirrors."""
    return ROOT / "lowerhalf" / "include"


@pytest.fixture(scope="session", autouse=True)
def known(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Names of jobs and chains (manapy/ckpt/store/known.py) are the tests' own."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A chain in which nothing has happened."""
    return History(tmp_path / "chain")
