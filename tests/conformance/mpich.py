"""MPICH's own test programs natively, under manapy, and through SIGKILL and a restart, compared program by program.

    python tests/conformance/mpich.py DIR                          all folders of DIR that FOLDERS names
    python tests/conformance/mpich.py DIR --only attr,comm/cmfree  folders, or programs
    python tests/conformance/mpich.py DIR --each 8                 each program on 8 ranks, whatever its list says
    python tests/conformance/mpich.py DIR --open-mpi               those in Fortran, compiled for Open MPI, on Open MPI
    python tests/conformance/mpich.py DIR --results RESULTS        keeps results there; goes on where it was interrupted
    python tests/conformance/mpich.py DIR --standard               programs of the MPI-5 standard ABI

Nothing of the suite is part of manapy: DIR is somebody's copy of MPICH's test/mpi, which is read and never written to.
Exit status 1 if anything differs that exceptions.py doesn't explain. What the suite has and this doesn't run, is told
at the end.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from building import Builder, BuildError
from results import WAYS, Found, Results, complete, report, restartable
from exceptions import KNOWN, KNOWN_OPEN_MPI
from languages import FORTRAN, language_name
from running import Settings, memory_available, native, through_restart, under_manapy
from testlist import LISTS, Case, ListError, cases
from verdict import Outcome, Shown, differs

from manapy.cli.shared.arguments import add_renamed

FOLDERS = (
    "attr,comm,errhan,datatype,topo,group,init,info,pt2pt,coll,rma,io,threads,session,spawn,part,mpi_t,errors,f77,"
    "f90,f08,cxx"
)
NOT_RUN = {  # folders of the suite that have a list
    "bench": "it measures times",
    "ckpoint": "it is for checkpoints by BLCR, which MPICH has no longer",
    "ft": "it is for failed processes (MPIX_Comm_revoke ...), an extension of MPICH that manapy doesn't have",
    "impls": "it is for the inside of MPICH",
    "perf": "it measures times",
}
OTHER_LISTS = {"testlist.gpu": "they need GPUs", "testlist.ccl.in": "they need NCCL or RCCL"}


def asked_for(suite: Path, only: Iterable[str]) -> list[Case]:
    """All cases of folders and programs. Raises ListError."""
    found: dict[str, Case] = {}
    for item in only:
        folder, program = (
            (item, None) if (suite / item).is_dir() else item.rsplit("/", 1) if "/" in item else (item, None)
        )
        of = [case for case in cases(suite, folder) if program in (None, case.program)]
        if not of:
            raise ListError(f"{item}: no such program in the lists of {suite}")
        found.update((case.name, case) for case in of)
    return list(found.values())


def on_each(cases: Iterable[Case], ranks: int) -> list[Case]:
    """The cases on this number of ranks, each one once."""
    found = (dataclasses.replace(case, ranks=ranks) for case in cases)
    return list({case.name: case for case in found}.values())


def chosen(cases: Iterable[Case], ranks: int) -> list[Case]:
    """The cases without those for more ranks and those expected to fail."""
    return [case for case in cases if case.ranks <= ranks and not case.expected_to_fail]


def left_out(suite: Path, cases: Iterable[Case], ranks: int) -> Iterator[str]:
    """Lines on what isn't run, of these cases and of the whole suite."""
    cases = list(cases)
    for why, names in (
        (f"they want more than {ranks} ranks", [case.path for case in cases if case.ranks > ranks]),
        ("the suite expects them to fail", [case.path for case in cases if case.expected_to_fail]),
    ):
        if names:
            yield f"{len(names)} not run, {why}: {', '.join(dict.fromkeys(names))}"
    lists = sorted(file.relative_to(suite) for file in suite.glob("*/**/testlist*"))
    folders = {file.parts[0] for file in lists}
    for folder in sorted(folders - set(FOLDERS.split(",")) - {case.folder.split("/")[0] for case in cases}):
        yield f"{folder} not run, {NOT_RUN.get(folder, 'this tool does not know it')}"
    known = {file.name for file in lists} | set(LISTS)
    for name in sorted(known):
        where = [str(file.parent) for file in lists if file.name == name and str(file.parent) not in NOT_RUN]
        if name not in LISTS and where:
            why = OTHER_LISTS.get(name, "this tool does not know it")
            yield f"{name} of {', '.join(where)} not run, {why}"
        elif name in LISTS[3:] and not where:
            yield f"{name} not run, this copy has none: the suite's autogen.sh makes it"


