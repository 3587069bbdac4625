"""mpi4py's own test suite under manapy gives the native result, test by test; also under fire
(tests/conformance/suite.py).

Here with two ranks and one seed, each module in one way; tools/conformance runs all of them in all ways on one to four
ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launchers import ENVIRONMENT, OPEN_MPI_4
from rounds import rounds

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))

import suite  # noqa: E402

RANKS = 2
SEED = 20261121
LEAST = 2000  # outcomes of mpi4py 4.1.2: fewer means that modules are missing
# checkpoints: the modules run again until there were so many, each time with another seed
ENOUGH = rounds(4, 8)
ROUNDS = 8  # at most; each round has at least the checkpoint at its beginning

SPARING = not rounds(0, 1)  # all tests run, but except with --long they repeat the same calls less often

# Each module runs once natively and once with checkpoints: modules whose objects a restart must rebuild are killed,
# those with files end by a checkpoint, and all others are checkpointed. One module computes for half a minute, and runs
# only in --long.
RESTARTED = (
    "attributes|cco_nb_buf|cco_pr_buf|comm|comm_topo|datatype|grequest|p2p_buf|p2p_buf_part|request|rma|session|win"
)
ALL = r"test_(?!util_dtlib\.)"
MODULES = {  # regular expressions of the modules that run
    "plain": ALL,
    "checkpoint": rf"(?!test_({RESTARTED})\.|{suite.WITH_FILES}){ALL}",
    "restart": rf"test_({RESTARTED})\.",
    "exit": suite.WITH_FILES,
}
# On Open MPI 4.1, with kills: modules of the objects that it makes in other ways than MPICH.
OPEN_MPIS_MODULES = r"test_(win|rma|rma_nb|errorcode|comm_topo|request|mpiabi)\."
OPEN_MPIS_INTERVAL = 60
INTERVALS = {"plain": 0, "checkpoint": 200, "restart": 100, "exit": 40}  # outcomes between checkpoints, on average

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def main() -> Path:
    """mpi4py's suite, which stays in the environment for the next run of the tests."""
    try:
        return suite.suite_main(cache=Path(sys.prefix) / "mpi4py-source")
    except suite.SuiteError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest) -> dict[str, str | None]:
    """The modules that run in each mode; None: all."""
    return {**MODULES, "plain": None, "checkpoint": None} if request.config.getoption("--long") else MODULES


@pytest.fixture(scope="module")
def native(
    main: Path, modules: dict[str, str | None], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[suite.Outcome]]:
    found = suite.outcomes(
        suite.native(tmp_path_factory.mktemp("native"), RANKS, main, modules["plain"], sparing=SPARING).results
    )
    assert sorted(found) == list(range(RANKS)) and all(len(o) > LEAST for o in found.values()), {
        r: len(o) for r, o in found.items()
    }
    return found


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.long] if mode == "plain" else []) for mode in suite.MODES]
)
def test_suite(
    main: Path, native: dict[int, list[suite.Outcome]], modules: dict[str, str | None], tmp_path: Path, mode: str
) -> None:
    only = modules[mode]
    expected = suite.expected(native, mode, only)
    checkpoints = 0
    for round in range(1 if mode == "plain" else ROUNDS):
        run = suite.under_manapy(
            tmp_path / f"run-{round}", RANKS, main, only, mode, SEED + round, INTERVALS[mode], sparing=SPARING
        )
        lines = suite.differences(expected, suite.outcomes(run.results), mode)
        assert not lines, "\n".join([*lines[:40], *suite.last_words(run.where)])
        print(
            f"{mode}: {run.checkpoints} checkpoints, longest {run.longest:.2f} s, {run.restarts} restarts, refused "
            f"{dict(run.refused)}, {run.seconds:.0f} s"
        )
        if mode in ("restart", "exit"):  # it may end between the last checkpoint and the kill
            assert run.checkpoints - run.restarts in (0, 1)
        checkpoints += run.checkpoints
        if checkpoints >= ENOUGH:
            break
    assert checkpoints >= (0 if mode == "plain" else ENOUGH), (
        f"only {checkpoints} checkpoints in {ROUNDS} rounds, refused: {dict(run.refused)}"
    )


def test_on_open_mpi(main: Path, tmp_path: Path) -> None:
    """Its results are those of mpi4py on Open MPI, also for calls that fail there."""
    OPEN_MPI_4.skip_if_missing()
    mpi = suite.Mpi(tuple(map(str, OPEN_MPI_4.mpirun)), {**ENVIRONMENT, "MPI4PY_MPIABI": "openmpi"}, dict(ENVIRONMENT))
    native = suite.outcomes(
        suite.native(tmp_path / "native", RANKS, main, OPEN_MPIS_MODULES, mpi=mpi, sparing=SPARING).results
    )
    assert sorted(native) == list(range(RANKS)) and all(native.values())
    run = suite.under_manapy(
        tmp_path / "run", RANKS, main, OPEN_MPIS_MODULES, "restart", SEED, OPEN_MPIS_INTERVAL, mpi=mpi, sparing=SPARING
    )
    lines = suite.differences(suite.expected(native, "restart"), suite.outcomes(run.results), "restart", True)
    assert not lines, "\n".join([*lines[:40], *suite.last_words(run.where)])
    assert run.restarts >= 1 and run.checkpoints - run.restarts in (0, 1)
