"""Record the MPI calls of programs, and show, export or import recordings.

    manapy trace run -- mpirun -n 4 PROG        record a program that runs without manapy-launch
    manapy trace record JOB --out DIR           copy the recording of a running job to disk
    manapy trace export JOB --format perfetto   convert a recording for other tools
    manapy trace import PATH... --out DIR       convert a recording of another tool
    manapy trace report JOB                     write a recording and its verdicts as a page of HTML
    manapy trace top JOB                        show what each rank is doing now
    manapy trace serve JOB                      serve metrics for Prometheus

manapy-launch records by itself. A program pauses the recording of a thread's calls with MPI_Pcontrol(0), and resumes it
with MPI_Pcontrol(1).

JOB is a job, the --name of `manapy trace run`, or a folder with trace files. The last part of a --name is enough if
it is unique. `manapy why` reports what is wrong with a recorded job.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...core.units import size
from ..shared import arguments, naming, quantities
from ..shared.leaving import Leaving
from ..shared.output import Output
from . import trace_import

TAKES_MORE = "-- COMMAND [ARGUMENTS...]"
RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")  # set by what starts ranks
LOOK = 0.1  # seconds between two checks whether the recording has begun
SHORTEST = 0.1  # seconds between two looks at the job; processor time is counted in ticks of 10 ms


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its commands."""
    names = "run | record | export | import | report | top | serve"
    commands = parser.add_subparsers(dest="what", required=True, metavar=names)
    for add in (_add_run, _add_record, _add_export, trace_import.add_arguments, _add_report, _add_top, _add_serve):
        add(commands)


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="record a program",
        description="Run the command after '--' and record the MPI calls of its programs.",
    )
    run.add_argument(
        "--name",
        metavar="NAME",
        type=Path,
        help=(
            "name of this recording for other commands, relative to the working directory; nothing is written there "
            "(default: manapy-trace-<time>)"
        ),
    )
    arguments.add_renamed(run, "--dir", "--name")
    run.add_argument(
        "--family",
        choices=("mpich", "openmpi", "intel"),
        help="the family of the program's MPI library (default: inferred from the command)",
    )
    arguments.add_renamed(run, "--mpi", "--family")


def _add_record(commands: Any) -> None:
    record = commands.add_parser(
        "record",
        help="copy a job's recording to disk",
        description=(
            "Copy a job's recording to disk until the job has ended or Ctrl-C. Other commands accept the folder as JOB."
        ),
    )
    arguments.add_recording(record)
    record.add_argument("--out", metavar="DIR", type=Path, required=True, help="write the copy to folder DIR")
    record.add_argument(
        "--limit",
        metavar="SIZE",
        type=quantities.size,
        default=10**9,
        help="keep at most SIZE, the newest records of all ranks, such as 200MB (default 1GB)",
    )
    record.add_argument(
        "--every",
        metavar="TIME",
        type=arguments.seconds,
        default=0.1,
        help=(
            "copy every TIME; must be shorter than a thread takes for 65536 calls, else records are lost (default "
            "100ms)"
        ),
    )
    record.add_argument("--for", metavar="TIME", type=arguments.seconds, dest="duration", help="stop after TIME")


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export", help="convert a recording for other tools", description="Write a recording in another format."
    )
    arguments.add_recording(export)
    export.add_argument(
        "--format",
        choices=("json", "openmetrics", "perfetto", "otf2"),
        required=True,
        help="the format; otf2 writes a folder and needs manapy's extra trace",
    )
    export.add_argument(
        "--out", metavar="FILE", type=Path, help="write to FILE (default: trace.json, .prom, .pftrace or .otf2 here)"
    )
    arguments.add_schedule(export)


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="write a page of HTML",
        description="Write a recording, and the verdicts of `manapy why` on it, as one self-contained page of HTML.",
    )
    arguments.add_recording(report)
    report.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("report.html"),
        help="write to FILE (default: report.html here)",
    )
    arguments.add_schedule(report)


