"""Runs mpi4py's own test suite natively and under manapy, and compares each test; also with checkpoints, and with kills
and restarts, at random moments.

    python tests/conformance/suite.py                           everything: 1 to 4 ranks, plain, checkpoints, restarts
    python tests/conformance/suite.py --ranks 2 --mode restart --only 'win|rma' --seed 7
    python tests/conformance/suite.py --mpirun 'mpirun.openmpi --oversubscribe' --native-env MPI4PY_MPIABI=openmpi

The suite isn't part of manapy. pip fetches the source distribution of the installed mpi4py's version into a cache
directory (or --sdist names it). Spawning tests are left out (LIMITATIONS.md: dynamic processes).

  plain       no checkpoint
  checkpoint  a checkpoint when the job is up, then about every --interval outcomes, at seeded random moments; the job
              continues
  restart     the same, and after each checkpoint SIGKILL to all processes, and a restart; without the modules that
              delete files
  exit        the same with `manapy checkpoint --then exit`, for all modules. Files aren't part of a checkpoint: in mode
              `restart` a file that a test deletes between the checkpoint and the kill would be missing after the
              restart. In this mode no test runs between them

The results are equal if, for every rank, the same tests run in the same order, each with the same outcome. A checkpoint
that is refused for a reason that lies in the program (LIMITATIONS.md) is counted and shown, not hidden.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import importlib.util
import json
import random
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import paths  # noqa: F401

from jobs import PATIENCE, Job, JobError
from manapy.ckpt import command
from manapy.cli.shared import naming
from manapy.cli.shared.arguments import add_renamed
from manapy.core import files
from manapy.core.errors import ManapyError

RECORD = Path(__file__).resolve().parent / "record.py"
EXCLUDED = ("-e", "spawn", "-e", "dynproc")
MODES = ("plain", "checkpoint", "restart", "exit")
# modules whose tests make and delete files
WITH_FILES = "test_(file|io|handle|objmodel|errhandler|errorcode|subclass)\\."
# Requires that a task of 0.2 s is not done 2 ms after its start. The machine's clock continues between kill and
# restart, which takes longer.
HURRIED = re.compile(r"test_util_pool\.\w+\.test_apply_async_timeout")
# Differ on another MPI, where mpi4py has its module for MPICH under manapy, and another one natively:
DIFFERENT = re.compile(
    # MPI_Type_contiguous_c with too large a count, which natively is composed of smaller types
    r"test_datatype\.\w+\.testContiguousBigMPI"
    # the module does not know MPI_LOGICAL1 ..., which exist; it fails natively on MPICH 5, too
    r"|test_mpiabi\.TestMPIABI\.testGetFortranInfo \(typename='logical\d+'\)"
    # types of NumPy's 16-bit floats: the module knows MPICH's MPIX_C_FLOAT16, which Open MPI 5 lacks
    r"|test_util_dtlib\.\w+\.\w+ \(.*['),](e|f2)\b.*\)"
)
STALL = 2 * PATIENCE  # seconds without an outcome: it hangs
EVERY = 20.0  # seconds between lines of progress
SOON = 0.05  # seconds between looks for the moment of the next checkpoint

Outcome = tuple[str, str]  # test id, outcome


class SuiteError(Exception):
    """No comparison is possible; the text is one line with the reason."""


def suite_main(sdist: Path | None = None, cache: Path | None = None) -> Path:
    """test/main.py of the suite of the installed mpi4py's version. Raises SuiteError if it can't be fetched."""
    wanted = version("mpi4py")
    cache = cache or files.cache_directory()
    main = cache / f"mpi4py-{wanted}" / "test" / "main.py"
    if main.exists():
        return main
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        if sdist is None:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                "mpi4py",
                "-d",
                scratch,
                f"mpi4py=={wanted}",
            ]
            # pip asks setuptools for the version: the installed one, or, if it is missing or too old, one in a
            # temporary environment, which takes long
            found: list[Path] = []
            for more in [["--no-build-isolation"], []] if importlib.util.find_spec("setuptools") else [[]]:
                done = subprocess.run([*pip, *more], capture_output=True, text=True, check=False)
                found = list(Path(scratch).glob("mpi4py-*.tar.gz"))
                if found:
                    break
            if not found:
                raise SuiteError(
                    f"cannot fetch mpi4py's source distribution "
                    f"({done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'pip said nothing'}); give "
                    f"it with --sdist FILE"
                )
            sdist = found[0]
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch)  # noqa: S202 - what pip fetched; Debian's 3.11 has no filter
        (Path(scratch) / f"mpi4py-{wanted}").rename(cache / f"mpi4py-{wanted}")
    return main


def outcomes(results: Path) -> dict[int, list[Outcome]]:
    """The recorded outcomes, by rank."""
    return {
        int(file.stem.split("-")[1]): [
            (name, outcome) for name, outcome, _ in map(json.loads, file.read_text().splitlines())
        ]
        for file in sorted(results.glob("rank-*.jsonl"))
    }


def texts(results: Path) -> dict[tuple[int, str], str]:
    """Texts of the tests that aren't ok, by rank and test."""
    return {
        (int(file.stem.split("-")[1]), name): text
        for file in results.glob("rank-*.jsonl")
        for name, _, text in map(json.loads, file.read_text().splitlines())
    }


