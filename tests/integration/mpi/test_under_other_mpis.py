"""Programs for MPICH's ABI (mpi4py's wheel, C) on Open MPI, Intel MPI and a library of the standard ABI: run,
checkpoint, SIGKILL, restart under the same MPI or another one; the same results as natively."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import solver
from jobs import BIN, PATIENCE, PROGRAMS, Job, oks, run
from launchers import (
    ENVIRONMENT,
    INTEL_MPI,
    INTEL_STANDARD,
    LAUNCHERS,
    MPICH,
    OPEN_MPI_4,
    OPEN_MPI_5,
    OTHERS,
    STANDARD,
    Launcher,
    job_under,
    name_of,
)
from restarts import restart, through_restart
from rounds import rounds

LAST = 400
CHANGES = [
    (OPEN_MPI_4, OPEN_MPI_4),
    (OPEN_MPI_5, OPEN_MPI_5),
    (OPEN_MPI_4, MPICH),
    (MPICH, OPEN_MPI_4),
    (OPEN_MPI_4, OPEN_MPI_5),
    (OPEN_MPI_5, MPICH),
    (INTEL_MPI, INTEL_MPI),
    (INTEL_MPI, MPICH),
    (MPICH, INTEL_MPI),
    (INTEL_MPI, OPEN_MPI_4),
    (OPEN_MPI_4, INTEL_MPI),
    (STANDARD, STANDARD),
    (STANDARD, MPICH),
    (MPICH, STANDARD),
    (OPEN_MPI_4, STANDARD),
]
VERSIONS = {
    "openmpi4": "Open MPI v4",
    "openmpi5": "Open MPI v5",
    "intelmpi": "Intel(R) MPI Library",
    "standard": "MPICH Version",
}


@pytest.fixture(scope="module")
def residuals(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What heat2d prints without manapy."""
    program = [sys.executable, PROGRAMS / "steps/heat2d.py", "--n", "96", "--steps", str(LAST), "--every", "20"]
    done = run([BIN / "mpirun", "-n", "2", *program], cwd=tmp_path_factory.mktemp("native"))
    assert done.returncode == 0, done.stderr
    return solver.residuals(done.stdout)


@pytest.mark.parametrize("launcher", OTHERS, ids=name_of)
def test_library(make_job: Callable[..., Job], launcher: Launcher) -> None:
    job = job_under(launcher, make_job, 2)
    job.start(sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version(), MPI.COMM_WORLD.size)")
    text = job.finish()
    assert text.count(VERSIONS[launcher.name]) == 2 and "manapy" not in text


def test_advice_about_intels_library_of_the_standard_abi(make_job: Callable[..., Job]) -> None:
    job = job_under(INTEL_STANDARD, make_job, 2)
    job.start(sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())")
    text = job.finish()
    assert text.count("Intel(R) MPI Library") == 2 and text.count("use its libmpi.so.12 (--mpi PATH)") == 1


@pytest.mark.parametrize(("first", "second"), CHANGES, ids=lambda x: x.name)
def test_restart_under(make_job: Callable[..., Job], residuals: list[str], first: Launcher, second: Launcher) -> None:
    """Messages, a derived datatype, reductions: each residual is that of the native run. Under one MPI the job is
    restarted once more, by `manapy restart`, which takes the mpirun that fits the library."""
    second.skip_if_missing()
    job = job_under(first, make_job, 2)
    go = job.hold(LAST - 20)
    job.start_python("steps/heat2d.py", "--n", "96", "--steps", str(LAST), "--every", "20", "--pause", "0.005")
    job.wait_for("step 60 ")
    job.checkpoint()
    job.kill()
    job.mpirun = second.mpirun
    job.restart()
    job.wait_until_it_runs()
    job.checkpoint()
    if first == second:
        job.kill()
        job.restart_by_command()
        job.wait_until_it_runs()
        library = str(first.library.resolve())
        job.wait_for(lambda _: all(library in Path(f"/proc/{pid}/maps").read_text() for pid in job.pids()))
    go.touch()
    assert job.finish().count(residuals[-1]) == 1
    assert solver.residuals_of_all_runs(job) == sorted(residuals)


# It fills 6 GB of memory, so most of them are for the night, and writes and reads 4 GB.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "launcher",
    [OPEN_MPI_5, *(pytest.param(other, marks=pytest.mark.long) for other in (MPICH, OPEN_MPI_4, INTEL_MPI))],
    ids=name_of,
)
def test_a_message_longer_than_an_int(make_job: Callable[..., Job], launcher: Launcher) -> None:
    """It is in the image as bytes. Open MPI's calls take no more than INT_MAX of them."""
    launcher.skip_if_missing()
    job = job_under(launcher, make_job, 2)
    go = job.where / "go"
    job.start_python("moments/long_message.py", go)
    job.wait_for(lambda text: all(f"rank {rank}: tick" in text for rank in range(job.ranks)))
    job.checkpoint()
    job.kill()
    go.touch()
    assert oks(job.restart().finish(4 * PATIENCE)) == job.ranks


