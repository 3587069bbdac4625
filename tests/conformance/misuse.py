"""Does `manapy why` name what is wrong with programs that misuse MPI, and nothing of those that are right?

    python tests/conformance/misuse.py DIR                       all programs in DIR, which has the layout of
    MPI-CorrBench's micro-benches
    python tests/conformance/misuse.py DIR --only Deadlock       those whose path matches

Each C program is compiled, runs once under manapy-launch, one job after the other, and is asked about: while it stands
still, and after its end. A program in a folder `correct` must not get a
verdict; of any other one the error's class is the first word of its name (ArgMismatch, MissingCall ...), or else its
folder.

What can come of a misuse: `named`: the verdict (hung, late or slow) says which rank or which ranks' calls; `said`: a
verdict without a rank; `aborted`: MPI has refused the call and ended
the job, as it does natively; `ended`: the program has ended as if nothing were wrong, so that there is nothing to
explain; `missed`: it stood still, and there was no verdict.
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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration"))

from jobs import BIN, Job  # noqa: E402
from manapy import cli  # noqa: E402

CLASSES = ("ArgError", "ArgMismatch", "MisplacedCall", "MissingCall")
VERDICTS = ("hung", "late", "slow")
LOOKS = 2  # in a row that must say the same
EVERY = 0.3  # seconds between looks
START = 120.0  # seconds until something is recorded
RESULTS = ("named", "said", "aborted", "ended", "missed")


@dataclass(frozen=True)
class Program:
    """One file. kind: the class of its error, or `correct`."""

    path: Path
    name: str
    kind: str


@dataclass(frozen=True)
class Outcome:
    """What became of one. result: of RESULTS; of a correct one `quiet` or `accused`; `not compiled` and why in
    sentence. code: of mpirun; None: it stood still, and was ended."""

    name: str
    kind: str
    result: str
    code: int | None = None
    state: str = ""
    cause: str = ""
    rank: int | None = None
    sentence: str = ""
    seconds: float = 0.0


def programs(folder: Path, only: str | None = None) -> list[Program]:
    """All C programs, in order."""
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
            if first in CLASSES
            else "/".join(path.relative_to(folder).parts[-3:-1])
        )
        found.append(Program(path, name, kind))
    return found


def run(program: Program, headers: Sequence[Path], where: Path, ranks: int, patience: float) -> Outcome:
    """Compile, run, ask. headers: folders of the suite that have some. patience: seconds after which a job that nothing
    is said of is ended."""
    began = time.monotonic()
    command = [
        BIN / "mpicc",
        "-O1",
        "-w",
        "-fopenmp",
        *(f"-I{path}" for path in headers),
        program.path,
        "-o",
        where / "program",
        "-lm",
    ]
    compiled = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if compiled.returncode:
        return Outcome(
            program.name,
            program.kind,
            "not compiled",
            sentence=next((line for line in compiled.stderr.splitlines() if "error" in line), "?"),
        )
    # What has ended by itself, or by MPI's refusal, is not to be cleaned away before it is asked about.
    job = Job(where, ranks, mpirun=[BIN / "mpirun", "-disable-auto-cleanup"])
    job.start(where / "program")
    assert job.process is not None
    try:
        said = _watched(job, patience)
        code = job.process.poll()
        if code is not None:
            said = asked(job)
    finally:
        job.end()
    found: dict[str, Any] = said["verdicts"][0] if said is not None and said["verdicts"] else {}
    state = said["state"] if said is not None else ""
    words = (str(found.get("sentence", "")), *map(str, found.get("evidence", ())))
    shown = Outcome(
        program.name,
        program.kind,
        "",
        code,
        state,
        str(found.get("cause", "")),
        found.get("rank"),
        " | ".join(words[:2]),
        time.monotonic() - began,
    )
    return Outcome(**(asdict(shown) | {"result": _result(program, shown)}))


def _result(program: Program, seen: Outcome) -> str:
    if program.kind == "correct":
        return "accused" if seen.state in VERDICTS else "quiet"
    if seen.state in VERDICTS:
        return "named" if seen.rank is not None or re.search(r"\branks? \d", seen.sentence) else "said"
    return "missed" if seen.code is None else "aborted" if seen.code else "ended"


def _watched(job: Job, patience: float) -> dict[str, Any] | None:
    """Until it has ended, LOOKS looks have said the same, or patience is over: the last look."""
    assert job.process is not None
    deadline, said, looks = time.monotonic() + START, None, 0
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(EVERY)
            return None
        before, said = said, asked(job)
        if before is None and said is not None:
            deadline = time.monotonic() + patience
        accused = said is not None and said["state"] in VERDICTS
        looks = (
            (looks + 1 if before is not None and before["verdicts"][0]["cause"] == said["verdicts"][0]["cause"] else 1)
            if said is not None and accused
            else 0
        )
        if looks >= LOOKS:
            break
    return said


def asked(job: Job) -> dict[str, Any] | None:
    """`manapy why --json`, without a process of its own; None: nothing is recorded yet."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        cli.main(["why", str(job.dir), "--json"])
    return dict(json.loads(out.getvalue())) if out.getvalue() else None


def table(outcomes: Sequence[Outcome]) -> Table:
    """By class: what came of how many."""
    shown = Table("class", "programs", *RESULTS, "quiet", "accused", "not compiled")
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(one.kind, []).append(one)
    for kind, group in sorted(groups.items(), key=lambda item: (item[0] == "correct", item[0])):
        counts = collections.Counter(one.result for one in group)
        shown.add_row(
            kind,
            str(len(group)),
            *(str(counts[result] or "") for result in (*RESULTS, "quiet", "accused", "not compiled")),
        )
    return shown


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    """How many of how many."""
    every = list(outcomes)
    wrong = [one for one in every if one.kind != "correct" and one.result != "not compiled"]
    right = [one for one in every if one.kind == "correct" and one.result != "not compiled"]
    found = collections.Counter(one.result for one in wrong)
    stood = found["named"] + found["said"] + found["missed"]
    return [
        f"misuses that keep a job from going on, or end it unfinished: rank and cause named of {found['named']} of {stood}",
        f"misuses that MPI refuses, as natively: {found['aborted']}; that do no harm here: {found['ended']}",
        f"correct programs without a verdict: {sum(one.result == 'quiet' for one in right)} of {len(right)}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a correct program is accused, or one that stood still gets no verdict."""
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="where all outcomes go")
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
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="manapy-verdicts-") as scratch, Progress(console=console) as progress:
        os.environ["MANAPY_TRACE_ROOT"] = os.environ.get("MANAPY_TRACE_ROOT") or str(Path(scratch) / "traces")
        Path(os.environ["MANAPY_TRACE_ROOT"]).mkdir(exist_ok=True)
        task = progress.add_task("", total=len(chosen))
        for number, program in enumerate(chosen):
            progress.update(task, description=program.name[-50:])
            where = Path(scratch) / str(number)
            where.mkdir()
            outcomes.append(one := run(program, headers, where, options.ranks, options.patience))
            progress.advance(task)
            progress.console.print(
                f"{one.result:8} {one.name}: {one.sentence[:240] or one.code}",
                soft_wrap=True,
                markup=False,
                highlight=False,
            )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=2) + "\n")
    Console(width=140).print(table(outcomes))
    print(*summary(outcomes), sep="\n")
    return int(any(one.result in ("missed", "accused") for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
