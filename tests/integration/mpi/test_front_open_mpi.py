"""Programs that are compiled for Open MPI (libmpi.so.40), mostly under MPICH: natively under Open MPI's own mpirun, and
through checkpoints, SIGKILL and restarts, also under another MPI."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import SHARED, Programs, build
from jobs import PROGRAMS, Job, oks, run
from launchers import DEBIANS, ENVIRONMENT, MPICH, OPEN_MPI_4, Launcher
from restarts import through_restart

COMPILER = Path("/usr/bin/mpicc.openmpi")
STRICT = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wno-deprecated-declarations", "-pthread")
SOURCES = [  # those that Open MPI 4.1 can compile
    PROGRAMS / "fronts/front.c",
    PROGRAMS / "surface/messages/surface_collectives.c",
    PROGRAMS / "surface/messages/surface_grequest.c",
    PROGRAMS / "surface/objects/surface_io_requests.c",
]
RANKS = 4
# A COPY relocation puts an object of the library into the program's memory.
KINDS = {"pie": ("-fPIE", "-pie"), "fixed": ("-fno-pie", "-no-pie"), "pic": ("-fPIC", "-pie")}


def compiled(where: Path, source: Path | str, *options: str | Path) -> Path:
    return build(where, source, *STRICT, *options, "-lm", compiler=COMPILER)


@pytest.fixture(scope="module")
def program(program_folder: Path) -> Programs:
    return Programs(program_folder / "openmpi", COMPILER, STRICT, ("-lm",))


def test_native(make_job: Callable[..., Job], program: Programs) -> None:
    """What the states expect is what Open MPI does. (Some states of other programs expect what only MPICH does.)"""
    if not DEBIANS.exists():
        pytest.skip("no Open MPI (apt install openmpi-bin)")
    job = make_job(RANKS, env=dict(ENVIRONMENT))
    (job.where / "go").touch()
    job.env["STATE_GO"] = str(job.where / "go")
    job.spawn([DEBIANS, "--oversubscribe", "-n", str(RANKS), program(SOURCES[0])])
    output = job.finish()
    assert oks(output) == RANKS and "FAILED" not in output, output


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_restart(make_job: Callable[..., Job], program: Programs, source: Path) -> None:
    through_restart(make_job(RANKS), program(source))


@pytest.mark.parametrize("kind", ["fixed", "pic"])
def test_predefined_handles(make_job: Callable[..., Job], tmp_path: Path, kind: str) -> None:
    """In the program's memory at a fixed address, or in the library's."""
    program = compiled(tmp_path / "program", SOURCES[0], *KINDS[kind])
    relocations = run(["readelf", "-rW", program]).stdout
    assert ("R_X86_64_COPY" in relocations) == (kind != "pic")
    through_restart(make_job(RANKS), program)


@pytest.mark.parametrize(
    ("first", "second"), [(OPEN_MPI_4, OPEN_MPI_4), (OPEN_MPI_4, MPICH), (MPICH, OPEN_MPI_4)], ids=lambda m: m.name
)
def test_restart_under_another_mpi(
    make_job: Callable[..., Job], program: Programs, first: Launcher, second: Launcher
) -> None:
    OPEN_MPI_4.skip_if_missing()
    job = make_job(RANKS, mpirun=first.mpirun, env=dict(ENVIRONMENT))
    through_restart(job, program(SOURCES[0]), second)


def test_a_profiling_tool(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """It defines MPI_Barrier and calls PMPI_Barrier (MPI-4 15.2)."""
    library = compiled(tmp_path / "libtool.so", PROGRAMS / "mpi/counting_tool.c", *SHARED)
    program = compiled(tmp_path / "program", PROGRAMS / "mpi/counted_barrier.c")
    for job, counted in ((make_job(2, env={"LD_PRELOAD": str(library)}), 2), (make_job(2), 0)):
        through_restart(job, program)
        assert job.output().count("counted 1") == counted  # after the last restart


def test_a_function_that_is_not_supported(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """One that only Open MPI 5 has."""
    library = Path(sys.prefix) / "lib/manapy/upper/libmpi.so.40"
    text = """
        #include <stddef.h>
        int MPI_Init(int *, char ***), MPIX_Comm_revoke(void *);
        int main(void) { return MPI_Init(NULL, NULL) || MPIX_Comm_revoke(NULL); }"""
    program = build(tmp_path / "program", text, library, "-Wl,--allow-shlib-undefined")
    job = make_job(2).start(program)
    assert job.wait() != 0
    assert "MPIX_Comm_revoke is not supported by this version of manapy" in job.output()


def test_cxx(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """mpicxx links the library of the C++ bindings, also to programs that don't use them."""
    text = """
        #include <mpi.h>
        #include <cstdio>
        int main(int argc, char **argv) {
            int one = 1, sum = 0;
            MPI_Init(&argc, &argv);
            MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            std::printf("sum %d of %d\\n", sum, MPI::COMM_WORLD.Get_size());
            return MPI_Finalize();
        }"""
    source = tmp_path / "program.cpp"
    source.write_text(text)
    program = build(tmp_path / "program", source, "-w", compiler=COMPILER.with_name("mpicxx.openmpi"))
    assert "libmpi_cxx.so.40" in run(["readelf", "-d", program]).stdout
    assert make_job(2).start(program).finish().count("sum 2 of 2") == 2


@pytest.mark.parametrize("first", ["libmpi.so.12", "libmpi.so.40"])
def test_a_program_with_two_mpis(make_job: Callable[..., Job], tmp_path: Path, first: str) -> None:
    libraries = [
        build(tmp_path / name, f"int in_{name.replace('.', '_')};", *SHARED, f"-Wl,-soname,{name}")
        for name in ("libmpi.so.12", "libmpi.so.40")
    ]
    text = '#include <stdio.h>\nint main(void) { return puts("it has started") < 0; }'
    order = sorted(libraries, key=lambda library: library.name != first)
    program = build(tmp_path / "program", text, "-Wl,--no-as-needed", *order)
    job = make_job(2).start(program)
    assert job.wait() != 0
    said = [line for line in job.output().splitlines() if "link everything with one MPI" in line]
    assert said and all(re.search(r"needs libmpi.so.12 .* loads libmpi.so.40", line) for line in said), job.output()
    assert "it has started" not in job.output()


def test_calls_before_init(make_job: Callable[..., Job], tmp_path: Path) -> None:
    text = """
        #include <mpi.h>
        int main(void) {
            int version, subversion, flag;
            MPI_Get_version(&version, &subversion);
            MPI_Initialized(&flag);
            if (version != MPI_VERSION || subversion != MPI_SUBVERSION || flag) return 1;
            return MPI_Barrier(MPI_COMM_WORLD);
        }"""
    job = make_job(1).start(compiled(tmp_path / "program", text))
    assert job.wait() != 0
    assert "(internal_Barrier) before initializing" in job.output()


def test_the_environment_is_not_needed(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """Nothing of Open MPI's is loaded: no variables, no directory of its own."""
    env = {name: "" for name in os.environ if name.startswith("OMPI_")}
    text = """
        #include <mpi.h>
        #include <stdio.h>
        #include <string.h>
        int main(int argc, char **argv) {
            char line[4096];
            MPI_Init(&argc, &argv);
            FILE *maps = fopen("/proc/self/maps", "r");
            while (fgets(line, sizeof line, maps))
                if (strstr(line, "libopen-")) puts(line);
            return MPI_Finalize();
        }"""
    job = make_job(1, env=env).start(compiled(tmp_path / "program", text))
    assert "libopen-" not in job.finish()
