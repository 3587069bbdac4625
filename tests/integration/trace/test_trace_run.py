"""`manapy trace run`: programs of four MPI libraries, whose records are compared call by call; and programs without
records."""

from __future__ import annotations

import html
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from compiling import SHARED, build
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy, oks

from manapy.trace.capture.format import RECORD
from manapy.trace.model import windows
from manapy.trace.model.events import ANY, NO_PEER, PROC_NULL, STARTS, Flag, Op

RANKS = 4
DEBIAN = Path("/usr/lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class Stack:
    """An MPI library, and how programs for it are compiled and started.

    env: the environment of the job.
    mpi4py: the additional environment of mpi4py.
    version: the start of the library's version string.
    """

    mpirun: Path
    compiler: tuple[str, ...]
    env: dict[str, str]
    mpi4py: dict[str, str]
    version: str = "MPICH Version:"


STACKS = {
    "mpich 5": Stack(
        BIN / "mpirun",
        ("gcc", f"-I{sys.prefix}/include", f"{sys.prefix}/lib/libmpi.so.12", "-Wl,--allow-shlib-undefined"),
        {"LD_LIBRARY_PATH": f"{sys.prefix}/lib"},
        {},
    ),
    "debian mpich": Stack(
        Path("/usr/bin/mpirun.mpich"), ("mpicc.mpich",), {}, {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": "lib"}
    ),
    "debian open mpi": Stack(
        Path("/usr/bin/mpirun.openmpi"),
        ("mpicc.openmpi",),
        {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            # Windows in shared memory of version 4.1.4 fail in about one of five starts here, recorded or not: with
            # errno 2, or with errno 14 when they read the other process's memory.
            "OMPI_MCA_osc": "^sm",
            "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        },
        {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": f"{DEBIAN}/libmpi.so.40"},
        "Open MPI v",
    ),
}


# Intel MPI from PyPI has no compilers. Programs for it are built for MPICH's binary interface.
INTEL = "impi-rt==2021.18.1"


@pytest.fixture(scope="session")
def intel(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """Install Intel MPI into its own folder, because its files have the same names as MPICH's."""
    where = tmp_path_factory.mktemp("intel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--ignore-installed",
        "--prefix",
        where,
        INTEL,
    ]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip can't install {INTEL}: {done.stderr.strip()}")
    library = {"LD_LIBRARY_PATH": str(where / "lib")}
    env = {
        **library,
        "I_MPI_ROOT": str(where),
        "FI_PROVIDER_PATH": str(where / "lib" / "libfabric"),
        "I_MPI_FABRICS": "shm",
    }
    mpi4py = {**library, "MPI4PY_MPIABI": "mpich", "MPI4PY_LIBMPI": str(where / "lib" / "libmpi.so.12")}
    return Stack(where / "bin" / "mpirun", STACKS["mpich 5"].compiler, env, mpi4py, "Intel(R) MPI Library")


@pytest.fixture(params=[*STACKS, "intel mpi"])
def stack(request: pytest.FixtureRequest) -> Stack:
    found = STACKS[request.param] if request.param in STACKS else request.getfixturevalue("intel")
    if not found.mpirun.exists() or shutil.which(found.compiler[0]) is None:
        pytest.skip(
            f"{found.mpirun} and {found.compiler[0]} are needed (apt install mpich libmpich-dev openmpi-bin "
            f"libopenmpi-dev)"
        )
    return found


def compiled(where: Path, stack: Stack) -> Path:
    compiler, *options = stack.compiler
    return build(where / "recorded", PROGRAMS / "trace/recorded.c", "-O1", "-g", "-w", *options, compiler=compiler)


def record(
    where: Path, stack: Stack, *program: str | Path, ranks: int = RANKS, **env: str
) -> subprocess.CompletedProcess[str]:
    return manapy(
        "trace",
        "run",
        "--name",
        where / "job",
        "--",
        stack.mpirun,
        "-n",
        str(ranks),
        *program,
        env={**stack.env, **env},
    )


# ---- the files, read without manapy: trace.h


@dataclass(frozen=True)
class Recorded:
    """The file of one rank. comms: (cid, members, first, stride, name)."""

    records: np.ndarray
    comms: list[tuple[int, int, int, int, str]]
    polls: int
    end: int
    rings: int


def read(path: Path) -> Recorded:
    with path.open("rb") as stream:  # the file is sparse and large, so only parts of it are read
        data = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    comms_offset, _, rings_offset, _ = struct.unpack_from("<4Q", data, 32)
    rings, comms, _, end = struct.unpack_from("<4I", data, 96)
    assert rings >= 1
    head, _, polls = struct.unpack_from("<3Q", data, rings_offset)
    table = []
    for i in range(comms):
        cid, _, members, _, first, stride, _, name = struct.unpack_from("<QQIIiiQ24s", data, comms_offset + 64 * i)
        table.append((cid, members, first, stride, name.rstrip(b"\0").decode()))
    return Recorded(np.frombuffer(data, RECORD, head, rings_offset + 4096).copy(), table, polls, end, rings)


def files(trace_root: Path) -> Iterator[Path]:
    return iter(sorted(trace_root.glob("manapy-trace-*/job-*/rank-*.g0.trace")))


def expected(rank: int, size: int) -> list[tuple[object, ...]]:
    """Return the expected records: op, peer, tag, bytes, SEQ or 0, index of the record that made the request or -1, and
    flags."""
    n, p = (rank + 1) % size, (rank - 1) % size
    M, N, P, W = Flag.MORE, Flag.NONBLOCKING, Flag.PERSISTENT, Flag.WILDCARD
    rows: list[tuple[object, ...]] = [
        (Op.INIT, NO_PEER, 0, 0, 1, -1, 0),
        (Op.ALLREDUCE, NO_PEER, 0, 4, 2, -1, 0),
        (Op.RECV, ANY, ANY, 80, 0, 2, N | W),
        (Op.SEND, n, 3, 32, 0, 3, N),
        (Op.BARRIER, NO_PEER, 0, 0, 3, 4, N),
        (Op.WAITALL, p, 3, 32, 0, 2, M | W),
        (Op.WAITALL, n, 3, 32, 0, 3, M),
        (Op.WAITALL, NO_PEER, 0, 0, 0, 4, 0),
        (Op.RECV, p, 4, 4, 0, 8, N),
        (Op.SSEND, PROC_NULL, 4, 0, 0, -1, 0),
        (Op.SEND, n, 4, 4, 0, -1, 0),
        (Op.WAIT, p, 4, 4, 0, 8, 0),
        (Op.SEND, n, 5, 4, 0, -1, M),
        (Op.RECV, p, 5, 4, 0, -1, 0),
        (Op.RECV, p, 6, 4, 0, 14, N),
        (Op.BARRIER, NO_PEER, 0, 0, 4, -1, 0),
        (Op.SEND, n, 6, 4, 0, -1, 0),
        (Op.TEST, p, 6, 4, 0, 14, 0),
        (Op.RECV, p, 7, 4, 0, 18, N),
        (Op.RECV, p, 8, 4, 0, 19, N),
        (Op.SEND, n, 7, 4, 0, -1, 0),
        (Op.WAITANY, p, 7, 4, 0, 18, M),
        (Op.WAITANY, p, 8, 4, 0, 19, Flag.PENDING),
        (Op.CANCEL, p, 8, 4, 0, 19, 0),
        (Op.WAIT, None, None, None, 0, 19, 0),  # the status of a cancelled receive depends on the library
        (Op.SEND, n, 9, 4, 0, 25, N),
        (Op.PROBE, p, 9, 4, 0, -1, 0),
        (Op.MPROBE, p, 9, 4, 0, -1, W),
        (Op.MRECV, p, 9, 4, 0, -1, 0),
        (Op.WAIT, n, 9, 4, 0, 25, 0),
        (Op.SEND, n, 11, 4, 0, 30, P),
        (Op.RECV, p, 11, 4, 0, 31, P),
    ]
    rows += 2 * [
        (Op.START, n, 11, 4, 0, 30, M | Op.SEND << STARTS),
        (Op.START, p, 11, 4, 0, 31, Op.RECV << STARTS),
        (Op.WAITALL, n, 11, 4, 0, 30, M),
        (Op.WAITALL, p, 11, 4, 0, 31, 0),
    ]
    at = len(rows) + 6  # the row of the Idup
    half = (size + 1 - rank % 2) // 2
    epochs = [
        (op, i, 0, 0, turn, -1, M if i < half - 1 else 0)
        for turn in (1, 2)
        for op in (Op.WIN_POST, Op.WIN_START, Op.WIN_COMPLETE, Op.WIN_WAIT)
        for i in range(half)
    ]
    return [
        *rows,
        (Op.REQUEST_FREE, n, 11, 4, 0, 30, 0),
        (Op.REQUEST_FREE, p, 11, 4, 0, 31, 0),
        (Op.COMM_CREATE, NO_PEER, 0, 0, 5, -1, 0),
        (Op.COMM_CREATE, NO_PEER, 0, 0, 1, -1, 0),  # on half
        (Op.BCAST, 0, 0, 4, 1, -1, 0),  # on its duplicate
        (Op.COMM_CREATE, NO_PEER, 0, 0, 6, at - 1, N),
        (Op.WAIT, NO_PEER, 0, 0, 0, at - 1, 0),
        (Op.REDUCE, size - 1, 0, 4, 1, -1, 0),
        (Op.COMM_CREATE, NO_PEER, 0, 0, 2, -1, 0),
        (Op.COMM_CREATE, NO_PEER, 0, 0, 2, -1, 0),
        (Op.WIN_CREATE, NO_PEER, 0, 0, 2, -1, 0),  # on half
        (Op.WIN_FENCE, NO_PEER, 0, 0, 1, -1, 0),
        (Op.WIN_FENCE, NO_PEER, 0, 0, 2, -1, 0),
        (Op.WIN_LOCK, 0, windows.SHARED, 0, 0, -1, 0),
        (Op.WIN_FLUSH, 0, 0, 0, 0, -1, 0),
        (Op.WIN_UNLOCK, 0, 0, 0, 0, -1, 0),
        *epochs,
        (Op.WIN_CREATE, NO_PEER, 0, 0, 3, -1, 0),
        (Op.BARRIER, NO_PEER, 0, 0, 7, -1, 0),
        (Op.FINALIZE, NO_PEER, 0, 0, 8, -1, 0),
    ]


def compare(found: Recorded, rank: int, size: int) -> None:
    wanted = expected(rank, size)
    serials = {int(r["request"]): i for i, r in reversed(list(enumerate(found.records))) if r["request"]}
    for i, (record, row) in enumerate(zip(found.records, wanted, strict=False)):
        link = serials.get(int(record["request"]), -1)
        got = (
            Op(record["op"]),
            int(record["peer"]),
            int(record["tag"]),
            int(record["bytes"]),
            int(record["context"]),
            link,
            int(record["flags"]),
        )
        assert all(w is None or g == w for g, w in zip(got, row, strict=True)), (
            f"rank {rank}, record {i}: {got}, not {row}"
        )
        assert record["exit"] >= record["enter"] > 0
    assert len(found.records) == len(wanted)
    assert found.polls >= 1  # the first MPI_Test
    assert found.end == 1


def test_every_call(stack: Stack, tmp_path: Path, trace_root: Path) -> None:
    done = record(tmp_path, stack, compiled(tmp_path, stack))
    assert done.returncode == 0, done.stderr
    found = [read(path) for path in files(trace_root)]
    assert len(found) == RANKS
    for rank, one in enumerate(found):
        compare(one, rank, RANKS)
    # one identity for all members, different identities for different communicators
    names = [{name: cid for cid, _, _, _, name in one.comms if name} for one in found]
    assert len({one["MPI_COMM_WORLD"] for one in names}) == 1
    assert len({one["MPI_COMM_SELF"] for one in names}) == RANKS
    halves = [one["half of the world"] for one in names]
    assert halves[0] == halves[2] != halves[1] == halves[3]
    # world, selves, halves, duplicates, Idup, windows
    assert len({cid for one in found for cid, *_ in one.comms}) == 1 + RANKS + 2 + 2 + 1 + 2
    split = found[1].comms[2]
    assert split[1:4] == (2, 3, -2)  # ranks 3 and 1: by key


def test_python(stack: Stack, tmp_path: Path, trace_root: Path) -> None:
    """mpi4py loads its MPI library itself, and calls it from several threads. Functions of MPI 4 that a library lacks
    must not be visible to mpi4py."""
    program = (
        "from mpi4py import MPI; import numpy as np, threading\nw = MPI.COMM_WORLD\n"
        "a = np.zeros(100); b = np.zeros(100)\nw.Allreduce(a, b)\n"
        "w.Sendrecv(a[:7], (w.rank + 1) % w.size, 5, b, MPI.ANY_SOURCE, 5)\n"
        "t = threading.Thread(target=MPI.COMM_SELF.Barrier); t.start(); t.join()\n"
        "import manapy.trace; assert manapy.trace.mark(7)\n"
        "print(MPI.Get_library_version())\n"
    )
    env = dict(stack.mpi4py)
    if env.get("LD_LIBRARY_PATH") == "lib":  # mpi4py's wheel asks for MPICH by a name other than Debian's
        (tmp_path / env["LD_LIBRARY_PATH"]).mkdir()
        (tmp_path / env["LD_LIBRARY_PATH"] / "libmpi.so.12").symlink_to(DEBIAN / "libmpich.so.12")
        env["LD_LIBRARY_PATH"] = str(tmp_path / env["LD_LIBRARY_PATH"])
    done = record(tmp_path, stack, sys.executable, "-c", program, ranks=2, **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(stack.version) == 2, done.stdout
    for rank, path in enumerate(files(trace_root)):
        other = 1 - rank
        found = read(path)
        got = [(Op(r["op"]), int(r["peer"]), int(r["tag"]), int(r["bytes"])) for r in found.records]
        assert got == [
            (Op.INIT, NO_PEER, 0, 0),
            (Op.ALLREDUCE, NO_PEER, 0, 800),
            (Op.SEND, other, 5, 56),
            (Op.RECV, other, 5, 56),
            (Op.MARK, NO_PEER, 0, 0),
            (Op.FINALIZE, NO_PEER, 0, 0),
        ]
        assert found.records[4]["context"] == 7
        assert found.rings == 2, "the thread has a ring of its own"


def test_a_call_that_never_returns_is_open(tmp_path: Path, trace_root: Path) -> None:
    stack = STACKS["mpich 5"]
    job = Job(tmp_path, RANKS, env={**stack.env, "MANAPY_TRACE_ROOT": str(trace_root)})
    try:
        job.spawn(
            [
                BIN / "manapy",
                "trace",
                "run",
                "--name",
                tmp_path / "job",
                "--",
                stack.mpirun,
                "-n",
                str(RANKS),
                compiled(tmp_path, stack),
                "hang",
            ]
        )
        job.wait_for("rank 1 stays")
        job.wait_for(
            lambda _: (
                [int(one.records[-1]["op"]) for one in map(read, files(trace_root))]
                == [Op.BARRIER, Op.WIN_CREATE, Op.BARRIER, Op.BARRIER]
            )
        )
        assert [int(read(path).records[-1]["exit"]) == 0 for path in files(trace_root)] == [True, False, True, True]
        kept = tmp_path / "kept"
        done = manapy("trace", "record", tmp_path / "job", "--out", kept, "--for", "300ms")
        assert done.returncode == 0, done.stderr
        for path in files(trace_root):
            assert (read(kept / path.name).records == read(path).records).all()
        done = manapy("trace", "export", kept, "--format", "json", "--out", tmp_path / "kept.json")
        assert done.returncode == 0, done.stderr
        events = json.loads((tmp_path / "kept.json").read_text())["events"]
        assert [(e["rank"], e["op"]) for e in events if e["exit"] is None] == [
            (0, "BARRIER"),
            (2, "BARRIER"),
            (3, "BARRIER"),
        ]
        for recording in (tmp_path / "job", kept):  # live, and saved
            done = manapy("trace", "report", recording, "--out", tmp_path / "page.html")
            assert done.returncode == 0, done.stderr
            page = (tmp_path / "page.html").read_text(encoding="utf-8")
            assert f"<b>{html.escape(done.stdout.splitlines()[0])}</b>" in page
            stuck = page.split("<h2>Calls that have not returned</h2>")[1].split("</table>")[0]
            assert "<td>3 ranks: 0, 2-3</td>" in stuck and stuck.count("<td>MPI_Barrier on ") == 1
    finally:
        job.process.terminate()
        job.process.wait(PATIENCE)


PROFILER = r"""
#include <mpi.h>
#include <stdio.h>
static int barriers;
int MPI_Barrier(MPI_Comm comm) { barriers++; return PMPI_Barrier(comm); }
int MPI_Finalize(void) { printf("%d barriers\n", barriers); fflush(stdout); return PMPI_Finalize(); }
"""


def test_a_profiler_of_the_program(tmp_path: Path, trace_root: Path) -> None:
    """A library between the program and MPI sees the program's calls, and each is recorded once."""
    stack = STACKS["mpich 5"]
    library = build(tmp_path / "libprofiler.so", PROFILER, *SHARED, f"-I{sys.prefix}/include")
    done = record(
        tmp_path,
        stack,
        "env",
        f"LD_PRELOAD={BIN.parent}/lib/manapy/libmanapy_trace.so:{library}",
        compiled(tmp_path, stack),
        ranks=2,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 barriers") == 2
    for rank, path in enumerate(files(trace_root)):
        compare(read(path), rank, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["record", "no-such-job", "--out", "kept"], 1, "no such recording"),
        (["record", "no-such-job", "--out", "kept", "--every", "0s"], 2, "--every"),
        (["record", "no-such-job", "--out", "kept", "--limit", "much"], 2, "not a size"),
        (["record", "--out", "kept", "--", "true"], 2, "nothing may follow"),
        (["export", "no-such-job", "--format", "json"], 1, "no such recording"),
        (["export", "no-such-job", "--format", "vampir"], 2, "invalid choice"),
        (["export", "."], 2, "--format"),
        (["report", "no-such-job"], 1, "no such recording"),
        (["report", "."], 1, "no such recording"),
        (["report", "no-such-job", "--schedule", "tp=two"], 2, "tp=two"),
        ([], 2, "run | record | export"),
    ],
)
def test_wrong_arguments(tmp_path: Path, trace_root: Path, arguments: list[str], code: int, said: str) -> None:
    done = manapy("trace", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ([], 2, "the command is missing"),
        (["no-such-program"], 2, "no-such-program: no such program"),
        (["mpirun", "-n", "2", "manapy-launch", "true"], 2, "manapy-launch records by itself"),
        (["env", "PMI_RANK=0", BIN / "manapy", "trace", "run", "--", "true"], 2, "this process is a rank"),
        (["true"], 1, "nothing was recorded on this host: no process of true"),
        (["sh", "-c", "exit 7"], 7, "nothing was recorded"),
        (["sh", "-c", "kill -9 $$"], 137, "nothing was recorded"),
    ],
)
def test_nothing_to_record(tmp_path: Path, trace_root: Path, command: list[str], code: int, said: str) -> None:
    done = manapy("trace", "run", "--name", tmp_path / "job", "--", *command)
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not list(files(trace_root))


def test_what_an_earlier_run_has_left_is_not_taken_for_this_one(tmp_path: Path, trace_root: Path) -> None:
    """The job isn't called recorded before it is, and files of a job that still runs are not removed."""
    place = ["--name", tmp_path / "job", "--family", "mpich", "--"]
    first = manapy("trace", "run", *place, sys.executable, "-c", "from mpi4py import MPI")
    assert first.returncode == 0 and f"'manapy why {tmp_path / 'job'}' reports" in first.stderr, first.stderr
    assert list(files(trace_root))
    second = manapy("trace", "run", *place, "false")
    assert second.returncode == 1 and "recorded as" not in second.stderr, second.stderr
    assert not list(files(trace_root)) and manapy("why", tmp_path / "job").returncode == 1
    job = Job(tmp_path, 1)
    job.spawn(
        [
            BIN / "manapy",
            "trace",
            "run",
            *place,
            sys.executable,
            "-c",
            "import time; from mpi4py import MPI; time.sleep(1000)",
        ]
    )
    try:
        job.wait_for("recorded as")
        third = manapy("trace", "run", *place, "true")
        assert third.returncode == 2 and "a running job is recorded under this name" in third.stderr
    finally:
        job.end()
    assert list(files(trace_root))


def test_a_static_program(tmp_path: Path, trace_root: Path) -> None:
    program = build(tmp_path / "one", "int main(void) { return 0; }\n", "-static")
    done = manapy("trace", "run", "--", program, cwd=tmp_path)
    assert done.returncode == 1
    assert "statically linked" in done.stderr


@pytest.mark.parametrize("name", ["surface_intercomm", "surface_nbc", "surface_io"])
def test_programs_run_as_without_it(
    name: str, tmp_path: Path, trace_root: Path, c_program: Callable[[Path], Path]
) -> None:
    (tmp_path / "go").touch()
    source = next((PROGRAMS / "surface").rglob(f"{name}.c"))
    done = record(tmp_path, STACKS["mpich 5"], c_program(source), STATE_GO=str(tmp_path / "go"), STATE_NATIVE="1")
    assert done.returncode == 0, done.stderr
    assert oks(done.stdout) == RANKS and "FAILED" not in done.stdout
    assert len(list(files(trace_root))) == RANKS


def test_under_manapy_launch(tmp_path: Path, trace_root: Path) -> None:
    """A preloaded recorder in a program of manapy-launch leaves the recording to manapy-launch."""
    job = Job(
        tmp_path,
        2,
        env={
            "LD_PRELOAD": str(BIN.parent / "lib" / "manapy" / "libmanapy_trace.so"),
            "MANAPY_TRACE_JOB": "preloaded",
            "MANAPY_TRACE_ROOT": str(trace_root),
        },
    )
    job.start(sys.executable, "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print('went well')")
    assert job.finish().count("went well") == 2
    assert not list(trace_root.glob("manapy-trace-*/preloaded/*"))
    assert len(list(files(trace_root))) == 2


def test_a_smaller_job_of_the_same_name_leaves_no_ranks_of_the_larger_one(tmp_path: Path, trace_root: Path) -> None:
    program = compiled(tmp_path, STACKS["mpich 5"])
    for ranks in (3, 2):
        assert record(tmp_path, STACKS["mpich 5"], program, ranks=ranks).returncode == 0
        assert [path.name for path in files(trace_root)] == [f"rank-{rank:05d}.g0.trace" for rank in range(ranks)]


def test_no_room(tmp_path: Path, trace_root: Path) -> None:
    """If there is no room, the program runs without being recorded."""
    stack = STACKS["mpich 5"]
    (trace_root / f"manapy-trace-{os.getuid()}").write_text("in the way")
    done = record(tmp_path, stack, compiled(tmp_path, stack), ranks=2)
    assert done.returncode == 1
    for rank in range(2):
        assert done.stderr.count(f"manapy trace: rank {rank} is not recorded:") == 1
