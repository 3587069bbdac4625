"""State of the program that has nothing to do with MPI: one program per kind (tests/programs/state), checkpointed in
mid-run.

continue   checkpoint, twice; the program goes on and checks its state
restart    checkpoint, SIGKILL, restart, twice; the last generation checks its state. Once also with an image that was
           written beside the program, and once with one that needs older ones
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import compiling
import pytest
import waiting
from jobs import BIN, PATIENCE, PROGRAMS, Job, JobError, manapy, oks
from manapy.ckpt.store import publish
from manapy.ckpt.store.image import Image
from manapy.core.proc import descendants
from phases import answer, request

KINDS = sorted(p.name for p in (PROGRAMS / "state").glob("state_*"))
COMPILERS = {".c": ["gcc"], ".cpp": ["g++", "-std=c++20"]}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """The command of a program, which is compiled once."""
    where = tmp_path_factory.mktemp("built")

    def command(name: str) -> list[str]:
        source = PROGRAMS / "state" / name
        if source.suffix == ".py":
            return [sys.executable, str(source)]
        program = where / source.stem
        if not program.exists():
            compiler, *options = COMPILERS[source.suffix]
            compiling.build(program, source, "-O1", "-g", "-pthread", *options, "-lm", compiler=compiler)
        return [str(program)]

    return command


def start(job: Job, command: Sequence[str], options: Sequence[str] = ()) -> Path:
    """Start the job, and wait until the states are set up. Creating the returned file lets the program go on."""
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(*command, options=options)
    job.wait_for("ready")
    return go


def restarted(job: Job) -> None:
    """Wait until every rank of the restarted job runs."""
    generation = len(job.runs)
    job.restart()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert job.process is not None
        if job.process.poll() is not None:
            raise JobError(f"the restart ended with {job.process.returncode}:\n{job.report()}")
        try:
            status = job.status()
        except JobError:
            continue
        if (
            status["state"] == "running"
            and len(status["ranks"]) == job.ranks
            and all(r["pid"] in descendants(job.process.pid) for r in status["ranks"])
        ):
            assert len(job.runs) == generation + 1
            return
    raise JobError(f"the restart hangs:\n{job.report()}")


def finished(job: Job, go: Path) -> None:
    """The program's own checks pass."""
    go.touch()
    code = job.wait()
    output = job.output()
    assert (code, "ok" in output.splitlines(), re.findall(r"FAILED.*", output)) == (0, True, []), job.report()


@pytest.mark.parametrize("kind", KINDS)
def test_continue(make_job: Callable[..., Job], built: Callable[[str], list[str]], kind: str) -> None:
    job = make_job(1)
    go = start(job, built(kind))
    job.checkpoint()
    job.checkpoint()
    finished(job, go)


def through_generations(job: Job, program: list[str], generations: int, options: Sequence[str] = ()) -> None:
    """So many times: checkpoint, kill, restart."""
    go = start(job, program, options)
    for _ in range(generations):
        job.checkpoint()
        job.kill()
        restarted(job)
    finished(job, go)


@pytest.mark.parametrize("kind", KINDS)
def test_restart(make_job: Callable[..., Job], built: Callable[[str], list[str]], kind: str) -> None:
    through_generations(make_job(1), built(kind), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_restart_from_background(make_job: Callable[..., Job], built: Callable[[str], list[str]], kind: str) -> None:
    """The image was written beside the program."""
    job = make_job(1)
    through_generations(job, built(kind), 1, ["--background", "auto"])
    log = (job.dir / "coordinator.log").read_text()
    assert "the job was paused for" in log and "written while the job was paused" not in log


def test_many_checkpoints_interrupt_no_sleep(make_job: Callable[..., Job], built: Callable[[str], list[str]]) -> None:
    """A checkpoint meets threads between two sleeps, too."""
    job = make_job(1)
    go = start(job, [*built("state_sleeps.c"), "short"])
    for _ in range(30):
        assert answer(request(job))[0] == 0
    finished(job, go)


def test_reserved_memory_is_skipped(make_job: Callable[..., Job], built: Callable[[str], list[str]]) -> None:
    """The program reserves 68 GiB, whose pagemap has 136 MiB. A checkpoint does not read all of that."""
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 7):
        pytest.skip("needs Linux 6.7: PAGEMAP_SCAN")
    job = make_job(1)
    go = start(job, built("state_memory.c"))

    def bytes_read() -> int:
        return int(re.findall(r"^rchar: (\d+)$", Path(f"/proc/{job.pids()[0]}/io").read_text(), re.M)[0])

    job.checkpoint()  # reads all files of the program
    before = bytes_read()
    job.checkpoint()
    assert bytes_read() - before < 68 << 20
    finished(job, go)