def _add_top(commands: Any) -> None:
    top = commands.add_parser(
        "top",
        help="show what each rank is doing now",
        description="Show a live view: a line for each rank, and what is wrong. Ctrl-C ends it.",
    )
    arguments.add_recording(top)
    top.add_argument(
        "--every",
        metavar="TIME",
        type=arguments.seconds,
        default=1.0,
        help="look at the job, and update the view, every TIME; less often if that costs too much (default 1s)",
    )
    arguments.add_renamed(top, "--interval", "--every")
    top.add_argument(
        "--once", action="store_true", help="print the view once and end; always so if stdout is not a terminal"
    )
    top.add_argument("--json", action="store_true", help="print the view once, as JSON")
    top.add_argument(
        "--sort",
        choices=("rank", "wait", "state"),
        default="rank",
        help="order of the ranks; state: those in trouble first (default rank)",
    )
    arguments.add_schedule(top)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve metrics for Prometheus",
        description=(
            "Serve metrics of a job (OpenMetrics) for Prometheus and others, by HTTP, at /metrics: states of ranks, "
            "verdicts, calls, waits, checkpoints. Print the URL, and serve until the job has ended or Ctrl-C. There is "
            "no authentication: anyone who can connect to the address can read the metrics. docs/grafana.json is a "
            "dashboard. Needs manapy's extra metrics."
        ),
    )
    arguments.add_recording(serve)
    serve.add_argument(
        "--port",
        metavar="N",
        type=arguments.natural,
        default=9464,
        help="listen at this port (default 9464; 0: any free one)",
    )
    serve.add_argument(
        "--address", metavar="ADDR", default="127.0.0.1", help="listen at this address of the host (default 127.0.0.1)"
    )
    serve.add_argument(
        "--every",
        metavar="TIME",
        type=arguments.seconds,
        default=5.0,
        help=(
            "look at the job every TIME if a rank makes no progress, else as often as 1 %% of a processor allows "
            "(default 5s)"
        ),
    )
    arguments.add_schedule(serve)


def run(options: argparse.Namespace, out: Output) -> int:
    """The command that was named."""
    from ...core.errors import UsageError

    if options.after and options.what != "run":
        raise UsageError("nothing may follow '--'")
    commands = {
        "run": _run,
        "record": _record,
        "export": _export,
        "import": trace_import.run,
        "report": _report,
        "top": _top,
        "serve": _serve,
    }
    return commands[options.what](options, out)


# ---- run


def _run(options: argparse.Namespace, out: Output) -> int:
    """Run a command and record it. Returns its exit code, or 1 if it returned 0 and nothing was recorded."""
    from ...core import installation
    from ...core.errors import ManapyError, UsageError
    from ...trace.capture import format as trace_format, preload, tidy

    command = options.after
    if not command:
        raise UsageError("the command is missing: manapy trace run -- mpirun -n 4 PROGRAM")
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: no such program")
    if options.name is None and any(name in os.environ for name in RANK):
        raise UsageError(
            "this process is a rank: put 'manapy trace run' before mpirun (manapy trace run -- mpirun -n 4 PROGRAM), "
            "or give --name, the same for all ranks"
        )
    if any(Path(word).name in ("manapy-launch", "manapy-restart") for word in command):
        raise UsageError("manapy-launch records by itself: run the command without 'manapy trace run'")
    needed = preload.LIBRARIES[options.family or preload.which_mpi(command, os.environ)]
    library = installation.library(needed)
    if library is None:
        raise ManapyError(f"{needed} is not part of this installation of manapy")
    directory = options.name or naming.fresh("trace")
    job = trace_format.job_name(directory)
    folder = trace_format.root() / job
    tidy.tidy()
    if not any(name in os.environ for name in RANK):  # for a rank, others may have begun to record already
        _set_aside(folder, directory)
    known = _files(folder)
    name = shlex.quote(str(directory.absolute()))

    def recorded() -> bool:
        if _files(folder) <= known:
            return False
        out.note(f"manapy: recorded as {directory}: 'manapy why {name}' reports what the program is doing")
        return True

    code, was = _supervise(command, preload.environment(library, job, os.environ), recorded)
    if was:
        return code
    out.error(
        f"nothing was recorded on this host: no process of {command[0]} has called MPI_Init of a shared MPI library"
        " (not an MPI program, or statically linked; if all its processes were elsewhere:"
        f" manapy why {name} --hosts HOST,...)"
    )
    return code or 1


def _files(folder: Path) -> set[tuple[str, int]]:
    """The trace files in a folder, by name and inode."""
    from ...trace.capture import layout

    found = set()
    for path in layout.files_in(folder):
        with contextlib.suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_ino))
    return found


def _set_aside(folder: Path, directory: Path) -> None:
    """Remove the recording of an earlier run of this name: parts of it could be taken for this run's.

    Raises UsageError if the earlier run is still alive.
    """
    from ...core.errors import UsageError
    from ...trace.capture import tidy

    if tidy.lives(folder):
        raise UsageError(
            f"{directory}: a running job is recorded under this name; give another --name, or remove {folder} if it was"
            " in a container that is gone"
        )
    shutil.rmtree(folder, ignore_errors=True)