def differences(
    native: dict[int, list[Outcome]], ours: dict[int, list[Outcome]], mode: str, may_do_more: bool = False
) -> list[str]:
    """Lines that describe the differences; none if all is equal. With restarts the outcome of HURRIED may differ, but
    it must run like the others. may_do_more: manapy offers functions that the MPI below lacks, and then tests of these
    are skipped natively only. Then DIFFERENT is left out, too, and the tests to which such subtests belong."""
    lines = []
    if may_do_more:
        every = {name for of in (native, ours) for found in of.values() for name, _ in found}
        different = {name for name in every if DIFFERENT.fullmatch(name)}
        different |= {name.partition(" (")[0] for name in different}
        native, ours = (
            {rank: [(name, o) for name, o in found if name not in different] for rank, found in of.items()}
            for of in (native, ours)
        )
        passed = {(rank, name) for rank, found in ours.items() for name, outcome in found if outcome == "ok"}
        native = {
            rank: [(name, "ok" if o == "skipped" and (rank, name) in passed else o) for name, o in found]
            for rank, found in native.items()
        }
    if mode in ("restart", "exit"):
        native, ours = (
            {r: [(name, "any" if HURRIED.fullmatch(name) else o) for name, o in found] for r, found in of.items()}
            for of in (native, ours)
        )
    for rank, expected in native.items():
        got = ours.get(rank, [])
        if len(got) != len(expected):
            lines.append(f"rank {rank}: {len(got)} outcomes, natively {len(expected)}")
        have = dict(got)
        missing = [name for name, _ in expected if name not in have]
        if missing:
            lines.append(f"rank {rank}: {len(missing)} tests did not run, the first of them {missing[0]}")
        lines += [
            f"rank {rank}: {name}: {have[name]}, natively {outcome}"
            for name, outcome in expected
            if have.get(name, outcome) != outcome
        ]
        lines += [f"rank {rank}: {name} did not run natively" for name in have.keys() - dict(expected).keys()]
        if not lines and got != expected:
            lines.append(f"rank {rank}: another order of tests")
    return lines


@dataclass
class Run:
    """One run of the suite and its events. say: called with lines of progress, if it is given. sparing: see
    record.py."""

    where: Path
    ranks: int
    mode: str
    say: Callable[[str], None] | None = None
    sparing: bool = False
    checkpoints: int = 0
    restarts: int = 0
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    longest: float = 0.0  # the longest checkpoint, seconds
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    _seen: tuple[int, float] = (-1, 0.0)  # outcomes of all ranks, and since when there are so many
    _said: float = field(default_factory=time.monotonic)

    @property
    def results(self) -> Path:
        return self.where / "results"

    def ends(self, job: Job, within: float = float("inf"), before: float = float("inf")) -> bool:
        """True when the job ends within so many seconds and before each rank has so many outcomes more. Raises JobError
        if it hangs."""
        assert job.process is not None
        deadline = time.monotonic() + within
        outcomes = self._look(job) + before
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(min(left, 1.0 if before == float("inf") else SOON))
                return True
            if self._look(job) >= outcomes:
                return False
        return False

    def _look(self, job: Job) -> int:
        """Is there progress? Returns the number of outcomes that each rank has."""
        now = time.monotonic()
        counts = [file.read_bytes().count(b"\n") for file in self.results.glob("rank-*.jsonl")]
        if sum(counts) != self._seen[0]:
            self._seen = (sum(counts), now)
        elif now - self._seen[1] > STALL:
            raise JobError(f"no outcome for {STALL:.0f} s:\n{job.report()}")
        if self.say and now - self._said > EVERY:
            self._said = now
            self.say(
                f"    {self.ranks} ranks, {self.mode}: {min(counts, default=0)} outcomes, {self.checkpoints} "
                f"checkpoints, {now - self.started:.0f} s"
            )
        return min(counts, default=0)


def arguments(run: Run, main: Path, only: str | None, without: str | None = None) -> list[str]:
    run.results.mkdir(parents=True, exist_ok=True)
    return [
        sys.executable,
        str(RECORD),
        *(("--sparing",) if run.sparing else ()),
        str(run.results),
        str(main),
        *EXCLUDED,
        *(("-e", without) if without else ()),
        *(("-i", only) if only else ()),
    ]