@pytest.mark.parametrize("kind", ["state_memory.c", "state_threads.py", "state_numpy.py"])
def test_lazy_restart(make_job: Callable[..., Job], built: Callable[[str], list[str]], kind: str) -> None:
    """Most memory comes when the program runs again."""
    job = make_job(1)
    go = start(job, built(kind))
    job.checkpoint()
    job.kill()
    job.restart(options=["--lazy"])
    finished(job, go)


UNLIMITED = ("bash", "-c", 'ulimit -s unlimited && exec "$@"', "-")


@contextlib.contextmanager
def on_an_unlimited_stack(job: Job) -> Iterator[None]:
    """What the job starts meanwhile has it, as after `ulimit -s unlimited`. The kernel then places libraries below the
    range of the program's memory."""
    mpirun = job.mpirun
    job.mpirun = [*UNLIMITED, *mpirun]
    try:
        yield
    finally:
        job.mpirun = mpirun


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        # each pair of values in an ordinary run; the other combinations with --long
        pytest.param(options, before, after, marks=[] if (before == after) == bool(options) else [pytest.mark.long])
        for options in ((), ("-no-pie",))
        for before in (False, True)
        for after in (False, True)
    ],
    ids=lambda value: {False: "limited", True: "unlimited", (): "pie"}.get(value, "no-pie"),
)
def test_unlimited_stack(
    make_job: Callable[..., Job], tmp_path: Path, before: bool, after: bool, options: tuple[str, ...]
) -> None:
    """Of what is below the range, only the program's memory is saved."""
    source = PROGRAMS / "state/state_memory.c"
    program = compiling.build(tmp_path / "program", source, "-O1", "-pthread", "-lm", *options)
    job = make_job(1)
    with on_an_unlimited_stack(job) if before else contextlib.nullcontext():
        go = start(job, [str(program)])
    paths = {region.path for region in Image.open(job.checkpoint() / "rank-00000.img").regions}
    assert not [path for path in paths if path and "manapy-launch" in path]
    job.kill()
    with on_an_unlimited_stack(job) if after else contextlib.nullcontext():
        restarted(job)
    finished(job, go)


def test_unlimited_stack_of_mpi_programs(make_job: Callable[..., Job]) -> None:
    """The real MPI's libraries, and programs that the program starts, are below the range."""
    program = """
import os, subprocess, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
print("ready", flush=True)
while not comm.allreduce(int(os.path.exists(sys.argv[1]))):
    assert subprocess.run(["true"]).returncode == 0
print("ok")
"""
    job = make_job(2)
    with on_an_unlimited_stack(job):
        job.start(sys.executable, "-c", program, job.where / "go")
        job.wait_for("ready")
        job.checkpoint("--child-grace", "20s")
        job.kill()
        job.restart()
    (job.where / "go").touch()
    assert oks(job.finish()) == 2


@pytest.mark.parametrize("options", [(), ("--ignore-child", "sleep")], ids=["saved", "ignored"])
def test_unlimited_stack_of_a_child(make_job: Callable[..., Job], options: tuple[str, ...]) -> None:
    """A script sets it for the programs that it starts."""
    job = make_job(1)
    job.start("bash", "-c", "ulimit -s unlimited; sleep 0.1; echo code $?", options=options)
    assert "code 0" in job.finish()


FULL_EVERY = 10  # the default


