"""Unmodified third-party programs: the Intel MPI Benchmarks, compiled by Intel for the MPICH ABI, from the PyPI package
impi-rt.

They run natively and under manapy with the installed MPICH, never with Intel's MPI library. Without the package (pip
downloads it once, 130 MB) the tests are skipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, Job
from manapy.bench.calls import imb
from rounds import rounds

LIBRARIES = {"LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib")}
SHORT = ["-npmin", "2", "-iter", "5", "-time", "20", "-msglog", f"3:{rounds(7, 12)}"]
# a table ends after about 0.5 s per size: a checkpoint and a kill on a busy machine take seconds
LONG = ["-npmin", "2", "-iter", "100000", "-time", "0.5", "-msglog", "3:6"]
CHOSEN = rounds(5, 100)  # benchmarks of a program that are restarted in mid-run, at most


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return imb.programs(None, tmp_path_factory.mktemp("imb"))
    except imb.LeftOutError as error:
        pytest.skip(str(error))


def benchmarks(output: str) -> list[str]:
    """The headings, in order."""
    return re.findall(r"^# Benchmarking (\S+)", output, re.MULTILINE)


def rows(program: str, output: str) -> list[str]:
    """Every line of a table, without its figures."""
    return [name for name, _, _ in imb.table(program, output)]


@pytest.fixture
def native(programs: Path) -> Callable[[str, list[str]], str]:
    def run(program: str, options: list[str]) -> str:
        command = [BIN / "mpirun", "-n", "2", programs / program, *options]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=250, check=True, env=LIBRARIES | {"PATH": "/usr/bin:/bin"}
        ).stdout

    return run


@pytest.mark.slow
@pytest.mark.parametrize("program", list(imb.PROGRAMS))
def test_runs_as_natively(
    make_job: Callable[..., Job], programs: Path, native: Callable[[str, list[str]], str], program: str
) -> None:
    expected = native(program, SHORT)
    output = make_job(2).start(programs / program, *SHORT).finish(250)
    assert len(rows(program, expected)) > 50
    assert rows(program, output) == rows(program, expected)
    assert benchmarks(output) == benchmarks(expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", list(imb.PROGRAMS))
def test_checkpoint_kill_restart_in_mid_run(make_job: Callable[..., Job], programs: Path, program: str) -> None:
    chosen = imb.PROGRAMS[program][:CHOSEN]
    job = make_job(2).start(programs / program, *LONG, *chosen)
    for later in chosen[1:], chosen[2:]:  # a slow checkpoint may have included the beginning of the next benchmark
        job.wait_for(lambda text: any(f"# Benchmarking {name} " in text for name in later))  # noqa: B023
        job.checkpoint()
        job.kill()
        job.restart()
    last = job.finish(300)
    assert "# All processes entering MPI_Finalize" in last
    seen: list[str] = []
    for number, run in enumerate(job.runs):
        here = benchmarks(run.read_text(errors="replace"))
        assert number == 0 or chosen[0] not in here  # it continued, it didn't begin again
        seen += here
    assert tuple(dict.fromkeys(seen)) == chosen
