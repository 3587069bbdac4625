"""Every function (programs/surface) under the MPIs that do not have MPICH's library in this environment: Open MPI,
Intel MPI (its own library and that of the standard ABI), MPICH's library of the standard ABI."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import Programs
from jobs import BIN, Job, run
from launchers import INTEL_MPI, INTEL_STANDARD, MPICH, OTHERS, STANDARD, Launcher, job_under
from restarts import check, restart
from surface import SURFACE, Group, groups, name_of_group, patience, program_of

SECONDS = {"hang": 10}  # after which a program hangs; ranks that hang take processors. Others have longer
TIMED_OUT = 124  # exit code of timeout(1)
DIFFERENT = {  # left out: Open MPI cannot do a part, natively either; or they are about MPICH's own behaviour
    "surface_comm": "4.1 has no MPI_Comm_idup_with_info; other error classes",
    "surface_datatypes": "no counts above 2**31",
    "surface_dynamic": "what it spawns runs natively, and is a program of MPICH",
    "surface_intercomm": "a blocking constructor beside a pending MPI_Comm_idup hangs",
    "surface_io": "no data representations of the program",
    "surface_tools": "no events; other numbers of variables; MPI_T_finalize after MPI_Finalize crashes, natively, too",
    "surface_wrong_calls": "wrong arguments that it does not look at",
}
# Of surface_rma: shared windows have page-sized parts, two atomic operations at once crash 4.1 (natively, too), and
# wrong calls are on a window that 4.1 can't create.
PARTS = {
    "surface_rma": ["create", "allocate", "alone", "dynamic", "locks", "pscw", "requests", "mixed", "belongings"],
}
# Intel MPI's two libraries have the same faults. States that fail there without manapy, too: programs, and how.
INTELS = (INTEL_MPI, INTEL_STANDARD)
INTELS_FAULTS = {
    "surface_datatypes": {"shapes": "wrong", "wrong": "wrong"},  # packing in the external form; error classes
    "surface_dynamic": {"children": "crash", "ports": "crash", "inside": "crash", "join": "crash"},
    "surface_errors": {"reductions": "hang"},
    "surface_io": {"errors": "wrong"},
    "surface_persistent_collectives": {"every_function": "hang"},
    "surface_query": {"infos": "wrong", "statuses": "wrong"},  # wrong handles; sizes in elements
    "surface_rma": {"create": "crash", "atomics": "wrong"},
    "surface_tools": {"control": "wrong"},
    "surface_topology": {"cartesian": "wrong"},  # without dimensions
}
# Intel MPI chooses its algorithms for the processor. With some of them a jump out of a reduction does no harm.
ON_SOME_PROCESSORS = ("reductions",)
OVER_TCP = ("surface_dynamic",)  # over shared memory alone its states crash on Intel MPI (above), over TCP they don't
TCP = {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp"}
# These fail without manapy, too: the first one crashes there; the others need Intel's header (package impi-devel).
QUESTIONS = {"surface_query": ["questions"]}  # MPI_Abi_set_fortran_info is accepted
FURTHER_FAULTS = {
    INTEL_MPI: QUESTIONS,
    INTEL_STANDARD: {
        **QUESTIONS,
        "surface_io": ["views", "properties"],  # no external form; a crash after MPI_File_get_group
        "surface_tools": ["performance"],  # a crash in MPI_T_pvar_start with MPI_T_PVAR_ALL_HANDLES
    },
}
# What the back for the standard ABI has beyond the one for Open MPI: constants, handles, statuses, operations with
# large counts. Not here: names of ports are too long (surface_dynamic), a wrong info is a wrong argument
# (surface_query), MPI_T_PVAR_ALL_HANDLES crashes natively (surface_tools). The others pass, too.
ON_STANDARD = (
    "surface_collectives", "surface_comm", "surface_errors", "surface_io", "surface_nbc", "surface_op", "surface_p2p",
    "surface_rma", "surface_topology",
)  # fmt: skip


def states_of(source: Path) -> list[str]:
    """The names of the states in a program of the frame checkpointed.h."""
    return re.findall(r"\bSTATE\((\w+)\)", source.read_text())


def outcome(done: subprocess.CompletedProcess[str]) -> str:
    """What became of such a program, in a word."""
    if done.returncode == TIMED_OUT:
        return "hang"
    if "KILLED BY SIGNAL" in done.stdout + done.stderr:
        return "crash"
    return "wrong" if "FAILED" in done.stdout else f"exit code {done.returncode}"


def jobs(launcher: Launcher) -> list[tuple[Group, list[str]]]:
    """The programs of each job, and their states (none: all). A program of which only some states run is alone."""
    chosen = [path for path in SURFACE if launcher.abi != "Open MPI" or path.stem not in DIFFERENT]
    if launcher == STANDARD:
        chosen = [path for path in chosen if path.stem in ON_STANDARD]
    partly = {}
    for path in chosen:
        if launcher.abi == "Open MPI" and path.stem in PARTS:
            partly[path] = PARTS[path.stem]
        faults = [*INTELS_FAULTS.get(path.stem, [])] if launcher in INTELS and path.stem not in OVER_TCP else []
        faults += FURTHER_FAULTS.get(launcher, {}).get(path.stem, [])
        if faults:
            partly[path] = [state for state in states_of(path) if state not in faults]
    whole = [path for path in chosen if path not in partly]
    return [*((group, []) for group in groups(whole)), *(((path,), states) for path, states in partly.items())]


def when(launcher: Launcher, group: Group) -> list[pytest.MarkDecorator]:
    """Programs that run alone on Intel MPI's library of the standard ABI, which manapy advises against: at night."""
    return [pytest.mark.long] if launcher == INTEL_STANDARD and len(group) == 1 else []


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("launcher", "group", "states"),
    [
        pytest.param(launcher, group, states, id=f"{launcher.name}-{name_of_group(group)}", marks=when(launcher, group))
        for launcher in (*OTHERS, INTEL_STANDARD)
        for group, states in jobs(launcher)
    ],
)
def test_surface(
    make_job: Callable[..., Job], c_program: Programs, launcher: Launcher, group: Group, states: list[str]
) -> None:
    """Every function (test_surface.py): objects are the same after two restarts, the first one under MPICH."""
    job = job_under(launcher, make_job, 4)
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    if launcher in INTELS and group[0].stem in OVER_TCP:
        job.env.update(TCP)
    use(launcher, job)
    job.start(program_of(c_program, group), *states)
    job.wait_for(lambda text: text.count("ready") == 4)
    for there in (MPICH, launcher):
        job.checkpoint()
        use(there, job)
        restart(job)
    check(job, go, 4, patience(group))