def expected(native: dict[int, list[Outcome]], mode: str, only: str | None = None) -> dict[int, list[Outcome]]:
    """The native outcomes that a mode should give with the modules `only` (all if None)."""

    def runs(name: str) -> bool:
        return (only is None or re.match(only, name) is not None) and not (
            mode == "restart" and re.match(WITH_FILES, name)
        )

    return {rank: [(name, outcome) for name, outcome in found if runs(name)] for rank, found in native.items()}


@dataclass(frozen=True)
class Mpi:
    """Under which MPI the suite runs: mpirun, None for the environment's own, and variables of the environment."""

    mpirun: tuple[str, ...] | None = None
    native_env: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)  # under manapy

    def job(self, where: Path, ranks: int, env: dict[str, str]) -> Job:
        """A job that has not been started."""
        return Job(where, ranks, env=env, **({"mpirun": self.mpirun} if self.mpirun else {}))


OWN = Mpi()


def native(
    where: Path,
    ranks: int,
    main: Path,
    only: str | None,
    say: Callable[[str], None] | None = None,
    mpi: Mpi = OWN,
    sparing: bool = False,
) -> Run:
    """The suite without manapy. Raises JobError if it hangs."""
    where.mkdir(parents=True, exist_ok=True)
    run = Run(where, ranks, "native", say, sparing)
    job = mpi.job(where, ranks, mpi.native_env)
    job.spawn([*job.mpirun, "-n", str(ranks), *arguments(run, main, only)])
    try:
        run.ends(job)
    finally:
        job.end()
    run.seconds = time.monotonic() - run.started
    return run


def one_checkpoint(run: Run, job: Job, then: str) -> bool:
    """Take a checkpoint. Returns True if it was taken; a refusal is counted."""
    assert job.process is not None
    start = time.monotonic()
    try:
        command.checkpoint(naming.job(str(job.dir)), then=then)
    except (ManapyError, OSError, ValueError) as error:  # the job may end while its directory is read
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(0.5)  # the job may just have ended
        if job.process.poll() is None and "finishing" not in str(error):
            run.refused[str(error)] += 1
        return False
    finally:
        run.longest = max(run.longest, time.monotonic() - start)
    run.checkpoints += 1
    return True