# A second checkpoint loses an empty datagram that the first one has found in a queue: SO_PEEK_OFF skips it.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "state_channels.py"])
def test_restart_from_incremental(make_job: Callable[..., Job], built: Callable[[str], list[str]], kind: str) -> None:
    """Most of the memory is in the images of older checkpoints. If much has changed between two checkpoints (sleeps
    have ended meanwhile), some full ones follow."""
    job = make_job(1)
    go = start(job, built(kind), ["--dirty", "auto", "--background", "auto"])
    kept: list[int] = []
    while len(kept) < 3 or min(kept[-2:]) == 0:
        assert len(kept) <= 3 + FULL_EVERY, kept
        kept.append(publish.read_manifest(job.checkpoint()).ranks[0].kept)
    assert kept[0] == 0
    job.kill()
    restarted(job)
    finished(job, go)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["state_threads.py", "state_signals.c", "state_locks.c", "state_channels.py", "state_numpy.py"]
)
def test_many_generations(make_job: Callable[..., Job], built: Callable[[str], list[str]], kind: str) -> None:
    through_generations(make_job(1), built(kind), 10)


def test_checkpoint_storm(make_job: Callable[..., Job], built: Callable[[str], list[str]]) -> None:
    """Many checkpoints in a row while threads start and end."""
    job = make_job(1)
    go = start(job, [*built("state_threads.py"), "churn", "computing", "sleep", "new_threads"])
    for _ in range(15):
        job.checkpoint()
    job.kill()
    restarted(job)
    for _ in range(5):
        job.checkpoint()
    finished(job, go)


def test_sleeps_end_however_often_they_are_interrupted(
    make_job: Callable[..., Job], built: Callable[[str], list[str]]
) -> None:
    """A sleep that began again after each checkpoint would never end."""
    job = make_job(1)
    go = start(job, built("state_naps.c"))
    go.touch()
    for taken in range(30):
        code, _, errors = answer(request(job))
        if code:
            assert any(text in errors for text in ("ended", "not running", "is finishing")), errors
            break
        if taken == 2:
            job.kill()
            restarted(job)
        time.sleep(0.4)
    else:
        raise JobError(f"it still sleeps:\n{job.report()}")
    finished(job, go)


def test_thread_that_takes_every_signal(make_job: Callable[..., Job]) -> None:
    """A common pattern: all signals are blocked, and one thread waits for all of them in sigwait. It must not take
    manapy's own signal."""
    program = """
import os, signal, threading, time
got = []
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
thread = threading.Thread(target=lambda: got.append(int(signal.sigwait(signal.valid_signals()))))
thread.start()
time.sleep(0.1)
print("ready", flush=True)
while not os.path.exists(os.environ["STATE_GO"]): time.sleep(0.01)
os.kill(os.getpid(), signal.SIGUSR1)
thread.join(20)
print("ok" if got == [signal.SIGUSR1] else got)
"""
    job = make_job(1)
    go = start(job, [sys.executable, "-c", program])
    job.checkpoint()
    job.checkpoint()
    job.kill()
    restarted(job)
    finished(job, go)


# ---- what is refused ----


def refused(job: Job, pattern: str, *arguments: str) -> None:
    """`manapy checkpoint` fails with one line, and nothing is published."""
    before = sorted(p.name for p in job.dir.glob("ckpt-*"))
    done = manapy("checkpoint", job.dir, *arguments)
    assert done.returncode == 1, (done, job.report())
    lines = done.stderr.strip().splitlines()
    assert re.search(pattern, lines[-1]), done.stderr
    assert sum("Traceback" in line for line in lines) == 0
    assert sorted(p.name for p in job.dir.glob("ckpt-*")) == before
    assert not list(job.dir.glob("tmp-*"))


