"""The real MPI_Init does not return: the user is told within seconds which ranks are in it, and what they wait for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from compiling import SHARED, build
from jobs import BIN, Job, manapy
from launchers import MPICH
from waiting import until

# A library that is MPICH, except that its MPI_Init waits until a file is gone.
SLOW = """
#include <stdlib.h>
#include <unistd.h>
int PMPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    const char *held = getenv("HELD");
    while (held && access(held, F_OK) == 0) usleep(10000);
    return PMPI_Init_thread(argc, argv, required, provided);
}
"""


def started(job: Job) -> tuple[Path, Path]:
    """Start the program; the files for which it waits."""
    go, end = job.where / "go", job.where / "end"
    job.start_python("moments/late_init.py", go, end)
    job.wait_for(lambda text: text.count("before MPI_Init") == job.ranks)
    job.pids()
    return go, end


def states(job: Job) -> list[str]:
    return [rank["state"] for rank in job.status()["ranks"]]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_rank_that_does_not_call_it(make_job: Callable[..., Job]) -> None:
    """The others wait for it: named on standard error, in the status, and by a checkpoint, which is taken later."""
    job = make_job(3)
    go, end = started(job)
    pid = job.pids()[1]
    host = os.uname().nodename
    with stopped(pid):
        go.touch()
        until(lambda: states(job) == ["in MPI_Init", "running", "in MPI_Init"], job.report)
        errors = job.where / "errors"
        with errors.open("w") as stream:
            asked = subprocess.Popen([BIN / "manapy", "checkpoint", job.dir], stdout=stream, stderr=stream)
        words = (
            rf"ranks 0, 2 \(on {host}\) have been in MPI_Init for \d+ s: rank 1 \(on {host}\) has not called it yet; "
            rf"look at pid {pid} on {host}"
        )
        until(lambda: re.search(words, errors.read_text()), errors.read_text)
        said = job.wait_for(lambda text: re.findall(rf"^manapy: {words}$", text, re.M))
        assert len(re.findall("^manapy", said, re.M)) == 1
        assert re.search(words, manapy("status", job.dir).stdout)
    job.wait_for(lambda text: text.count("after MPI_Init") == 3)
    assert asked.wait() == 0 and "ckpt-000001" in errors.read_text()
    until(lambda: states(job) == ["running"] * 3, job.report)
    end.touch()
    assert job.finish().count("sum 3") == 3


def test_a_process_manager_that_does_not_answer(make_job: Callable[..., Job]) -> None:
    """Output of the ranks comes through it, too: the line appears when it goes on. The status does not need it."""
    job = make_job(2)
    go, end = started(job)
    manager = int(Path(f"/proc/{job.pids()[0]}/stat").read_text().rpartition(")")[2].split()[1])  # hydra_pmi_proxy
    with stopped(manager):
        go.touch()
        until(lambda: states(job) == ["in MPI_Init"] * 2, job.report)
        log = job.dir / "coordinator.log"
        until(lambda: "look at mpirun's messages" in log.read_text(), job.report)
        (line,) = job.status()["waiting"]
        assert line.startswith("ranks 0, 1 (on ") and "it waits for mpirun" in line
    end.touch()
    assert re.search(r"^manapy: ranks 0, 1 .* have been in MPI_Init for \d+ s: ", job.finish(), re.M)


def test_at_a_restart(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """Restarted ranks connect to the coordinator after their MPI_Init."""
    library = build(tmp_path / "libslow.so", SLOW, *SHARED, MPICH.library, f"-Wl,-rpath,{MPICH.library.parent}")
    job = make_job(2)
    held = job.where / "held"
    job.env |= {"MANAPY_LIBMPI": str(library), "HELD": str(held)}
    go, end = started(job)
    go.touch()
    job.wait_for(lambda text: text.count("after MPI_Init") == 2)
    job.checkpoint()
    job.kill()
    held.touch()
    job.restart()
    said = job.wait_for("in MPI_Init for")
    assert re.fullmatch(r"manapy-restart: rank 0 \(on .*\) has been in MPI_Init for \d+ s: it waits for .*\n", said)
    words = r"ranks 0, 1 have not connected .*: a restarted rank connects after its MPI_Init"
    until(lambda: re.search(words, manapy("status", job.dir).stdout), job.report)
    held.unlink()
    job.wait_until_it_runs()
    end.touch()
    assert job.finish().count("sum 2") == 2
