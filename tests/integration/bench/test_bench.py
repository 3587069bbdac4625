"""`manapy bench` runs and prints every row. Its figures are not checked, because a machine for tests is never idle."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from jobs import BIN, manapy
from manapy.bench import FCDP_JOBS, JOBS, LOOP_JOBS, TRACE_JOBS
from manapy.bench.calls import imb
from manapy.bench.trace import overhead
from manapy.core import installation
from manapy.trace.capture import format as trace_format

SIZES = ("4 B", "1 KB", "1 MB")
PATTERNS = ("Bcast", "Reduce", "Allreduce", "Gather", "Scatter", "Allgather", "Alltoall")
ROWS = {
    "calls": [
        "Comm_rank",
        "Barrier, one rank",
        "Ibcast+Wait, one rank, 4 B",
        "Send to PROC_NULL, 4 B",
        "Isend+Irecv+Waitall, self, 4 B",
        "recording: Barrier, one rank",
    ],
    "p2p": [f"{call}, {size}" for call in ("Send/Recv, one way", "Sendrecv", "Isend+Irecv+Waitall") for size in SIZES],
    "rate": [f"a message of a window of 64, {size}" for size in ("4 B", "1 KB", "64 KB")]
    + ["Put+flush, 1 KB (min)", "Get+flush, 4 B", "Allreduce, 4 B", "Barrier"],
    "blocking": ["Barrier"] + [f"{call}, {size}" for call in PATTERNS for size in SIZES],
    "nonblocking": ["Ibarrier"] + [f"I{call.lower()}, {size}" for call in PATTERNS for size in SIZES],
    "overlap": ["Ibarrier"] + [f"I{call.lower()}, {size}" for call in PATTERNS for size in SIZES],
    "python": ["Barrier", "Ibarrier", "Sendrecv, 4 B", "Bcast, 4 B", "Ialltoall, 1 MB"],
    "apps": [
        f"{app}, {what}"
        for app in ("bcast", "transpose", "cg", "particles", "stencil")
        for what in ("run time", "collectives a second")
    ],
    "scaling": ["transpose, 1 rank", "transpose, 2 ranks"],
    "startup": ["/bin/true, 2 ranks"],
    "small": ["checkpoint, command to return", "restart (mpirun manapy-restart)", "restart (manapy restart)"],
    "trees": [
        "four processes a rank: checkpoint, command to return",
        "four processes a rank: the job stands",
    ],
    "large": [
        "2 × 2 MB: checkpoint : dd, both files at once",
        "2 × 2 MB: checkpoint beside the program: it stands",
        "2 × 2 MB: checkpoint beside the program: until published",
        "2 × 2 MB: image size : data",
        "2 × 2 MB: restart, images in the page cache",
    ],
    "images": [
        "standing: stands",
        "standing: until published",
        "standing, incremental: written",
        "standing, compressed: stands",
        "beside: written",
        "beside: the same with --lazy",
        "beside: restart to the first step",
        "beside: run time, a checkpoint every 10s",
    ],
    "messages": ["world, 16 ranks: control messages a rank", "ring, 64 ranks: rounds"],
    "scale": [
        "64 ranks, 4 nodes: request to writing, last image to RESUME",
        "64 ranks, 4 nodes: memory of the coordinator",
        "64 ranks, 4 nodes: manapy status",
    ],
    "verbs": [
        "post_send",
        "post_recv",
        "poll_cq, nothing there",
        "poll_cq, a send",
        "ibv_wr_rdma_write, start to complete",
        "ibv_start_poll, a send",
    ],
    "sizes": ["2 × 1 MB: checkpoint", "2 × 2 MB: restart"],
}
TWO_PHASE = ("blocking", "apps", "scaling", "sizes", "messages")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_quick_run_has_every_row(tmp_path: Path) -> None:
    only = [
        name
        for name, job in JOBS.items()
        if name not in ("imb", "dmtcp")
        and name not in TRACE_JOBS + FCDP_JOBS + LOOP_JOBS
        and not job.guest
        and (name != "verbs" or installation.library("libmanapy_shift.so"))
    ]
    done = manapy(
        "bench",
        "--quick",
        "--timeout",  # other tests run at the same time
        "5m",
        "--only",
        ",".join(only),
        "--file-system",
        tmp_path,
        "--out",
        tmp_path / "out",
        timeout=880,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "out" / "result.json").read_text())
    rows = {(row["job"], row["name"].strip()): row for row in record["rows"]}
    assert [(job, name) for job in only for name in ROWS[job] if (job, name) not in rows] == []
    for (job, name), row in rows.items():
        assert row["failures"] == {}, name
        ours = "shift" if job == "verbs" else "cc"
        assert len(row["samples"][ours]) == 1 and None not in row["samples"][ours], name
        if "native" in row["samples"]:
            assert row["difference"][ours] is not None, name
        if job in TWO_PHASE and not name.startswith("cg"):
            assert "2pc" in row["samples"], name
        if job == "rate":
            assert len(row["samples"]["untraced"]) == 1, name
        assert name in done.stdout
    assert {"cpu", "kernel", "file system", "mpi", "manapy"} <= record["machine"].keys()
    pictures = [
        "figure5-overhead",
        "figure6-overlap",
        "figure7-run-time",
        "figure8-scaling",
        "figure9-images",
        "images",
        "messages",
        "scale",
        *(["figure9-verbs"] if "verbs" in only else []),
    ]
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.png")) == sorted(pictures)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]  # it cleans up


def test_methods_of_diagnosis(tmp_path: Path) -> None:
    """Its jobs are tested one by one in tests/unit/bench/test_diagnosis.py."""
    # it needs none
    done = manapy(
        "bench",
        "trace",
        "--quick",
        "--only",
        "hangs",
        "--out",
        tmp_path / "out",
        timeout=290,
        cwd=tmp_path,
        env={"CC": "/no/such/compiler"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "out" / "result.json").read_text())["rows"]}
    assert rows["F1"]["samples"]["manapy"] == [100.0] and rows["F1"]["samples"]["MegaScale"] == [0.0]
    assert "JIT" in done.stdout and (tmp_path / "out" / "figure7-f1.png").exists()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="emulated nodes need root and iproute2")
def test_jobs_with_faults(tmp_path: Path) -> None:
    """A job is kept alive on emulated nodes while faults happen, and its result is right. Healthy jobs are left
    alone."""
    done = manapy("bench", "loop", "--quick", "--out", tmp_path / "out", timeout=290, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "out" / "result.json").read_text())["rows"]}
    ways = ("manapy", "script with checkpoints", "script")
    goodput = rows["solver: goodput"]["samples"]
    assert all(0 <= goodput[way][0] <= 110 for way in ways) and goodput["manapy"][0] > 0
    assert all(value == [100.0] for value in rows["solver: result equal bit for bit"]["samples"].values())
    assert rows["solver: faults"]["samples"]["manapy"][0] > 0
    for kind in ("solver", "training", "io", "imbalanced", "bursty", "oversubscribed"):
        assert rows[f"{kind}: ended because of a verdict"]["samples"]["manapy"] == [0.0]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_real_training_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of recording and watching, the case studies, false alarms. Every row is there, and values that don't
    depend on the machine's load are right."""
    traces = tmp_path / "traces"
    traces.mkdir()
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(traces))
    done = manapy(
        "bench",
        "--quick",
        "--timeout",  # other tests run at the same time
        "5m",
        "--only",
        "overhead,watching,cases,healthy",
        "--out",
        tmp_path / "out",
        timeout=580,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        (row["job"], row["name"]): row["samples"]
        for row in json.loads((tmp_path / "out" / "result.json").read_text())["rows"]
    }
    for name in (*overhead.NAMES.values(), "what records cost under manapy-launch"):
        assert set(rows["overhead", f"pp=2,micro=8: {name}"]) == {"native", "recorded"}, name
    assert rows["overhead", "pp=2,micro=8: MPI calls of a rank in an iteration"]["recorded"] == [25.0]
    for tool in ("manapy why --watch", "manapy trace record"):
        assert max(rows["watching", f"{tool}, a training loop: share of one processor"]["manapy"]) > 0, tool
        assert min(rows["watching", f"{tool}, a training loop: memory"]["manapy"]) > 1, tool
    for what in ("rank", "place", "cause"):
        assert rows["cases", f"case 1, a Recv that isn't called: {what} right"]["manapy"] == [100.0], (
            tmp_path / "out" / "cases.txt"
        ).read_text()
    assert rows["cases", "case 2, a node with too few processors: from the fault to the verdict"]["manapy"][0] > 0
    assert rows["healthy", "iterations"]["manapy"][0] > 0 and ("healthy", "said: hung") in rows
    assert {"figure9-recorders.png", "figure11-watching.png", "cases.txt"} <= set(os.listdir(tmp_path / "out"))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out", traces]
    assert not list(trace_format.root().iterdir()), "records are left"