def _supervise(command: list[str], env: dict[str, str], recorded: Callable[[], bool]) -> tuple[int, bool]:
    """Run the command and pass on the signals that end jobs.

    Returns its exit code (128 + signal if a signal ended it), and whether anything was recorded. `recorded` is called
    until it returns True.
    """
    process = subprocess.Popen(command, env=env)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda got, _: process.send_signal(got))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the command, too
    was = False
    while not (was := was or recorded()):
        try:
            process.wait(LOOK)
            break
        except subprocess.TimeoutExpired:
            continue
    code = process.wait()
    return (code if code >= 0 else 128 - code), was or recorded()


# ---- record, export, report


def _record(options: argparse.Namespace, out: Output) -> int:
    from ...core.errors import UsageError, why
    from ...trace.capture import disk_copy, layout

    if options.every <= 0:
        raise UsageError("--every must be more than 0")
    if any(layout.files_in(options.out)):
        raise UsageError(f"{options.out} already contains a recording")
    found = arguments.recording(options, out)
    if found.others is not None:
        found.others.total = None  # --limit is the limit
    recording = disk_copy.Recording(found.folder, options.out, options.limit, found.others)
    end = None if options.duration is None else time.monotonic() + options.duration
    failed = False
    with Leaving(signal.SIGINT, signal.SIGTERM) as leaving:
        try:
            while True:
                last = recording.over or leaving.asked or (end is not None and time.monotonic() >= end)
                recording.poll()
                if last:
                    break
                leaving.wait(options.every)
        except OSError as error:  # the part that was written can be read
            failed = True
            out.error(why(error))
    for problem in recording.problems:
        out.note(problem)
    lost = f", {recording.lost} were overwritten before they could be read" if recording.lost else ""
    out.line(f"{recording.copied} records of {len(recording.copies)} ranks in {options.out}{lost}")
    return int(failed)


def _export(options: argparse.Namespace, out: Output) -> int:
    from ...core.errors import explained
    from ...trace.capture import rings
    from ...trace.convert import export
    from ...trace.convert.export import ExportError
    from ...trace.convert.perfetto import to_perfetto
    from ...trace.live.diagnose import labels_of
    from .diagnosis import look

    write, suffix = export.FORMATS[options.format]
    target = options.out or Path(f"trace{suffix}")
    found = arguments.recording(options, out)
    if options.format == "perfetto":  # it shows verdicts and iterations, too
        trace, verdicts = look(found, options.schedule)
        write = functools.partial(to_perfetto, labels=labels_of(trace, options.schedule)[0], verdicts=verdicts)
    else:
        trace = rings.read(found.folder, others=found.others)
    with explained(ExportError, target):  # a full disk has no name
        write(trace, target)
    out.line(
        f"{len(trace.events)} records of {len(trace.ranks)} ranks in "
        f"{target}{f' ({size(target.stat().st_size)})' if target.is_file() else ''}"
    )
    return 0


def _report(options: argparse.Namespace, out: Output) -> int:
    from ...trace.live.diagnose import labels_of
    from ...trace.report import report
    from .diagnosis import look

    found = arguments.recording(options, out)
    trace, verdicts = look(found, options.schedule)
    text = report.page(trace, verdicts, labels_of(trace, options.schedule)[0])
    options.out.write_text(text, encoding="utf-8")
    out.line(verdicts[0].sentence)
    out.line(
        f"{len(trace.events)} records of {len(trace.ranks)} ranks in {options.out} ({size(options.out.stat().st_size)})"
    )
    return 0


# ---- top


def _top(options: argparse.Namespace, out: Output) -> int:
    from ...core.errors import UsageError
    from . import trace_top as view

    if options.every < SHORTEST:
        raise UsageError(f"--every must be at least {SHORTEST} s")
    view.top(
        arguments.recording(options, out),
        options.schedule,
        options.every,
        options.once or options.json or not out.file.isatty(),
        options.sort,
        out,
    )
    return 0


# ---- serve


def _serve(options: argparse.Namespace, out: Output) -> int:
    from ...core.errors import UsageError
    from . import trace_serve

    if options.every < SHORTEST:
        raise UsageError(f"--every must be at least {SHORTEST} s")
    if options.port > 65535:
        raise UsageError("--port must be at most 65535")
    found = arguments.recording(options, out)
    return trace_serve.serve(found, options.schedule, options.address, options.port, options.every, out)
