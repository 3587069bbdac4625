"""Shared by all tests. Because this file is here, tests/ is on sys.path: `import images` gives tests/images.py."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import compiling
import pytest
import rounds
from histories import History
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
# seconds since the epoch: no test starts later (tools/test says why)
UNTIL = float(os.environ.get("MANAPY_TEST_UNTIL", "inf"))
# Several processes share the whole suite (tools/test). They take whole files in this order: first the RDMA machine,
# which takes longest; then files that take minutes, the longest ones first; in the end the many short files of unit
# tests, so that all processes end at about the same time. The tests of a file stay together, because they share what
# its fixtures have started.
ORDER = (
    "rdma/test_bench_shift",  # its machine is its own, so it runs before the shared one boots
    "rdma/",
    "integration/chain/test_slurm",  # mostly waits
    "integration/mpi/test_under_other_mpis",
    "integration/mpi/test_surface_under_other_mpis",
    "integration/conformance/test_conformance",
    "integration/fcdp/",
    "integration/",
    "unit/test_types",  # takes a minute, nearly all in one process
    "unit/lowerhalf/",  # compile much
    "unit/",
)
# One process takes all files that begin with such a path, one after the other. Two files that use the RDMA machine at
# once would take all processors from the other tests; two that wait for Slurm would leave the processors idle.
TOGETHER = ("tests/rdma/", "tests/integration/chain/test_slurm")
TEARDOWN_SECONDS = 120  # for the fixtures of a failed test


gc.disable()  # until the tests begin: each collection would go through all tests that were found so far


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options that tools/test offers."""
    group = parser.getgroup("manapy")
    group.addoption(
        "--quick", action="store_true", help="unit tests under 2 seconds, and one real job of each kind: a few minutes"
    )
    group.addoption("--long", action="store_true", help="also what is for a night (tests/README.md)")


def pytest_configure(config: pytest.Config) -> None:
    """Examples of property-based tests: the same ones in each run, new ones with --long. They have no deadline, because
    the machine may be busy.

    Python keeps compiled modules, even if the tester's environment forbids it: PyTorch is installed without them
    (tools/test), and each rank would spend five seconds on compiling it. So would each process of a run on the files
    of tests. And it buffers its output as usual: else the parts of a line are written one by one, and lines of several
    ranks mix.

    Ranks of MPICH wait by polling. With its option they sleep for a moment between polls, and so do the waits of
    manapy's wrappers; otherwise ranks that wait would take the processors of those that have work. Open MPI has another
    option (integration/launchers.py). UCX takes 40 ms of each start to hook munmap(2), which it does not do under
    manapy. And numpy gets no threads, which would spin at each start; restart/test_heat2d.py has ranks with such
    threads."""
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False
    os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
    os.environ.setdefault("UCX_MEM_EVENTS", "n")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.register_profile("random", deadline=None)
    settings.load_profile("random" if config.getoption("--long") else "repeatable")
    rounds.choose(config.getoption("--long"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that the two options exclude, and sort the files."""
    quick, long = config.getoption("--quick"), config.getoption("--long")
    kept = [item for item in items if (_is_quick(item) if quick else long or not item.get_closest_marker("long"))]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept
    items.sort(key=lambda item: _place(item.path.relative_to(ROOT / "tests").as_posix()))


def pytest_collection_finish() -> None:
    """From now on, objects that no test has made are not looked at any more."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Distribute whole files, and keep those that belong together in one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            together = next((start for start in TOGETHER if nodeid.startswith(start)), None)
            return together or str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def _place(path: str) -> int:
    """The place of a file in the order of the whole suite, by its path below tests/."""
    return next((place for place, start in enumerate(ORDER) if path.startswith(start)), len(ORDER))


def _is_quick(item: pytest.Item) -> bool:
    """A test is quick if it is marked quick, or if it is a unit test that is neither slow nor of RDMA, which needs
    Debian packages."""
    if item.get_closest_marker("quick"):
        return True
    folders = item.path.relative_to(ROOT / "tests").parts[:-1]
    return folders[0] == "unit" and "rdma" not in folders and not any(map(item.get_closest_marker, ("slow", "long")))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Runs before any fixture. A test that could not run counts as failed."""
    if time.time() > UNTIL:
        pytest.fail("no time was left to run this test: MANAPY_TEST_MINUTES sets how much there is", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Pytest-timeout forgets the time limit of a test that fails. Fixtures that wait for something that then does not
    come would let the whole run wait."""
    if signal.getitimer(signal.ITIMER_REAL)[0]:  # that of pytest-timeout
        return (yield)

    def give_up(*_: object) -> None:
        pytest.fail(f"the fixtures of {item.name} have not ended after {TEARDOWN_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, TEARDOWN_SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def root() -> Path:
    """The source tree."""
    return ROOT


@pytest.fixture(scope="session")
def include() -> Path:
    """The directory of the C headers that Python mirrors."""
    return ROOT / "lowerhalf" / "include"


@pytest.fixture(scope="session", autouse=True)
def known(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tests keep their own list of names of jobs and chains (manapy/ckpt/store/known.py), and do not read the
    tester's configuration file."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test run that all its processes share, and the run that has started this one, if it says so."""
    if given := os.environ.get("MANAPY_TEST_SHARED"):
        return Path(given)
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def compiled(shared_folder: Path) -> None:
    """All processes of this test run share what they compile."""
    compiling.shared = shared_folder


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A chain whose history is empty."""
    return History(tmp_path / "chain")