def digest(output: str) -> set[str]:
    return {line for line in output.splitlines() if line.startswith("digest ")}


@functools.cache
def native_digest(script: Path, ranks: int, steps: int) -> set[str]:
    """What the program prints without manapy."""
    native = run([BIN / "mpirun", "-n", str(ranks), sys.executable, script, str(steps)])
    assert len(digest(native.stdout)) == 1, native.stderr
    return digest(native.stdout)


MESSAGES = {  # ranks and steps of each program
    "p2p_ring": (3, 120),
    "p2p_wildcards": (4, 80),
    "p2p_probes": (3, 60),
    "p2p_many": (3, 24),
    "p2p_modes": (4, 30),
    "p2p_threads": (2, 60),
}
# With --long each one runs all of them. The two Open MPIs have one back, and Intel MPI needs none.
CHOSEN = {
    OPEN_MPI_4: ("p2p_ring", "p2p_wildcards", "p2p_probes", "p2p_many"),
    OPEN_MPI_5: ("p2p_modes", "p2p_threads"),
    INTEL_MPI: ("p2p_probes", "p2p_many"),
}


@pytest.mark.parametrize(
    ("launcher", "program"),
    [
        pytest.param(launcher, program, marks=[] if program in chosen else [pytest.mark.long])
        for launcher, chosen in CHOSEN.items()
        for program in MESSAGES
    ],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_messages_in_flight(make_job: Callable[..., Job], launcher: Launcher, program: str) -> None:
    """A drain probes and receives through the back: nothing is lost, in the running job and in restarted ones."""
    ranks, steps = MESSAGES[program]
    expected = native_digest(PROGRAMS / "steps" / f"{program}.py", ranks, steps)
    job = job_under(launcher, make_job, ranks)
    go = job.hold(steps - 1)
    job.start_python(f"steps/{program}.py", str(steps), "--pause", "0.0125")
    job.wait_for("step")
    for there in (launcher, MPICH, launcher)[-rounds(2, 3) :]:
        job.checkpoint()
        job.checkpoint()
        job.kill()
        job.mpirun = there.mpirun
        job.restart()
        job.wait_until_it_runs()
    go.touch()
    assert digest(job.finish()) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [(OPEN_MPI_4, OPEN_MPI_4), (OPEN_MPI_4, MPICH), (MPICH, OPEN_MPI_4), (OPEN_MPI_5, OPEN_MPI_4)],
    ids=name_of,
)
def test_windows_of_one_process(
    make_job: Callable[..., Job], c_program: Callable[[Path], Path], first: Launcher, second: Launcher
) -> None:
    """Open MPI 4.1 can allocate them, but MPI_Win_create fails."""
    second.skip_if_missing()
    job = job_under(first, make_job, 2)
    through_restart(job, c_program(PROGRAMS / "mpi/lone_windows.c"), second)


@pytest.mark.parametrize("second", [MPICH, OPEN_MPI_4], ids=name_of)
def test_an_error_before_the_checkpoint(
    make_job: Callable[..., Job], c_program: Callable[[Path], Path], second: Launcher
) -> None:
    """Codes of the first library are not known to the second one."""
    second.skip_if_missing()
    job = job_under(MPICH, make_job, 2)
    through_restart(job, c_program(PROGRAMS / "mpi/failed_before.c"), second)