def run(case: Case, builder: Builder, where: Path, settings: Settings, ways: tuple[str, ...], found: Found) -> Found:
    """Run one case in each way that isn't in `found`. Its directory is removed if nothing differs."""
    try:
        program = builder.program(case)
    except BuildError as error:
        return {"native": Shown(Outcome.NOT_BUILT, 0.0, str(error))}
    if case.memory > memory_available():
        return {"native": Shown(Outcome.SKIPPED, 0.0, f"wants {case.memory} GB of memory")}
    found = dict(found)
    if "native" not in found:
        found["native"] = native(case, program, where / "native", settings)
    if "manapy" in ways and "manapy" not in found:
        found["manapy"] = under_manapy(case, program, where / "manapy", settings)
    if "restart" in ways and "restart" not in found and restartable(case, found):
        found["restart"] = through_restart(case, program, where / "restart", settings, found["manapy"].seconds)
    if not any(differs(found["native"], shown) for shown in found.values()):
        shutil.rmtree(where, ignore_errors=True)
    return found


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, nothing elsewhere. The yielded function is called with the name of each case that is
    done."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line; `way` as a tuple."""
    parser = argparse.ArgumentParser(
        prog="conformance --mpich",
        description="MPICH's test programs natively, under manapy, and through SIGKILL and restart",
    )
    add = parser.add_argument
    add("suite", type=Path, metavar="DIR", help="a copy of MPICH's test/mpi")
    add("--only", metavar="LIST", help=f"folders and programs: attr,comm/dup (default: {FOLDERS})")
    add("--open-mpi", action="store_true", help="only programs in Fortran, compiled for Open MPI, and on Open MPI")
    add("--way", metavar="LIST", default=",".join(WAYS), help=f"of {','.join(WAYS)} (default: all)")
    add("--ranks", type=int, default=16, metavar="N", help="leave out what wants more ranks (default 16)")
    add("--each", type=int, metavar="N", help="run each program on N ranks, not on the number in its list")
    add("--standard", action="store_true", help="programs in C become programs of the MPI-5 standard ABI")
    add("--jobs", type=int, default=1, metavar="N", help="programs at a time (default 1)")
    add(
        "--limit",
        type=float,
        default=180.0,
        metavar="S",
        help="seconds for a native run; 3 times that under manapy (180)",
    )
    add("--seed", type=int, default=1, help="of the moments of checkpoints (default 1)")
    add(
        "--results",
        metavar="DIR",
        type=Path,
        help="keep results in DIR, or go on with those (default: a temporary one, removed if all is equal)",
    )
    add_renamed(parser, "--dir", "--results")
    options = parser.parse_args(argv)
    if options.open_mpi and options.standard:
        parser.error("--open-mpi is for Fortran, --standard for C: choose one of them")
    options.only = options.only or (",".join(FORTRAN) if options.open_mpi else FOLDERS)
    options.way = tuple(options.way.split(","))
    if unknown := set(options.way) - set(WAYS):
        parser.error(f"unknown way {unknown.pop()!r}: choose of {', '.join(WAYS)}")
    if not (options.suite / "util" / "mtest.c").exists():
        parser.error(f"{options.suite} is no copy of MPICH's test/mpi: util/mtest.c is missing")
    return options


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    suite = options.suite.resolve()
    base = options.results.resolve() if options.results else Path(tempfile.mkdtemp(prefix="manapy-conformance-"))
    base.mkdir(parents=True, exist_ok=True)
    try:
        asked = asked_for(suite, options.only.split(","))
        if options.open_mpi:
            asked = [case for case in asked if language_name(case.folder) in FORTRAN]
        if options.each:
            asked = on_each(asked, options.each)
        wanted = chosen(asked, options.ranks)
        builder = Builder(suite, base / "build", options.open_mpi, options.standard)
    except (ListError, BuildError) as error:
        print(f"conformance --mpich: {error}", file=sys.stderr)
        return 2
    results = Results(base / "results.json")
    settings = Settings(suite, options.open_mpi, options.limit, seed=options.seed)
    left = [case for case in wanted if not complete(case, results.found.get(case.name, {}), options.way)]

    def one(number: int, case: Case) -> str:
        where = base / "runs" / f"{number}-{case.program}"
        results.add(case, run(case, builder, where, settings, options.way, results.found.get(case.name, {})))
        return case.name

    with progress(len(left)) as done, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(one, wanted.index(case), case) for case in left]
        try:
            for finished in concurrent.futures.as_completed(running):
                done(finished.result())
        except BaseException:  # Ctrl-C: running cases end, the others wait for the next time
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    text, unexplained = report(wanted, results, KNOWN_OPEN_MPI if options.open_mpi else KNOWN)
    print(text, *left_out(suite, asked, options.ranks), sep="\n")
    if unexplained or options.results:
        print(f"results are in {base}")
    else:
        shutil.rmtree(base)
    return int(unexplained)


if __name__ == "__main__":
    sys.exit(main())
