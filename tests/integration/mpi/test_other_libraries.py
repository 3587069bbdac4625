"""MPI libraries besides manapy's: its other names and copies, and foreign libraries, which no program may load."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import SHARED, build
from jobs import PROGRAMS, Job
from restarts import check, restart

TWICE = """
import ctypes, os, sys, time
from mpi4py import MPI
for name in ("libmpi.so", "libmpi.so.12", "libmpich.so.12", os.environ["MPI4PY_LIBMPI"]):
    library = ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    up = ctypes.c_int()
    assert library.MPI_Initialized(ctypes.byref(up)) == 0 and up.value, name
dlmopen, dlsym = (getattr(ctypes.CDLL(None), name) for name in ("dlmopen", "dlsym"))
dlmopen.restype = dlsym.restype = ctypes.c_void_p
copy = dlmopen(ctypes.c_long(-1), b"libmpi.so.12", 2)
assert copy, "LM_ID_NEWLM"
print("ready", flush=True)
while not MPI.COMM_WORLD.allreduce(os.path.exists(sys.argv[1]), MPI.LAND):
    time.sleep(0.01)
print("ok", flush=True)
MPI.COMM_WORLD.Barrier()
ctypes.CFUNCTYPE(ctypes.c_int)(dlsym(ctypes.c_void_p(copy), b"MPI_Finalize"))()
"""


def test_copies_hand_on_to_the_first(make_job: Callable[..., Job], c_program: Callable[[Path], Path]) -> None:
    """Two more files of the library: all three act as one MPI, also after restarts."""
    job = make_job(2)
    copies = []
    for name in ("one", "two"):
        folder = job.where / name / "manapy" / "upper"  # as in another environment
        folder.mkdir(parents=True)
        copies.append(shutil.copy(Path(sys.prefix) / "lib/manapy/upper/libmpi.so.12", folder))
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(c_program(PROGRAMS / "mpi/two_copies.c"), *copies)
    job.wait_for(lambda text: text.count("ready") == 2)
    job.checkpoint()  # and goes on
    for _ in range(2):
        job.checkpoint()
        restart(job)
    check(job, go, 2)


def test_a_copy_in_a_name_space_of_its_own(make_job: Callable[..., Job]) -> None:
    """Other names are the same library. A copy loaded by dlmopen doesn't prevent a checkpoint; calling it gives a
    message."""
    job = make_job(2)
    go = job.where / "go"
    job.start(sys.executable, "-c", TWICE, go)
    job.wait_for(lambda text: text.count("ready") == 2)
    job.checkpoint()
    job.checkpoint()
    job.kill()
    job.restart()
    go.touch()
    assert job.wait() != 0
    assert "ok" in job.output() and "has loaded the MPI library twice (the second time /" in job.output()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("libmpi.so.20", "whose ABI this version of manapy does not support"),
        ("libmpi.so.40", "takes the place of Open MPI's"),
        ("libmpi_mpifh.so.40", "takes the place of Open MPI's"),
        ("libmpi_abi.so.0", "a draft of the standard ABI"),
        ("libmpi_abi.so.1", "takes the place of the one of the MPI-5 standard ABI"),
        ("libmpifort_abi.so.1", "Intel MPI's Fortran for the standard ABI"),
        ("libmpi.so.12", "by its path"),
        ("libmpich.so.12.2", "by its path"),
    ],
)
def test_libraries_of_others_are_refused(make_job: Callable[..., Job], tmp_path: Path, name: str, words: str) -> None:
    """Both when the program is loaded with it and when it loads it later."""
    text = "int main(void) { return 0; }\n"
    library = build(tmp_path / name, text, *SHARED, f"-Wl,-soname,{name}")
    program = build(
        tmp_path / "program", text, "-Wl,--no-as-needed", library, f"-Wl,-rpath,{tmp_path},--disable-new-dtags"
    )
    for command in (
        [program],
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(library)!r}); print('loaded')"],
    ):
        job = make_job(2).start(*command)
        assert job.wait() != 0
        said = [line for line in job.output().splitlines() if "loads the MPI library" in line]
        assert said and all(str(library) in line and words in line for line in said), job.output()
        assert "loaded" not in job.output()