def wait_up(job: Job, before: int | None) -> int | None:
    """Wait until the job runs under a coordinator other than `before`. Returns its pid, None if the job has ended."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(JobError):  # neither the old coordinator nor the new one exists
            if (pid := job.status()["pid"]) != before:
                return int(pid)
        assert job.process is not None
        if job.process.poll() is not None:
            return None
        if time.monotonic() > deadline:
            raise JobError(f"the start hangs:\n{job.report()}")
        time.sleep(0.05)


def under_fire(run: Run, job: Job, chance: random.Random, interval: float) -> None:
    """Take checkpoints, and restart if the mode says so, until the job ends. The first one is taken when the job is up,
    each further one after 0.2 to 1.8 intervals, in outcomes of each rank."""
    coordinator = wait_up(job, None)
    while coordinator is not None:
        if one_checkpoint(run, job, "exit" if run.mode == "exit" else "continue") and run.mode != "checkpoint":
            try:
                job.wait() if run.mode == "exit" else job.kill()
            except JobError:
                if run.ends(job, within=PATIENCE):  # the job has ended by itself; mpirun may need a while
                    return
                raise
            job.restart()
            run.restarts += 1
            coordinator = wait_up(job, coordinator)
        if run.ends(job, before=interval * chance.uniform(0.2, 1.8)):
            return


def under_manapy(
    where: Path,
    ranks: int,
    main: Path,
    only: str | None,
    mode: str,
    seed: int,
    interval: float,
    launch: tuple[str, ...] = (),
    say: Callable[[str], None] | None = None,
    mpi: Mpi = OWN,
    sparing: bool = False,
) -> Run:
    """The suite under manapy-launch in one of MODES. Raises JobError if a run hangs."""
    where.mkdir(parents=True, exist_ok=True)
    run = Run(where, ranks, mode, say, sparing)
    job = mpi.job(where, ranks, mpi.env)
    job.start(*arguments(run, main, only, WITH_FILES if mode == "restart" else None), options=["--keep", "2", *launch])
    try:
        if mode != "plain":
            under_fire(run, job, random.Random(seed), interval)
        run.ends(job)
    finally:
        job.end()
    run.seconds = time.monotonic() - run.started
    return run


def last_words(where: Path) -> list[str]:
    """The end of the output of the last run."""
    log = max(where.glob("run-*.log"), key=lambda p: p.stat().st_mtime)
    return log.read_text(errors="replace").splitlines()[-12:]


def table(rows: list[tuple[Run, int, str]]) -> str:
    """Summary of runs: (run, outcomes compared, result)."""
    lines = [
        f"{'ranks':>5}  {'mode':<10}  {'outcomes':>8}  {'checkpoints':>11}  {'longest':>7}  {'restarts':>8}  "
        f"{'refused':>7}  {'seconds':>7}  result"
    ]
    for run, compared, result in rows:
        lines.append(
            f"{run.ranks:>5}  {run.mode:<10}  {compared:>8}  {run.checkpoints:>11}  {run.longest:>7.2f}  "
            f"{run.restarts:>8}  {run.refused.total():>7}  {run.seconds:>7.0f}  {result}"
        )
    return "\n".join(lines)


def variable(text: str) -> tuple[str, str]:
    """NAME and VALUE. Raises ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="conformance", description="mpi4py's test suite natively and under manapy, compared test by test"
    )
    parser.add_argument("--ranks", default="1,2,3,4", help="numbers of ranks (default 1,2,3,4)")
    parser.add_argument("--mode", default=",".join(MODES), help=f"of {','.join(MODES)} (default: all)")
    parser.add_argument("--only", metavar="REGEX", help="test modules whose file name matches")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments (default 1)")
    parser.add_argument(
        "--interval", type=float, default=60.0, help="mean number of outcomes between checkpoints (default 60)"
    )
    parser.add_argument("--sdist", type=Path, help="mpi4py's source distribution, if pip can't fetch it")
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        help="new directory for the runs, which are kept (default: a temporary one, removed if all is equal)",
    )
    add_renamed(parser, "--dir", "--results")
    parser.add_argument("--mpirun", metavar="COMMAND", help="of another MPI, with its options")
    for name, of in (("native-env", "the native runs"), ("env", "the runs under manapy")):
        parser.add_argument(
            f"--{name}", metavar="NAME=VALUE", action="append", default=[], type=variable, help=f"for {of}; repeatable"
        )
    options = parser.parse_args(argv)
    mpi = Mpi(
        tuple(shlex.split(options.mpirun)) if options.mpirun else None, dict(options.native_env), dict(options.env)
    )
    modes = options.mode.split(",")
    if unknown := set(modes) - set(MODES):
        parser.error(f"unknown mode {unknown.pop()!r}: choose of {', '.join(MODES)}")
    if options.results and options.results.exists() and any(options.results.iterdir()):
        parser.error(f"{options.results} isn't empty")
    try:
        ranks = [int(n) for n in options.ranks.split(",")]
        suite = suite_main(options.sdist)
    except (ValueError, SuiteError) as error:
        parser.error(str(error))
    base = options.results.resolve() if options.results else Path(tempfile.mkdtemp(prefix="manapy-conformance-"))
    say = functools.partial(print, flush=True)
    rows: list[tuple[Run, int, str]] = []
    for n in ranks:
        try:
            reference = native(base / f"native-{n}", n, suite, options.only, say, mpi)
        except JobError as error:
            say(f"{n} ranks, native: {error}")
            rows.append((Run(base, n, "native"), 0, "hangs"))
            continue
        native_outcomes = outcomes(reference.results)
        count = collections.Counter(outcome for _, outcome in native_outcomes.get(0, []))
        say(
            f"{n} ranks, native: {', '.join(f'{v} {k}' for k, v in sorted(count.items()))} in {reference.seconds:.0f} s"
        )
        for mode in modes:
            where = base / f"{mode}-{n}"
            wanted = expected(native_outcomes, mode)
            compared = sum(map(len, wanted.values()))
            try:
                run = under_manapy(where, n, suite, options.only, mode, options.seed, options.interval, (), say, mpi)
            except JobError as error:
                say(f"{n} ranks, {mode}: {error}")
                rows.append((Run(where, n, mode), compared, "hangs"))
                continue
            lines = differences(wanted, outcomes(run.results), mode, may_do_more=mpi != OWN)
            rows.append(
                (run, compared, f"{len(lines)} differences" if lines else "equal" if compared else "nothing to compare")
            )
            say(f"{n} ranks, {mode}: {rows[-1][2]}; {run.seconds:.0f} s")
            for reason, times in run.refused.items():
                say(f"    refused {times} times: {reason}")
            for line in lines[:40]:
                say(f"    {line}")
            if any(" did not run, " in line for line in lines):  # it died: show the end of its output
                say("\n".join(f"    | {line}" for line in last_words(where)))
    say(table(rows))
    if any(result != "equal" for _, _, result in rows):
        say(f"outputs are in {base}")
        return 1
    if options.results is None:
        subprocess.run(["rm", "-rf", str(base)], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
