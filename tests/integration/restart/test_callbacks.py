"""Callbacks of the program at checkpoints: ranks that hold a connection to this test, which cannot be saved."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiling import STRICT, build
from jobs import BIN, PROGRAMS, Job, manapy, oks
from launchers import OPEN_MPIS, Launcher, job_under, name_of
from waiting import until

import manapy as package


class Echo:
    """A server outside of the job. ``accepted``: how many connections it has had; ``open``: of those, still open."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.accepted, self.open = 0, set[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                connection = self.listener.accept()[0]
                self.accepted += 1
                self.open.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(100):
                connection.sendall(data)
        self.open.discard(connection)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.listener.close()


def start(job: Job, echo: Echo, *ranks: int, options: tuple[str, ...] = ()) -> None:
    words = [str(echo.port), job.where, *map(str, ranks)]
    job.start_python("callbacks/connected.py", *words, options=options)
    job.wait_for("steps")


def refused(job: Job) -> str:
    """The only line of a `manapy checkpoint` that fails."""
    done = manapy("checkpoint", job.dir)
    assert done.returncode == 1 and done.stdout == "", done
    lines = [line for line in done.stderr.splitlines() if "waiting" not in line]
    assert len(lines) == 1, done.stderr
    return lines[0]


def end(job: Job) -> str:
    (job.where / "end").touch()
    return job.finish()


def ended(job: Job) -> None:
    text = end(job)
    assert oks(text) == job.ranks and "Traceback" not in text, text


def test_connections_survive(job: Job, echo: Echo) -> None:
    """Two checkpoints after which the job goes on, and two restarts, the second one from the first checkpoint."""
    start(job, echo)
    first = job.checkpoint()
    text = job.wait_for(lambda t: t.count("goes on") == 2)
    assert text.count("leaves") == 2
    second = job.checkpoint()
    job.wait_for(lambda t: t.count("goes on") == 4)
    until(lambda: len(echo.open) == 2, "open connections")
    assert echo.accepted == 6
    job.kill()
    for checkpoint in (second, first):
        job.restart(checkpoint)
        job.wait_for(lambda t: t.count("comes back") == 2)
        assert "goes on" not in job.output() and "leaves" not in job.output()
        if checkpoint == second:
            job.kill()
    job.checkpoint()
    job.wait_for(lambda t: t.count("goes on") == 2)
    ended(job)


def test_what_callbacks_leave_open_is_found(job: Job, echo: Echo) -> None:
    start(job, echo)
    (job.where / "open").touch()
    line = refused(job)
    assert re.search(r"rank [01]: descriptor \d+ is a connected TCP socket to .*before_checkpoint", line), line
    job.wait_for(lambda t: t.count("goes on") == t.count("leaves") > 0)
    (job.where / "open").unlink()
    job.checkpoint()
    ended(job)


def test_one_rank_has_callbacks(job: Job, echo: Echo) -> None:
    """A failure afterwards is printed, and the job goes on."""
    start(job, echo, 0)
    (job.where / "late").touch()
    job.checkpoint()
    text = job.wait_for("failed: RuntimeError: no license")
    assert "manapy: rank 0: after_checkpoint callback 'go_on' failed: RuntimeError: no license\n" in text
    assert text.count("leaves") == 1, "rank 1 has no callbacks"
    ended(job)


def test_exception_refuses_the_checkpoint(job: Job, echo: Echo) -> None:
    start(job, echo, options=("--background", "off"))
    (job.where / "fail").touch()
    line = refused(job)
    assert line.endswith("rank 1: before_checkpoint callback 'leave' failed: ValueError: the server is busy")
    job.wait_for(lambda t: t.count("goes on") == 2)
    (job.where / "fail").unlink()
    job.checkpoint()
    assert not list(job.dir.glob("tmp-*")) and [p.name for p in job.dir.glob("ckpt-*")] == ["ckpt-000001"]
    ended(job)