def test_created_window_of_one_process(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """Open MPI 4.1 can't rebuild it. The checkpoint can still be used."""
    text = f"""
import os, time
from mpi4py import MPI
memory = bytearray(8)
win = MPI.Win.Create(memory, comm=MPI.COMM_SELF)
win.Set_name("mine")
print("ready", flush=True)
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.02)
win.Fence()
win.Put(bytearray(b"somebody"), 0)
win.Fence()
print(memory.decode(), flush=True)
"""
    job = job_under(MPICH, make_job, 1)
    job.start(sys.executable, "-c", text)
    job.wait_for("ready")
    job.checkpoint()
    job.kill()
    OPEN_MPI_4.skip_if_missing()
    job.mpirun = OPEN_MPI_4.mpirun
    job.restart()
    assert job.wait() == 1
    assert "cannot rebuild the window 'mine': this MPI library makes no window of one process" in job.output()
    job.mpirun = MPICH.mpirun
    job.restart()
    (tmp_path / "go").touch()
    assert "somebody" in job.finish()


@pytest.mark.parametrize("first", LAUNCHERS, ids=name_of)
def test_hints_of_windows(make_job: Callable[..., Job], first: Launcher) -> None:
    """What the program has set is what it reads, also after a restart under Open MPI 5.0, which forgets most hints."""
    OPEN_MPI_5.skip_if_missing()
    job = job_under(first, make_job, 2)
    go = job.where / "go"
    job.start_python("mpi/hints.py", go)
    job.wait_for(lambda text: text.count("ready") == 2)
    for there in (OPEN_MPI_5, first):
        job.checkpoint()
        job.mpirun = there.mpirun
        restart(job)
    go.touch()
    assert oks(job.finish()) == 2, job.output()


@pytest.mark.parametrize("launcher", (MPICH, *OTHERS), ids=name_of)
def test_removed_error_codes(make_job: Callable[..., Job], launcher: Launcher) -> None:
    """A class goes only after its codes, and each only after its text (MPI-4.1 9.5). Open MPI removes nothing: there
    manapy does. To remove a text twice is erroneous: MPICH's libraries accept it, and then keep the code."""
    text = f"""
from mpi4py import MPI
def fails(function, code):
    try: function(code)
    except MPI.Exception: return True
added = MPI.Add_error_class()
code = MPI.Add_error_code(added)
MPI.Add_error_string(code, "a text")
assert MPI.Get_error_string(code) == "a text" and MPI.Get_error_class(code) == added
assert fails(MPI.Remove_error_class, added) and fails(MPI.Remove_error_code, code)
MPI.Remove_error_string(code)
assert MPI.Get_error_string(code) == ""
assert {launcher.abi != "Open MPI"} or fails(MPI.Remove_error_string, code)
assert fails(MPI.Remove_error_class, added) and fails(MPI.Remove_error_class, code)
MPI.Remove_error_code(code)
assert fails(MPI.Remove_error_code, code)
MPI.Remove_error_class(added)
assert fails(MPI.Remove_error_class, added) and fails(MPI.Remove_error_class, 0)
print("ok")
"""
    job = job_under(launcher, make_job, 1)
    job.start(sys.executable, "-c", text)
    assert "ok" in job.finish().splitlines()


@pytest.mark.parametrize(
    ("library", "words"),
    [(MPICH, f"use MPICH's {BIN}/mpirun"), (INTEL_MPI, f"use Intel MPI's {INTEL_MPI.mpirun[0]}")],
    ids=["mpich", "intelmpi"],
)
def test_mpich_under_open_mpis_mpirun(tmp_path: Path, library: Launcher, words: str) -> None:
    """Each rank would become a job of its own. Rank 0 says so; if mpirun is slow to end the job, rank 1 does, too."""
    OPEN_MPI_4.skip_if_missing()
    library.skip_if_missing()
    program = [sys.executable, "-c", "from mpi4py import MPI"]
    launch = [BIN / "manapy-launch", "--dir", tmp_path / "job", "--mpi", library.library]
    done = run([*OPEN_MPI_4.mpirun, "-n", "2", *launch, *program], env={**os.environ, **ENVIRONMENT})
    lines = [line for line in done.stderr.splitlines() if "each rank would become a job of its own" in line]
    assert lines and all(words in line for line in lines), done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("mpi", [MPICH, INTEL_MPI], ids=name_of)
def test_a_named_library_of_the_standard_abi(make_job: Callable[..., Job], mpi: Launcher) -> None:
    """It is taken although a libmpi.so.12 lies beside it. A wrong call is an error. Intel MPI has other constants than
    the standard for the origins of MPI_File_seek and for predefined attributes."""
    job = job_under(mpi, make_job, 2)
    library = mpi.library.with_name("libmpi_abi.so.1")
    job.env["MANAPY_LIBMPI"] = str(library)
    text = """if True:
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        try:
            comm.Send(b"", 99)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_RANK
        assert comm.Get_attr(MPI.APPNUM) == 0 and comm.Get_attr(MPI.LASTUSEDCODE) >= MPI.ERR_LASTCODE
        file = MPI.File.Open(MPI.COMM_SELF, f"seek-{comm.rank}", MPI.MODE_CREATE | MPI.MODE_RDWR)
        file.Set_size(100)
        for origin, place in ((MPI.SEEK_SET, 7), (MPI.SEEK_CUR, 17), (MPI.SEEK_END, 107)):
            file.Seek(10, MPI.SEEK_SET)
            file.Seek(7, origin)
            assert file.Get_position() == place
        file.Close()
        total = comm.allreduce(comm.rank + 1)
        paths = {line.split()[-1] for line in open("/proc/self/maps") if "/libmpi" in line}
        below = comm.gather(sorted(path for path in paths if "/manapy/" not in path))
        if comm.rank == 0:
            print("sum", total, below)"""
    job.start(sys.executable, "-c", text)
    assert f"sum 3 {[[str(library.resolve())]] * 2}" in job.finish()


def test_open_mpi_under_mpichs_mpirun(tmp_path: Path) -> None:
    OPEN_MPI_4.skip_if_missing()
    program = [sys.executable, "-c", "from mpi4py import MPI"]
    library = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"
    launch = [BIN / "manapy-launch", "--dir", tmp_path / "job", "--mpi", library]
    done = run([*MPICH.mpirun, "-n", "2", *launch, *program])
    lines = [line for line in done.stderr.splitlines() if "each rank would become a job of its own" in line]
    assert done.returncode == 1 and lines
    assert all("use Open MPI's /usr/bin/mpirun.openmpi" in line for line in lines)