def use(launcher: Launcher, job: Job) -> None:
    """Start the job next under this launcher. What the program spawns runs natively and looks for its library."""
    library = INTEL_MPI.library if launcher in INTELS else MPICH.library
    job.mpirun, job.env["LD_LIBRARY_PATH"] = launcher.mpirun, str(library.parent)


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "state", "how"),
    [(program, state, how) for program, states in INTELS_FAULTS.items() for state, how in states.items()],
)
def test_faults_of_intel_mpi(tmp_path: Path, c_program: Programs, program: str, state: str, how: str) -> None:
    """They are the same without manapy and with it. If Intel MPI no longer has one, its line has to go."""
    INTEL_MPI.skip_if_missing()
    go = tmp_path / "go"
    go.touch()
    source = next(path for path in SURFACE if path.stem == program)
    environment = {**os.environ, **INTEL_MPI.native, "STATE_GO": str(go), "STATE_NATIVE": "1"}
    start = ["timeout", str(SECONDS.get(how, 30)), *INTEL_MPI.mpirun, "-n", "4"]
    launch = [BIN / "manapy-launch", "--dir", tmp_path / "job"]
    came = [outcome(run([*start, *layer, c_program(source), state], env=environment)) for layer in ([], launch)]
    if state in ON_SOME_PROCESSORS and came[0] == "exit code 0":
        how = "exit code 0"
    assert came == [how, how]
