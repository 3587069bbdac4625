"""The ways to write an image, compared: while the program is paused, or beside it; all of it, or what has changed;
compressed or not. And two ways to read it: before the program goes on, or while it runs.

Two ranks full of random bytes; 1 % of their pages change again and again (osu_bench/checkpoints/changes.c). For each
way: the longest step of the program around a checkpoint, which is how long it is paused; the time until the checkpoint
is published, compared with dd of the same files with fsync; the bytes that are written; the time from a restart to the
first step, compared with a native start; and the run time with a checkpoint every 10 s, compared with that of the same
job without checkpoints. The first checkpoint of a job is not measured, because later ones may be smaller.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ..shared.commands import BenchError, Command, Setting, stepping
from ..shared.samples import CLOCK, NATIVE, Row, Rows
from .images import BESIDE, RANKS, STANDING, copied, first_step, images_of, put

PERCENT = "1"  # of the pages change
FOREVER = "1000000000"  # steps: the job is stopped long before
STEPS = 20000  # of a whole run: about 20 s
INTERVAL = "10s"
PAUSE = "20000"  # microseconds of a step with --quick, so that the program leaves the processors to the commands
INCREMENTAL, COMPRESSED = ("--dirty", "auto"), ("--compress", "auto")
WAYS: dict[str, tuple[str, ...]] = {  # a name, and options of manapy-launch
    "standing": STANDING,
    "standing, incremental": (*STANDING, *INCREMENTAL),
    "standing, compressed": (*STANDING, *COMPRESSED),
    "beside": BESIDE,
    "beside, incremental": (*BESIDE, *INCREMENTAL),
    "beside, both": (*BESIDE, *INCREMENTAL, *COMPRESSED),
}


def images(setting: Setting) -> list[Row]:
    """Every way."""
    rows = Rows("images")
    rounds = max(setting.rounds // 2, 1)
    for i, way in enumerate(WAYS):
        setting.progress(i / len(WAYS) / 2, f"checkpoints, {way}")
        try:
            _checkpoints(setting, rows, way, rounds)
        except BenchError as error:
            rows.row(f"{way}: stands", "ms").failures[CLOCK] = str(error)
    for number in range(rounds):
        setting.progress(0.5 + number / rounds / 2, f"whole runs with a checkpoint every {INTERVAL}")
        without = _whole_run(setting, ())
        for way, options in WAYS.items():
            row = rows.row(f"{way}: run time, a checkpoint every {INTERVAL}", "s", baseline="without checkpoints")
            put(row, NATIVE, number, without)
            try:
                put(row, CLOCK, number, _whole_run(setting, ("--interval", INTERVAL, "--keep", "1", *options)))
            except BenchError as error:
                row.failures[CLOCK] = str(error)
    return rows.all()


def _checkpoints(setting: Setting, rows: Rows, way: str, rounds: int) -> None:
    """Checkpoints and restarts of one job."""
    job = setting.fresh("images")
    report = setting.work / f"{job.name}.report"
    program: Sequence[str | Path] = (
        setting.program("changes"),
        str(setting.megabytes),
        PERCENT,
        FOREVER,
        report,
        *((PAUSE,) if setting.scale < 1 else ()),
    )
    stands = rows.row(f"{way}: stands", "ms", goal="≤ 50 ms" if way.startswith("beside") else "")
    published = rows.row(f"{way}: until published", "s", baseline="dd of the files")
    written = rows.row(f"{way}: written", "MB", baseline="data")
    restart = rows.row(f"{way}: restart to the first step", "s", baseline="native start")
    lazy = rows.row(f"{way}: the same with --lazy", "s", baseline="native start")
    checkpoint: Command = [setting.tools.manapy, "checkpoint", job]
    with stepping(setting, setting.launched(CLOCK, RANKS, job, *WAYS[way], *program), job) as running:
        setting.run(checkpoint)
        for number in range(rounds):
            seconds, longest = during(setting, report, checkpoint)
            files = images_of((job / "latest").resolve())
            put(published, NATIVE, number, copied(setting, files))
            put(published, CLOCK, number, seconds)
            put(stands, CLOCK, number, longest)
            put(written, NATIVE, number, RANKS * setting.megabytes)
            put(written, CLOCK, number, sum(file.stat().st_size for file in files) / 1e6)
            setting.run([setting.tools.manapy, "prune", job, "--keep", "1"])
        setting.run([*checkpoint, "--then", "exit"])
        running.wait()
    for number in range(rounds):
        native = first_step(setting, None, setting.native(RANKS, *program))
        for row, options in ((restart, ()), (lazy, ("--lazy",))):
            *command, checkpoint_of = setting.restarted(RANKS, job)
            put(row, NATIVE, number, native)
            put(row, CLOCK, number, first_step(setting, job, [*command, *options, checkpoint_of]))
    for image in job.rglob("rank-*.img"):
        image.unlink()


def during(setting: Setting, report: Path, command: Command) -> tuple[float, float]:
    """Seconds of a command, and milliseconds of the longest step of the program from before it until after it. Raises
    BenchError if the program makes no step afterwards."""
    before = len(_lines(report))
    seconds = setting.timed(command)
    enough = len(_lines(report)) + 2  # the next line may have begun before the end of the command
    deadline = time.monotonic() + setting.limit
    while len(lines := _lines(report)) < enough:
        if time.monotonic() > deadline:
            raise BenchError("the program makes no step after a checkpoint")
        time.sleep(0.01)
    return seconds, max(int(line.split()[1]) for line in lines[before:enough]) / 1000


def _lines(report: Path) -> list[str]:
    """The complete lines."""
    text = report.read_text() if report.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _whole_run(setting: Setting, options: Sequence[str]) -> float:
    """Seconds from the first step to the end."""
    job = setting.fresh("images")
    steps = str(int(STEPS * setting.scale))
    program = (setting.program("changes"), str(setting.megabytes), PERCENT, steps, setting.work / f"{job.name}.report")
    begin = time.perf_counter()
    with stepping(setting, setting.launched(CLOCK, RANKS, job, *options, *program), job) as running:
        running.wait()
        seconds = time.perf_counter() - begin - running.started
    if running.process.returncode:
        raise BenchError(f"a run ended with exit code {running.process.returncode}")
    for image in job.rglob("rank-*.img"):
        image.unlink()
    return seconds
