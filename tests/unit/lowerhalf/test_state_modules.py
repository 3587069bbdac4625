"""lowerhalf/process: descriptors, process-wide settings, children and CPU features, saved in one process and restored
in another.

state_driver.c plays the program; each case (state_cases.h) sets real state up, and verifies it twice: after saving
(nothing may have changed) and after restoring in a new process. guard_driver.c and guard_library.c play the lower half
and a transport of the real MPI."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiling import build_core

pytestmark = pytest.mark.slow  # the whole file

HERE = Path(__file__).resolve().parent
PROGRAM = sorted(HERE.glob("state_*.c"))
RESTORED = ["files", "grown", "deleted", "locks", "devices", "pipes", "fifo", "pairs", "sockets", "events", "process"]
NOBODY = 65534


def build(output: Path, sources: list[Path], *options: str) -> Path:
    return build_core(output, sources, "-fvisibility=hidden", *options)


@pytest.fixture(scope="module")
def state_sources(root: Path) -> list[Path]:
    lower = root / "lowerhalf"
    return [*sorted((lower / "process").rglob("*.c")), *(lower / "isolate" / name for name in ("fdguard.c", "pts.c"))]


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory from which any user may run programs (pytest's own is private)."""
    path = Path("/tmp") / f"manapy-state-{os.getpid()}"
    path.mkdir(mode=0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def driver(binaries: Path, root: Path, state_sources: list[Path]) -> Path:
    return build(binaries / "state_driver", [*PROGRAM, *state_sources])


@pytest.fixture(scope="module")
def interposed(binaries: Path, root: Path, state_sources: list[Path]) -> Path:
    """Linked as manapy-restart is: the descriptors that it opens itself get high numbers."""
    return build(
        binaries / "state_driver_high",
        [*PROGRAM, *state_sources, root / "lowerhalf" / "isolate" / "interpose.c"],
        "-rdynamic",
        "-ldl",
    )


@pytest.fixture(scope="module")
def sanitized(binaries: Path, root: Path, state_sources: list[Path]) -> Path:
    return build(binaries / "state_driver_san", [*PROGRAM, *state_sources], "-fsanitize=address,undefined")


def call(
    driver: Path, *arguments: str, cwd: Path, user: int | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", **variables}
    return subprocess.run(
        [str(driver), *arguments], cwd=cwd, user=user, group=user, extra_groups=None if user is None else [],
        env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def place(binaries: Path, request: pytest.FixtureRequest) -> Path:
    path = binaries / request.node.name.replace("/", "-")
    path.mkdir()
    return path


@pytest.mark.parametrize("who", ["self", "nobody", "no-kcmp"])
@pytest.mark.parametrize("case", RESTORED)
def test_state_survives_in_a_new_process(driver: Path, place: Path, case: str, who: str) -> None:
    user, variables = None, {}
    if who == "nobody":
        if os.geteuid() != 0:
            pytest.skip("needs root to become somebody else")
        user = NOBODY
        os.chown(place, NOBODY, NOBODY)
    if who == "no-kcmp":
        variables["MPY_NO_KCMP"] = "1"
    saved = call(driver, "save", case, "blob", cwd=place, user=user, **variables)
    assert (saved.returncode, saved.stdout, saved.stderr) == (0, "saved\n", "")
    again = call(driver, "restore", case, "blob", cwd=place, user=user, **variables)
    assert (again.returncode, again.stdout, again.stderr) == (0, "restored\n", "")


@pytest.mark.parametrize("case", RESTORED)
def test_restored_by_a_process_that_opens_high(driver: Path, interposed: Path, place: Path, case: str) -> None:
    assert call(driver, "save", case, "blob", cwd=place).returncode == 0
    again = call(interposed, "restore", case, "blob", cwd=place)
    assert (again.returncode, again.stdout, again.stderr) == (0, "restored\n", "")


@pytest.mark.parametrize("how", ["opens", "receives", "accepts"])
@pytest.mark.parametrize("case", ["files", "pipes"])
def test_restored_while_a_thread_of_the_lower_half_opens(
    driver: Path, interposed: Path, place: Path, case: str, how: str
) -> None:
    """What it gets has a low number for a moment, in which no descriptor of the program is put there."""
    assert call(driver, "save", case, "blob", cwd=place).returncode == 0
    for _ in range(30):
        again = call(interposed, "restore", case, "blob", cwd=place, MPY_BUSY=how)
        assert (again.returncode, again.stdout, again.stderr) == (0, "restored\n", "")


def test_sanitized(sanitized: Path, place: Path) -> None:
    for case in RESTORED:
        (place / case).mkdir()
        assert call(sanitized, "save", case, "blob", cwd=place / case).stderr == ""
        again = call(sanitized, "restore", case, "blob", cwd=place / case)
        assert (again.returncode, again.stdout, again.stderr) == (0, "restored\n", "")


def test_standard_streams_are_those_of_the_new_process(driver: Path, place: Path) -> None:
    for mode, word in ("save", "saved"), ("restore", "restored"):
        done = call(driver, mode, "stdio", "blob", cwd=place)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"through ten\n{word}\n", "")
    assert (place / "err.txt").read_text() == "E", "the second run writes where the first was at the checkpoint"


def test_standard_output_to_a_file(driver: Path, place: Path) -> None:
    for mode, word in ("save", "saved"), ("restore", "restored"):
        with (place / mode).open("wb") as output:
            subprocess.run(
                [str(driver), mode, "stdio", "blob"], cwd=place, stdin=subprocess.DEVNULL, stdout=output, check=True
            )
        assert (place / mode).read_text() == f"through ten\n{word}\n"


@pytest.mark.parametrize("kind", ["pipe", "listening"])
def test_what_the_parent_left_open_does_not_stand_in_the_way(driver: Path, place: Path, kind: str) -> None:
    """For example the pipes and the listening socket of mpirun: MPICH's hydra leaves about a dozen of them to the
    ranks."""
    with contextlib.ExitStack() as stack:
        if kind == "pipe":
            reading, writing = os.pipe()
            stack.callback(os.close, reading)
            stack.callback(os.close, writing)
        else:
            writing = stack.enter_context(socket.create_server(("127.0.0.1", 0))).fileno()
        # At the restart descriptor 8 isn't given to it, but one that the program never had is.
        for mode, number in ("save", 8), ("restore", 9):
            subprocess.run(
                [str(driver), mode, "inherited", "blob"], cwd=place, stdin=subprocess.DEVNULL, check=True,
                close_fds=False, preexec_fn=lambda number=number: os.dup2(writing, number),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("tcp", "descriptor 10 is a connected TCP socket to 127.0.0.1:"),
        ("udp", "descriptor 10 is a connected UDP socket to 127.0.0.1:9;"),
        ("inotify", "descriptor 10 is an inotify watch"),
        ("pidfd", "descriptor 10 is a handle of another process"),
        ("netlink", "descriptor 10 is a netlink socket"),
        ("named", "descriptor 10 is a Unix socket with a relative name (sock)"),
        ("large", "descriptor 10 is a deleted file of 67108865 bytes"),
        ("ptmx", "descriptor 10 is a pseudo-terminal"),
        ("pipe_outside", "descriptor 10 is a pipe from another process"),
        ("pair_outside", "descriptor 10 is a Unix socket connected to another process"),
        ("lease", "descriptor 10 holds a lease on "),
        ("thread_file", "descriptor 10 is open on /proc/"),
        ("parents_file", ", which is of a thread or of another process"),
        ("thread_clock", "POSIX timer 0 runs on the CPU clock of a thread"),
        ("async", "descriptor 10 (socket:"),
        ("child", "(sleep 300) is still running"),
        ("nameless_child", "(worker) is still running"),
        ("short_child", "allowed"),
    ],
)
def test_what_cannot_be_saved_is_named(driver: Path, place: Path, case: str, words: str) -> None:
    done = call(driver, "refuse", case, cwd=place)
    assert words in done.stdout and done.stdout.count("\n") == 1
    assert (done.returncode, done.stderr) == (0, "")


def restore_reason(driver: Path, place: Path, case: str) -> str:
    done = call(driver, "restore", case, "blob", cwd=place)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (3, "", 1)
    return done.stdout


def save(driver: Path, place: Path, case: str) -> None:
    assert call(driver, "save", case, "blob", cwd=place).returncode == 0


def test_missing_file_at_restart(driver: Path, place: Path) -> None:
    save(driver, place, "grown")
    (place / "out.txt").unlink()
    assert (
        f"{place}/out.txt, which the program had open as descriptor 10 at the checkpoint, cannot be found"
        in restore_reason(driver, place, "grown")
    )


def test_shorter_file_at_restart(driver: Path, place: Path) -> None:
    save(driver, place, "grown")
    os.truncate(place / "out.txt", 3)
    assert "is shorter (3 bytes) than at the checkpoint (7)" in restore_reason(driver, place, "grown")


def test_nothing_is_cut_when_the_restart_fails(driver: Path, place: Path) -> None:
    save(driver, place, "files")
    (place / "sync.txt").unlink()
    with (place / "log.txt").open("a") as log:
        log.write("more")
    before = (place / "log.txt").read_bytes()
    restore_reason(driver, place, "files")
    assert (place / "log.txt").read_bytes() == before


def test_lock_held_by_another_process_at_restart(driver: Path, place: Path) -> None:
    save(driver, place, "locks")
    with (place / "a.lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "a.lock can't be taken again: another process holds it" in restore_reason(driver, place, "locks")


def test_missing_working_directory_at_restart(driver: Path, place: Path) -> None:
    save(driver, place, "process")
    (place / "deeper").rmdir()
    assert "working directory" in restore_reason(driver, place, "process")


@pytest.mark.parametrize("case", ["files", "deleted", "locks", "pipes", "pairs", "events", "process"])
def test_damaged_records_fail_cleanly(sanitized: Path, place: Path, case: str) -> None:
    assert call(sanitized, "save", case, "blob", cwd=place).returncode == 0
    done = call(sanitized, "corrupt", case, "blob", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 200


def test_cpu_features(driver: Path, place: Path) -> None:
    done = call(driver, "cpu", cwd=place)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_resource_tracker_is_named(driver: Path, root: Path, place: Path, state_sources: list[Path]) -> None:
    """A helper that never ends is refused at once, not only after the grace time."""
    source = place / "tracker.c"
    source.write_text(
        '#include "process/children.h"\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n'
        "static bool no(void) {\n    return false;\n}\n"
        'int main(void) {\n    char err[256] = "";\n    if (fork() == 0) {\n'
        '        execlp("python3", "python3", "-c", "import time; time.sleep(3)  # '
        'multiprocessing.resource_tracker", (char *)0);\n        _exit(1);\n    }\n'
        "    sleep(1);\n    int grace_ms = 60000, rc = mpy_children_wait(MPY_CHILDREN_ALL, &grace_ms, no, err, "
        'sizeof err);\n    printf("%d %s\\n", rc, err);\n    return 0;\n}\n'
    )
    program = build(place / "tracker", [source, *state_sources])
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=20)
    assert done.stdout.startswith("-1 child process ") and "resource tracker" in done.stdout


def test_what_libraries_open_lands_high(binaries: Path, root: Path, state_sources: list[Path]) -> None:
    library = build(binaries / "libguard.so", [HERE / "guard_library.c"], "-shared", "-fPIC", "-fvisibility=default")
    sources = [HERE / "guard_driver.c", *state_sources, root / "lowerhalf" / "isolate" / "interpose.c"]
    program = build(binaries / "guard_driver", sources, "-rdynamic", "-ldl")
    done = subprocess.run([str(program), str(library)], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_ranks_make_shared_memory_at_the_same_time(
    binaries: Path, root: Path, state_sources: list[Path], tmp_path: Path
) -> None:
    """One that needs less must not cut off what another has just added."""
    driver = build(binaries / "grow_driver", [HERE / "grow_driver.c", *state_sources])
    done = call(driver, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0\n"), done


def test_what_was_taken_out_is_put_back(binaries: Path, root: Path, state_sources: list[Path], tmp_path: Path) -> None:
    """Saving a terminal or a pipe fails because memory has run out."""
    wrapped = ["-Wl,--wrap=realloc", "-Wl,--wrap=tee", "-lutil"]
    driver = build(binaries / "put_back_driver", [HERE / "put_back_driver.c", *state_sources], *wrapped)
    done = call(driver, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "both\nboth\n", "")