def test_callback_that_does_not_return(job: Job, echo: Echo) -> None:
    start(job, echo, 1, options=("--callback-timeout", "1s"))
    (job.where / "stuck").touch()
    line = refused(job)
    assert line.endswith("rank 1: before_checkpoint callback 'leave' has not returned within 1 s (--callback-timeout)")
    line = refused(job)
    assert line.endswith("rank 1: before_checkpoint callback 'leave' of the last checkpoint has not returned yet")
    (job.where / "stuck").unlink()
    job.wait_for("goes on")
    job.checkpoint()
    ended(job)


def test_callback_that_calls_mpi(job: Job, echo: Echo) -> None:
    start(job, echo, 1)
    (job.where / "call").touch()
    line = refused(job)
    assert line.endswith("rank 1: before_checkpoint callback 'leave' calls MPI, which callbacks must not do")
    job.wait_for("has called MPI")
    (job.where / "call").unlink()
    job.wait_for("goes on")
    job.checkpoint()
    ended(job)


def test_main_thread_that_sleeps(job: Job, echo: Echo) -> None:
    """After callbacks_anywhere() a wait of Python is a safe point, and goes on afterwards."""
    start(job, echo)
    (job.where / "sleep").touch()
    job.wait_for(lambda t: t.count("sleeps") == 2)
    job.checkpoint()
    job.wait_for(lambda t: t.count("goes on") == 2)
    job.kill()
    job.restart()
    job.wait_for(lambda t: t.count("comes back") == 2)


def test_main_threads_that_wait_in_mpi(make_job: Callable[..., Job], echo: Echo) -> None:
    job = make_job(3)
    start(job, echo)
    (job.where / "wait").touch()
    job.wait_for("waits")
    for count in (3, 6):
        job.checkpoint()
        job.wait_for(lambda t, n=count: t.count("goes on") == n)
    job.kill()
    job.restart()
    job.wait_for(lambda t: t.count("comes back") == 3)
    job.checkpoint()
    (job.where / "wait").unlink()
    ended(job)


def test_main_thread_that_computes(job: Job, echo: Echo) -> None:
    """A long computation outside of Python's code is none: it delays the checkpoint up to the time limit."""
    start(job, echo, options=("--callback-timeout", "100ms"))
    (job.where / "sum").touch()
    job.wait_for(lambda t: t.count("sums") == 2)
    assert "the main thread could not run its callbacks within 0.1 s (--callback-timeout)" in refused(job)
    assert "leaves" not in job.output()
    (job.where / "sum").unlink()
    ended(job)


@pytest.mark.parametrize("launcher", OPEN_MPIS, ids=name_of)
def test_under_open_mpi(make_job: Callable[..., Job], echo: Echo, launcher: Launcher) -> None:
    job = job_under(launcher, make_job, 2)
    start(job, echo)
    job.checkpoint()
    job.wait_for(lambda t: t.count("goes on") == 2)
    job.kill()
    job.restart()
    job.wait_for(lambda t: t.count("comes back") == 2)
    ended(job)


def test_script_around_the_program(job: Job, echo: Echo) -> None:
    """The MPI process of a rank that is several processes."""
    program = f"{sys.executable} {PROGRAMS / 'callbacks/connected.py'} {echo.port} {job.where}"
    job.start("sh", "-c", f"{program}; echo behind it")
    job.wait_for("steps")
    job.checkpoint()
    job.wait_for(lambda t: t.count("goes on") == 2)
    job.kill()
    job.restart()
    job.wait_for(lambda t: t.count("comes back") == 2)
    assert end(job).count("behind it") == 2