@pytest.mark.slow
def test_intel_benchmarks(tmp_path: Path) -> None:
    try:
        imb.programs(None, tmp_path)
    except imb.LeftOutError as error:
        pytest.skip(str(error))
    done = manapy("bench", "--quick", "--only", "imb", "--json", timeout=290, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {row["name"] for row in json.loads(done.stdout)["rows"]}
    assert {f"{program} {name}" for program, chosen in imb.PROGRAMS.items() for name in chosen} <= {
        name.partition(",")[0] for name in names
    }


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--only", "speed"], 2, "no measurement 'speed' (there are calls, p2p"),
        (["speed"], 2, "invalid choice: 'speed' (choose from 'shift', 'trace', 'fcdp', 'scale', 'images', 'loop')"),
        (["shift", "--storm", "0"], 2, "not a number of at least 1: '0'"),
        (["--pairs", "0"], 2, "not a number of at least 1: '0'"),
        (["--timeout", "soon"], 2, "not a time such as 30s"),
        (["--file-system", "nowhere"], 1, "nowhere: no such file or directory"),
        (["--only", "imb", "--imb", "."], 1, "imb is left out: no IMB-MPI1 in "),
        (["--only", "imb", "--imb", "text"], 1, "text: File is not a zip file"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    (tmp_path / "text").write_text("no wheel")
    done = manapy("bench", *arguments, cwd=tmp_path)
    assert done.returncode == code and says in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_no_compiler(tmp_path: Path) -> None:
    done = manapy("bench", "--only", "calls", cwd=tmp_path, env={"CC": "/no/such/compiler"})
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == "manapy: manapy bench needs a C compiler: '/no/such/compiler' is not there (apt install gcc libc6-dev, or "
        "set CC)"
    )
    assert list(tmp_path.iterdir()) == []


def test_no_header(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "libmpi.so.12"
    library.parent.mkdir()
    library.write_bytes((BIN.parent / "lib" / "libmpi.so.12").read_bytes())
    done = manapy("bench", "--only", "calls", cwd=tmp_path, env={"MANAPY_LIBMPI": str(library)})
    assert done.returncode == 1 and f"needs the mpi.h of {library}" in done.stderr, done.stderr


def test_a_program_that_hangs_is_a_failed_row(tmp_path: Path) -> None:
    done = manapy("bench", "--quick", "--only", "calls", "--timeout", "10ms", "--out", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert "calls: native: did not end within" in done.stderr and "Traceback" not in done.stderr
    row = json.loads((tmp_path / "out" / "result.json").read_text())["rows"][0]
    assert set(row["failures"]) == {"native", "cc"} and row["samples"] == {}
    assert "failed" in done.stdout and os.listdir(tmp_path) == ["out"]