REFUSED = {
    "socket": (
        "import socket; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); fd = s.fileno(); close = "
        "s.close",
        r"rank 0.*\b{fd}\b.*socket|connect",
    ),
    "inotify": (
        "import ctypes; fd = ctypes.CDLL(None).inotify_init(); close = lambda: os.close(fd)",
        r"rank 0.*\b{fd}\b.*inotify",
    ),
    "child": (
        "import subprocess; p = subprocess.Popen(['sleep', '1000']); fd = p.pid; close = lambda: (p.kill(), p.wait())",
        r"rank 0.*\b{fd}\b.*sleep",
    ),
    "aio": (
        "import ctypes; call = ctypes.CDLL(None).syscall; context = ctypes.c_ulong(); "
        "fd = call(206, 1, ctypes.byref(context)); close = lambda: call(207, context)",
        r"rank 0.*asynchronous I/O",
    ),
    "device": ("fd = os.open('/dev/ptmx', os.O_RDWR); close = lambda: os.close(fd)", r"rank 0.*\b{fd}\b.*terminal"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(make_job: Callable[..., Job], what: str) -> None:
    """The job goes on, and once the obstacle is gone it can be checkpointed."""
    setup, pattern = REFUSED[what]
    program = f"""
import os, sys, time
{setup}
print("holds", fd, flush=True)
while not os.path.exists(os.environ["STATE_GO"] + "1"): time.sleep(0.01)
close()
print("closed", flush=True)
while not os.path.exists(os.environ["STATE_GO"]): time.sleep(0.01)
print("ok")
"""
    job = make_job(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        go = job.where / "go"
        job.env["STATE_GO"] = str(go)
        job.start(sys.executable, "-c", program, str(server.getsockname()[1]))
        fd = re.search(r"holds (\d+)\n", job.wait_for(lambda text: re.search(r"holds \d+\n", text)))
        assert fd
        refused(job, pattern.replace("{fd}", fd[1]), "--child-grace", "200ms")
        refused(job, pattern.replace("{fd}", fd[1]), "--child-grace", "200ms")
        Path(f"{go}1").touch()
        job.wait_for("closed")
        job.checkpoint()
        job.kill()
        restarted(job)
        finished(job, go)


def test_child_ends_within_the_grace_time(make_job: Callable[..., Job]) -> None:
    program = """
import os, subprocess, time
print("ready", flush=True)
print("code", subprocess.run(["sleep", "1.5"]).returncode, flush=True)
while not os.path.exists(os.environ["STATE_GO"]): time.sleep(0.01)
print("ok")
"""
    job = make_job(1)
    go = start(job, [sys.executable, "-c", program])
    job.checkpoint("--child-grace", "30s")
    job.kill()
    restarted(job)
    finished(job, go)
    assert "code 0" in job.output(0) + job.output()


def test_inherited_descriptors(make_job: Callable[..., Job], built: Callable[[str], list[str]]) -> None:
    """Descriptors that mpirun or the shell leaves open are no reason to refuse, of whatever kind they are."""
    job = make_job(1)
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    reading, writing = os.pipe()
    left, right = socket.socketpair()
    extra = [reading, writing, left.fileno(), right.fileno(), os.eventfd(0)]
    inherit = [251, 252, 253, 254, 255]
    for number, fd in zip(inherit, extra, strict=True):
        os.dup2(fd, number, inheritable=True)
    try:
        log = job.where / "run-0.log"
        job.runs.append(log)
        command = [BIN / "manapy-launch", "--dir", job.dir, *built("state_sleeps.c"), "endless"]
        with log.open("wb") as stream:
            job.process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=job.where,
                env={**os.environ, **job.env},
                close_fds=False,
            )
    finally:
        for number in inherit:
            os.close(number)
    job.wait_for("ready")
    assert {os.readlink(f"/proc/{job.process.pid}/fd/{n}").split(":")[0] for n in inherit} == {
        "pipe",
        "socket",
        "anon_inode",
    }
    job.checkpoint()
    job.kill()
    restarted(job)
    job.checkpoint()
    finished(job, go)


def namespaces() -> set[str]:
    """The time namespaces of all processes."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/time"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(link))
    return found


def test_clocks_of_machines_that_are_up_for_less_and_for_longer(
    make_job: Callable[..., Job], built: Callable[[str], list[str]]
) -> None:
    """Time namespaces restart the job with another monotonic clock. A sleep that one restart has corrected is corrected
    again by the next. A namespace may get the inode number of one that has ended, and the kernel gives it at once."""

    def machine(seconds: int) -> list[str | Path]:
        return ["unshare", "--time", "--monotonic", str(seconds), "--boottime", str(seconds), BIN / "mpirun"]

    job = make_job(1)
    job.mpirun = machine(1000000)
    if subprocess.run([*map(str, job.mpirun), "-n", "1", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs time namespaces (root)")
    go = start(job, built("state_clock.c"))
    for seconds in 500, 20000000:
        job.checkpoint()
        namespace = os.readlink(f"/proc/{job.pids()[0]}/ns/time")
        job.kill()
        waiting.until(lambda gone=namespace: gone not in namespaces(), "the end of all processes in the namespace")
        job.mpirun = machine(seconds)
        restarted(job)
    finished(job, go)


def test_deleted_working_directory(make_job: Callable[..., Job]) -> None:
    job = make_job(1)
    gone = job.where / "gone"
    gone.mkdir()
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    program = (
        "import os, time; os.chdir('gone'); os.rmdir('../gone'); print('ready', flush=True)\n"
        "while not os.path.exists(os.environ['STATE_GO']): time.sleep(0.01)\nprint('ok')"
    )
    job.start(sys.executable, "-c", program)
    job.wait_for("ready")
    refused(job, "working directory")
    finished(job, go)


def test_changed_library_is_found(make_job: Callable[..., Job]) -> None:
    """A mapped file has changed since the checkpoint. The restart names it instead of crashing because of it."""
    job = make_job(1)
    library = job.where / "libmine.so"

    def build(value: int) -> None:
        text = f"int answer(void) {{ return {value}; }}\n"
        os.replace(compiling.build(job.where / "libmine.so.new", text, *compiling.SHARED), library)

    build(1)
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    program = (
        "import ctypes, os, time; f = ctypes.CDLL('./libmine.so').answer; print('ready', flush=True)\n"
        "while not os.path.exists(os.environ['STATE_GO']): time.sleep(0.01)\nprint('ok' if f() == 1 else 'wrong')"
    )
    job.start(sys.executable, "-c", program)
    job.wait_for("ready")
    job.checkpoint()
    job.kill()
    build(2)
    job.restart()
    assert job.wait() != 0
    assert "libmine.so" in job.output()
    build(1)
    restarted(job)
    finished(job, go)


def test_private_memory_of_a_file_that_ends_with_the_host(make_job: Callable[..., Job]) -> None:
    """POSIX shared memory that is mapped privately. After a reboot, or on another host, there is no such file."""
    job = make_job(1)
    program = """
import ctypes, mmap, os, sys, time
call = ctypes.CDLL(None).mmap  # mmap.mmap keeps a descriptor
call.restype = ctypes.c_void_p
with open(sys.argv[1], "w+b") as file:
    file.write(b"a" * 4096 + b"b" * 4096)
    file.flush()
    at = call(None, ctypes.c_size_t(8192), 3, mmap.MAP_PRIVATE, file.fileno(), ctypes.c_long(0))
private = (ctypes.c_char * 8192).from_address(at)
private[1] = b"p"
print("ready", flush=True)
while not os.path.exists(os.environ["STATE_GO"]): time.sleep(0.01)
print("ok" if (private[:3], private[4096:]) == (b"apa", b"b" * 4096) else "wrong")
"""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as where:
        file = Path(where) / "memory"
        go = start(job, [sys.executable, "-c", program, str(file)])
        for _ in range(2):
            job.checkpoint()
            job.kill()
            file.unlink(missing_ok=True)
            restarted(job)
        finished(job, go)


FIXED = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void children(char **commands) {
    for (; *commands; commands++)
        if (system(*commands)) printf("FAILED %s\\n", *commands), fflush(stdout);
}
int main(int argc, char **argv) {
    if (argc == 1) return malloc(1 << 22) == NULL;
    children(argv + 1);
    puts("ready"), fflush(stdout);
    while (access(getenv("STATE_GO"), F_OK)) usleep(10000);
    children(argv + 1);
    puts("ok");
}
"""


def test_children_linked_to_the_same_addresses(make_job: Callable[..., Job]) -> None:
    """Programs linked without -pie have the same addresses. Static ones make system calls there (Go, busybox)."""
    job = make_job(1)
    children = []
    for name, flags in (("rank", ["-no-pie"]), ("dynamic", ["-no-pie"]), ("static", ["-no-pie", "-static"])):
        children.append(str(compiling.build(job.where / name, FIXED, "-O1", *flags)))
    children[0] = "busybox true" if shutil.which("busybox") else "true"
    go = start(job, [str(job.where / "rank"), *children])
    job.checkpoint()
    job.kill()
    restarted(job)
    finished(job, go)