def test_stop_and_restart(job: Job, echo: Echo) -> None:
    """The job ends with its checkpoint: no callback follows."""
    start(job, echo)
    assert manapy("stop", job.dir).returncode == 0
    assert job.wait() == 0 and "goes on" not in job.output()
    job.restart_by_command("--callback-timeout", "20s")
    job.wait_for(lambda t: t.count("comes back") == 2)
    ended(job)


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles callbacks.c."""

    def compile_it(*options: str | Path, compiler: str | Path = "gcc") -> Path:
        target = tmp_path_factory.mktemp("callbacks") / "callbacks"
        source = PROGRAMS / "callbacks/callbacks.c"
        return build(target, source, *STRICT, f"-I{package.get_include()}", *options, compiler=compiler)

    return compile_it


AROUND = ["leaves b", "leaves plainly a", "goes on a", "goes on b"]


def of_rank(job: Job, rank: int) -> list[str]:
    """What the callbacks of a rank have printed in this run."""
    return [
        line.removeprefix(f"rank {rank} ") for line in job.output().splitlines() if line.startswith(f"rank {rank} ")
    ]


def test_c_program(job: Job, in_c: Callable[..., Path]) -> None:
    program = in_c(compiler=BIN / "mpicc")
    job.start(program, job.where)
    job.wait_for(lambda t: t.count("running") == 2)
    assert job.output().count("registered 6") == 2
    job.checkpoint()
    until(lambda: [of_rank(job, rank) for rank in (0, 1)] == [AROUND] * 2, "callbacks")
    (job.where / "fail").touch()
    assert "before_checkpoint callback 'before' failed: the file is locked" in refused(job)
    (job.where / "fail").unlink()
    (job.where / "plain").touch()
    assert "before_checkpoint callback 'plain' returned 9" in refused(job)
    (job.where / "plain").unlink()
    job.kill()
    job.restart()
    job.wait_for(lambda t: t.count("comes back a") == 2)
    ended(job)


def test_c_program_without_mpi(make_job: Callable[..., Job], in_c: Callable[..., Path]) -> None:
    job = make_job(1)
    job.start(in_c("-DWITHOUT_MPI"), job.where)
    job.wait_for("running")
    job.checkpoint()
    until(lambda: of_rank(job, 0) == AROUND, "callbacks")
    job.kill()
    job.restart()
    job.wait_for("comes back a")
    ended(job)


def test_fortran_program(make_job: Callable[..., Job], tmp_path: Path) -> None:
    sources = [PROGRAMS / "callbacks" / name for name in ("fortran_connected.f90", "fortran_callbacks.c")]
    options = (f"-I{package.get_include()}", f"-J{tmp_path}")
    program = build(tmp_path / "fortran_connected", sources, *options, compiler="gfortran")
    job = make_job(1)
    job.start(program, job.where)
    job.wait_for("registered 3")
    job.checkpoint()
    assert job.wait_for("is back").splitlines() == ["registered 3", "leaves 1", "is back 1"]
    job.kill()
    job.restart()
    job.wait_for("is back 1")
    job.checkpoint()
    job.wait_for("is back 2")
    assert end(job).splitlines()[-1] == "ok 2"


def test_program_that_asks_for_its_checkpoints(make_job: Callable[..., Job]) -> None:
    """manapy.checkpoint() is a safe point; the callbacks have run when it returns. Then a restart."""
    job = make_job(1)
    job.start(sys.executable, "-u", "-c", ASKS)
    assert job.finish().split() == ["before", "after", "returned", "end"]
    assert job.restart().finish().split() == ["restarted", "returned", "end"]


ASKS = """
import manapy
manapy.before_checkpoint(lambda: print("before"))
manapy.after_checkpoint(lambda: print("after"))
manapy.after_restart(lambda: print("restarted"))
manapy.checkpoint()
print("returned")
print("end")
"""


def test_c_program_without_manapy(tmp_path: Path, in_c: Callable[..., Path]) -> None:
    (tmp_path / "end").touch()
    done = subprocess.run([in_c("-DWITHOUT_MPI"), tmp_path], capture_output=True, text=True, timeout=60)
    assert done.stdout == "registered 0\nrunning\nok\n" and done.returncode == 0


def test_python_without_mpi(make_job: Callable[..., Job]) -> None:
    """Registration and removal, also within a callback, and of methods."""
    job = make_job(1)
    program = PROGRAMS / "callbacks/registered.py"
    job.start(sys.executable, program, job.where)
    job.wait_for("running")
    job.checkpoint()
    job.wait_for("after 1")
    job.checkpoint()
    text = job.wait_for("after 2")
    assert text.splitlines() == [
        "this process has 256 callbacks for checkpoints already", "running",
        "second", "first", "method", "after 1", "second", "first", "added", "after 2"
    ]  # fmt: skip
    job.kill()
    job.restart()
    job.wait_for("restarted")
    ended(job)
