"""Checks that `manapy why` names the fault of programs that misuse MPI, and accuses no rank of correct programs.

    python tests/conformance/misuse.py DIR                       all programs in DIR, which has the layout of
    MPI-CorrBench's micro-benches
    python tests/conformance/misuse.py DIR --only Deadlock       programs whose path matches

Each C program is compiled. It runs natively and under manapy-launch. Under manapy-launch, `manapy why` is asked while
the job stands still, and after its end. One job runs at a time. A program in a folder `correct` must not get a verdict.
For any other program, the class of its error is the first word of its name (ArgMismatch, MissingCall ...), or else its
folder.

A misuse has one of these results:

    refused             MPI has refused a call and ended the job, with the errors that it also shows natively
    refused otherwise   the same with other errors
    crashed             a rank was killed by its own error
    harmless            the program has ended as if nothing were wrong
    named               it was hung, or ended without MPI_Finalize, and the verdict says which rank and what, as far as
                        the program's name and source show (faults.py)
    wrong               the same, but the verdict says something else
    unchecked           the same, but name and source do not show what it should say
    unnamed             the same, but there was no verdict

The column `why` counts the refused calls and crashes for which the verdict names rank and call. Programs whose result
differs from that of the native run are listed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import paths  # noqa: F401

import faults
from jobs import BIN, Job
from manapy import cli

VERDICTS = ("hung", "late", "slow")
LOOKS = 2  # consecutive looks that must agree
EVERY = 0.3  # seconds between looks
START = 120.0  # seconds until something is recorded
SHOWN = 4000  # characters of a job's output that are kept
OVER = ("refused", "refused otherwise", "crashed")  # the job was ended by an error that MPI or the kernel reports
STOOD = ("named", "wrong", "unchecked", "unnamed")
RIGHT = ("quiet", "accused")
NOT_COMPILED = "not compiled"
TURNS = 3  # largest number of runs of one program
AMISS = ("wrong", "unnamed", "accused")  # results that must not occur
# MPICH: "Abort(604577795) on node 0: Fatal error in internal_Send: Invalid tag, error stack:"; a call before MPI_Init,
# or after MPI_Finalize; an assertion in a call.
REFUSALS = (
    re.compile(r"Fatal error in (?:internal_|P?MPI_)?(\w+): ([^\n]*?)(?:, error stack:?)?\s*$", re.MULTILINE),
    re.compile(r"MPI routine \((?:internal_|P?MPI_)?(\w+)\) (before initializing or after finalizing)"),
    re.compile(r"Abort\(\d+\) on node \d+: ()(Internal error)"),
)
SIGNAL = re.compile(r"KILLED BY SIGNAL: (\d+)|\(signal (\d+)\)")
CRASHES = ("4", "6", "7", "8", "11")


@dataclass(frozen=True)
class Program:
    """One program. kind: the class of its error, or `correct`."""

    path: Path
    name: str
    kind: str


@dataclass(frozen=True)
class Run:
    """How a job ended. code: exit code of mpirun; None: the job stood still and was ended."""

    code: int | None
    output: str = ""

    @property
    def refusals(self) -> frozenset[tuple[str, str]]:
        """The calls that MPI has refused, with the reason."""
        found = (refusal for pattern in REFUSALS for refusal in pattern.findall(self.output))
        return frozenset((call.lower(), why.strip()) for call, why in found)

    @property
    def wordless(self) -> bool:
        """Whether it has failed without a reason in its output."""
        return bool(self.code) and not self.refusals and not self.crashed

    @property
    def crashed(self) -> bool:
        """Whether a rank was killed by a signal that is an error of the rank itself."""
        return bool(self.code) and any(one in CRASHES for found in SIGNAL.findall(self.output) for one in found)


@dataclass(frozen=True)
class Outcome:
    """The result of one program.

    error: output of the compiler, if it failed.
    native, here: the run without and with manapy.
    verdicts: the last ones, as JSON.
    looks: the verdicts and their times, in s since something was recorded; one entry for each change.
    judged: what is wrong with the verdict; empty if it is right, as far as name and source show.
    checked: name and source show what must be named.
    """

    name: str
    kind: str
    error: str = ""
    native: Run = field(default_factory=lambda: Run(None))
    here: Run = field(default_factory=lambda: Run(None))
    state: str = ""
    verdicts: Sequence[dict[str, Any]] = ()
    looks: Sequence[tuple[float, str, str]] = ()
    seconds: float = 0.0
    judged: str = ""
    checked: bool = False

    @property
    def sentence(self) -> str:
        """The sentence of the gravest verdict."""
        return str(self.verdicts[0]["sentence"]) if self.verdicts else self.error

    @property
    def accused(self) -> bool:
        """Whether there is a verdict against any rank."""
        return self.state in VERDICTS

    @property
    def result(self) -> str:
        """One of OVER, STOOD, RIGHT, `harmless`, or NOT_COMPILED."""
        if self.error:
            return NOT_COMPILED
        if self.kind == "correct":
            return "accused" if self.accused else "quiet"
        if self.here.refusals:
            return "refused" if self.alike else "refused otherwise"
        if self.died:
            return "crashed"
        if not self.accused:
            return "harmless" if self.here.code == 0 else "unnamed"
        return "wrong" if self.judged else "named" if self.checked else "unchecked"

    @property
    def alike(self) -> bool:
        """Whether the errors shown here are also shown natively. One rank may end the job before others fail, so some
        may be missing here."""
        return bool(self.here.refusals) and self.here.refusals <= self.native.refusals

    @property
    def died(self) -> bool:
        """Whether a rank was killed by its own error. The job may then stand still, because mpirun doesn't end it
        here."""
        return self.here.crashed or self.native.crashed and any(one["cause"] == "dead process" for one in self.verdicts)

    @property
    def named(self) -> bool:
        """Whether the verdict names rank and cause, as far as they are known."""
        return self.accused and self.checked and not self.judged

    @property
    def otherwise(self) -> str:
        """The difference to the native run, or an empty text."""
        if self.error or self.alike or self.died and self.native.crashed:
            return ""
        here, native = (
            "stood still"
            if one.code is None
            else f"refused {sorted(one.refusals)}"
            if one.refusals
            else "crashed"
            if one.crashed
            else f"ended with {one.code}"
            for one in (self.here, self.native)
        )
        return f"{here}; natively: {native}" if here != native else ""


def programs(folder: Path, only: str | None = None) -> list[Program]:
    """Return all C programs, in order."""
    found = []
    for path in sorted(folder.rglob("*.c")):
        name = str(path.relative_to(folder))
        if only is not None and not re.search(only, name):
            continue
        first = path.stem.split("-")[0]
        kind = (
            "correct"
            if "correct" in path.relative_to(folder).parts
            else first
            if first in faults.CLASSES
            else "/".join(path.relative_to(folder).parts[-3:-1])
        )
        found.append(Program(path, name, kind))
    return found


def run(program: Program, headers: Sequence[Path], where: Path, ranks: int, patience: float, limit: float) -> Outcome:
    """Compile a program, run it natively and under manapy, and ask `manapy why`. headers: folders of the suite that
    have headers. patience: seconds after which a job without a verdict is ended. limit: of a native run, seconds."""
    began = time.monotonic()
    outcome = Outcome(program.name, program.kind)
    command = [BIN / "mpicc", "-O1", "-w", "-fopenmp", *(f"-I{path}" for path in headers), program.path]
    compiled = subprocess.run(
        [*map(str, command), "-o", str(where / "program"), "-lm"], capture_output=True, text=True, check=False
    )
    if compiled.returncode:
        return replace(outcome, error=next((line for line in compiled.stderr.splitlines() if "error" in line), "?"))
    executable = where / "program"
    ways: dict[str, Callable[[Path], dict[str, Any]]] = {
        "native": lambda folder: _natively(folder, executable, ranks, limit),
        "here": lambda folder: _under_manapy(folder, executable, program.kind, ranks, patience),
    }
    for way, start in ways.items():
        for turn in range(TURNS):  # mpirun may end before it has passed on a rank's last output
            (folder := where / f"{way}-{turn}").mkdir()
            found = start(folder)
            if not found[way].wordless:
                break
        outcome = replace(outcome, **found)
    return judge(replace(outcome, seconds=time.monotonic() - began), program, ranks)


def _under_manapy(where: Path, program: Path, kind: str, ranks: int, patience: float) -> dict[str, Any]:
    """Watch the job until there is a verdict or it has ended. Returns fields of an Outcome."""
    # A job that has ended by itself, or because MPI refused a call, must not be cleaned up before it is asked about.
    job = Job(where, ranks, mpirun=[BIN / "mpirun", "-disable-auto-cleanup"])
    job.start(program)
    assert job.process is not None
    try:
        said, looks = _watched(job, kind == "correct", patience)
        code = job.process.poll()
        if code is not None:
            said = asked(job)
    finally:
        job.end()
    return {
        "here": Run(code, job.output()[-SHOWN:]),
        "state": said["state"] if said is not None else "",
        "verdicts": said["verdicts"] if said is not None else (),
        "looks": looks,
    }


def judge(outcome: Outcome, program: Program, ranks: int) -> Outcome:
    """Compare the verdict with the program."""
    fault = faults.of_program(program.path.stem, program.path.read_text(errors="replace"), ranks)
    if fault is None or fault.guilty is None:
        return outcome
    if not outcome.accused:
        return replace(outcome, checked=True, judged="there is no verdict")
    first = outcome.verdicts[0]
    return replace(
        outcome,
        checked=True,
        judged=faults.wrong_with(fault, first["cause"], first["rank"], first["sentence"]),
    )


def _natively(folder: Path, program: Path, ranks: int, limit: float) -> dict[str, Any]:
    """Run the program without manapy. Returns fields of an Outcome."""
    job = Job(folder, ranks).spawn([BIN / "mpirun", "-n", str(ranks), program])
    assert job.process is not None
    code = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = job.process.wait(limit)
    finally:
        job.end()
    return {"native": Run(code, job.output()[-SHOWN:])}


def _watched(job: Job, right: bool, patience: float) -> tuple[dict[str, Any] | None, list[tuple[float, str, str]]]:
    """Watch until the job has ended, LOOKS looks have found the same cause, or `patience` is over. Returns the last
    look, and the verdicts with their times. right: the program is correct, so any verdict ends the watch. For other
    programs only HUNG does, because ranks may still go on."""
    assert job.process is not None
    start = time.monotonic()
    deadline, said, alike = start + START, None, 0
    looks: list[tuple[float, str, str]] = []
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(EVERY)
            return None, looks
        before, said = said, asked(job)
        if said is None:
            continue
        if before is None:
            start = time.monotonic()
            deadline = start + patience
        if not looks or looks[-1][1:] != (said["state"], said["verdicts"][0]["sentence"]):
            looks.append((round(time.monotonic() - start, 1), said["state"], said["verdicts"][0]["sentence"]))
        grave = said["state"] in (VERDICTS if right else ("hung",))
        same = before is not None and before["verdicts"][0]["cause"] == said["verdicts"][0]["cause"]
        alike = (alike + 1 if same else 1) if grave else 0
        if alike >= LOOKS:
            break
    return said, looks


def asked(job: Job) -> dict[str, Any] | None:
    """Run `manapy why --json` in this process. Returns None if nothing is recorded yet."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        cli.main(["why", str(job.dir), "--json"])
    return dict(json.loads(out.getvalue())) if out.getvalue() else None


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return the number of results of each kind, by class."""
    columns = (*OVER, "why", "harmless", *STOOD, *RIGHT, NOT_COMPILED)
    shown = Table("class", "programs", *columns)
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(one.kind, []).append(one)
    ordered = sorted(groups.items(), key=lambda item: (item[0] == "correct", item[0]))
    for kind, group in [*ordered, *([("all", list(outcomes))] if len(groups) > 1 else [])]:
        counts = collections.Counter(one.result for one in group)
        counts["why"] = sum(one.result in OVER and one.named for one in group)
        shown.add_row(kind, str(len(group)), *(str(counts[column] or "") for column in columns))
    return shown


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    """Return totals, and the programs that differ from the native run or have no right verdict."""
    every = [one for one in outcomes if one.result != NOT_COMPILED]
    found = collections.Counter(one.result for one in every)
    over = [one for one in every if one.result in OVER]
    lines = [
        f"misuses that hang: rank and cause named of {found['named']} of {sum(found[one] for one in STOOD)};"
        f" wrong: {found['wrong']}, not checked: {found['unchecked']}, not named: {found['unnamed']}",
        f"misuses that MPI refuses, or that crash: {len(over)}, {found['refused']} of them with the errors that are"
        f" shown natively; rank and call named by `manapy why`: {sum(one.named for one in over)}",
        f"misuses that do no harm here: {found['harmless']}",
        f"correct programs without a verdict: {found['quiet']} of {found['quiet'] + found['accused']}",
    ]
    lines += [f"{one.name}: {one.result}: {one.judged or one.sentence}" for one in every if one.result in AMISS]
    return lines + [f"{one.name}: {one.otherwise}" for one in every if one.otherwise]


def kept(file: Path | None) -> dict[str, Outcome]:
    """Return outcomes of an earlier run, by name."""
    if file is None or not file.exists():
        return {}
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        one["name"]: Outcome(**(one | {"native": Run(**one["native"]), "here": Run(**one["here"])})) for one in found
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if a correct program is accused, or if one that stood still gets no verdict or a wrong one; 2 if there
    are no programs; else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, metavar="DIR")
    parser.add_argument("--only", metavar="REGEX", help="programs whose path in DIR it is found in")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="after which a job that runs and that nothing is said of is ended (default 20)",
    )
    parser.add_argument(
        "--limit", type=float, default=10.0, metavar="SECONDS", help="of a native run: then it is hung (default 10)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where all outcomes go, a line each; programs that are in it already aren't run again",
    )
    options = parser.parse_args(arguments)
    chosen = programs(options.dir, options.only)
    if not chosen:
        print(
            f"{options.dir}: no C programs there{f' that match {options.only}' if options.only else ''}",
            file=sys.stderr,
        )
        return 2
    headers = sorted({path.parent for path in options.dir.rglob("*.h")})
    console = Console(stderr=True)
    done, outcomes = kept(options.json), []
    with tempfile.TemporaryDirectory(prefix="manapy-verdicts-") as scratch, Progress(console=console) as progress:
        os.environ["MANAPY_TRACE_ROOT"] = os.environ.get("MANAPY_TRACE_ROOT") or str(Path(scratch) / "traces")
        Path(os.environ["MANAPY_TRACE_ROOT"]).mkdir(exist_ok=True)
        task = progress.add_task("", total=len(chosen))
        for number, program in enumerate(chosen):
            progress.update(task, description=program.name[-50:], advance=1)
            if program.name in done:
                outcomes.append(judge(done[program.name], program, options.ranks))
                continue
            where = Path(scratch) / str(number)
            where.mkdir()
            one = run(program, headers, where, options.ranks, options.patience, options.limit)
            outcomes.append(one)
            if options.json is not None:
                with options.json.open("a") as stream:
                    stream.write(json.dumps(asdict(one)) + "\n")
            progress.console.print(
                f"{one.result:8} {one.name}: {one.sentence[:240] or one.here.code}",
                soft_wrap=True,
                markup=False,
                highlight=False,
            )
    Console(width=180).print(table(outcomes))
    print(*summary(outcomes), sep="\n")
    return int(any(one.result in AMISS for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
