"""Checkpoint and restart: times as seen by the user, and image size; Figure 9 of the collective clock paper
(calls/apps.py).

The time of a checkpoint is that of the command `manapy checkpoint`. The time of a restart is from the command to the
first step of the program. It is compared with the program's native time from mpirun to its first step: the difference
is the cost of a restart beyond mpirun's own start. Large images are compared with dd of the same bytes to the same file
system, with fsync: one file after the other, and both at once, as the two ranks write. Of checkpoints that
are written beside the program (--background auto), both times are shown: how long the program is paused, and until they
are published.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ..shared.commands import BenchError, Command, Setting, stepping
from ..shared.samples import CLOCK, NATIVE, TWO_PHASE, Row, Rows

T = TypeVar("T")
RANKS = 2
SECONDS = "3600"  # the job is stopped long before
PUBLISHED = re.compile(r"after ([0-9.]+) s \(([0-9.]+) s to a safe moment\)")
REMARK = re.compile(r"paused for (\d+) ms; published after ([0-9.]+) s")
FULL = ("--dirty", "off")
STANDING, BESIDE = ("--background", "off", *FULL), ("--background", "auto", *FULL)
PARTS = (0.0625, 0.125, 0.25, 0.5, 1.0)  # of the largest image


def small(setting: Setting) -> list[Row]:
    """A program without data of its own."""
    rows = Rows("small")
    whole = rows.row("checkpoint, command to return", "s", goal="≤ 0.1 s")
    safe, write, publish, command = (
        rows.row(f"  of it: {name}", "s")
        for name in ("to a safe state", "writing (slowest rank)", "stop, drain, publish", "command, connection, resume")
    )
    restart = rows.row("restart (mpirun manapy-restart)", "s", baseline="native start", goal="≤ +0.3 s")
    by_command = rows.row("restart (manapy restart)", "s", baseline="native start")
    job = setting.fresh("small")

    def checkpoints() -> Path:
        with stepping(
            setting, setting.launched(CLOCK, RANKS, job, setting.program("steps"), "0", SECONDS), job
        ) as running:
            for number in range(setting.rounds):
                setting.progress(number / setting.rounds / 2, "checkpoints of a small program")
                seconds, checkpoint = _checkpoint(setting, job, last=number == setting.rounds - 1)
                published, until_safe = _logged(job)
                writing = _writing(checkpoint)
                parts = (seconds, until_safe, writing, published - until_safe - writing, seconds - published)
                for row, value in zip((whole, safe, write, publish, command), parts, strict=True):
                    put(row, CLOCK, number, value)
            running.wait()
        return checkpoint

    def restarts(checkpoint: Path) -> None:
        ways: tuple[tuple[Row, Command], ...] = (
            (restart, setting.restarted(RANKS, checkpoint)),
            (by_command, [setting.tools.manapy, "restart", checkpoint]),
        )
        for number in range(setting.rounds):
            setting.progress(0.5 + number / setting.rounds / 2, "restarts of a small program")
            before = _start(setting, "0")
            for row, words in ways:
                put(row, NATIVE, number, before)
                put(row, CLOCK, number, first_step(setting, job, words))

    if (checkpoint := _guarded(checkpoints, whole)) is not None:
        _guarded(functools.partial(restarts, checkpoint), restart)
    return rows.all()


def large(setting: Setting) -> list[Row]:
    """Ranks full of random bytes, against dd."""
    rows = Rows("large")
    title = f"{RANKS} × {setting.megabytes} MB: "
    parallel = rows.row(title + "checkpoint : dd, both files at once", "s", baseline="dd, fsync", goal="≤ 1.11 ×")
    serial = rows.row(title + "checkpoint : dd, one after the other", "s", baseline="dd, fsync", goal="≤ 1.11 ×")
    write = rows.row(title + "  of it: writing (slowest rank)", "s")
    stands, published = (
        rows.row(title + f"checkpoint beside the program: {name}", unit, goal=goal)
        for name, unit, goal in (("it stands", "ms", "≤ 50 ms"), ("until published", "s", ""))
    )
    size = rows.row(title + "image size : data", "MB", baseline="data")
    cached = rows.row(title + "restart, images in the page cache", "s", baseline="native start")
    cold = rows.row(
        title + "restart, images not in the page cache : native start + dd reading",
        "s",
        baseline="start + dd",
        goal="≤ 1.11 ×",
    )
    job = setting.fresh("large")
    rounds = max(setting.rounds // 2, 1)
    data = str(setting.megabytes)

    def checkpoints() -> Path:
        program = setting.launched(CLOCK, RANKS, job, *STANDING, setting.program("steps"), data, SECONDS)
        with stepping(setting, program, job) as running:
            for number in range(rounds):
                setting.progress(number / rounds / 2, "checkpoints of a large program")
                seconds, checkpoint = _checkpoint(setting, job, last=number == rounds - 1)
                written = images_of(checkpoint)
                put(parallel, NATIVE, number, copied(setting, written))
                put(serial, NATIVE, number, sum(copied(setting, [image]) for image in written))
                put(parallel, CLOCK, number, seconds)
                put(serial, CLOCK, number, seconds)
                put(write, CLOCK, number, _writing(checkpoint))
                put(size, NATIVE, number, RANKS * setting.megabytes)
                put(size, CLOCK, number, sum(image.stat().st_size for image in images_of(checkpoint)) / 1e6)
                if number < rounds - 1:
                    setting.run([setting.tools.manapy, "prune", job, "--keep", "1"])
            running.wait()
        return checkpoint

    def restarts(checkpoint: Path) -> None:
        command = setting.restarted(RANKS, checkpoint)
        for number in range(rounds):
            setting.progress(0.5 + number / rounds / 2, "restarts of a large program")
            before = _start(setting, "0")
            put(cached, NATIVE, number, before)
            put(cached, CLOCK, number, first_step(setting, job, command))
            _forget(checkpoint)
            reading = setting.together(
                [["dd", f"if={image}", "of=/dev/null", "bs=8M"] for image in images_of(checkpoint)]
            )
            _forget(checkpoint)
            put(cold, NATIVE, number, before + reading)
            put(cold, CLOCK, number, first_step(setting, job, command))

    def beside() -> None:
        job = setting.fresh("beside")
        program = setting.launched(CLOCK, RANKS, job, *BESIDE, setting.program("steps"), data, SECONDS)
        with stepping(setting, program, job):
            for number in range(rounds):
                setting.progress(number / rounds, "checkpoints beside a large program")
                remark = json.loads(setting.run([setting.tools.manapy, "checkpoint", job, "--json"]))["remark"]
                times = REMARK.search(remark)
                if times is None or "written while" in remark:
                    raise BenchError(f"not written beside the program: {remark or 'no remark'}")
                put(stands, CLOCK, number, float(times[1]))
                put(published, CLOCK, number, float(times[2]))
                if number < rounds - 1:
                    setting.run([setting.tools.manapy, "prune", job, "--keep", "1"])

    if (checkpoint := _guarded(checkpoints, parallel)) is not None:
        _guarded(functools.partial(restarts, checkpoint), cached)
    _guarded(beside, stands)
    return rows.all()


def by_size(setting: Setting) -> list[Row]:
    """Figure 9: checkpoints at random moments and restarts of images of several sizes, under both protocols."""
    rows = Rows("sizes")
    rounds = max(setting.rounds // 2, 1)
    moments = random.Random(1)
    sizes = dict.fromkeys(max(int(part * setting.megabytes), 1) for part in PARTS)
    steps = [(protocol, megabytes) for megabytes in sizes for protocol in (TWO_PHASE, CLOCK)]
    for i, (protocol, megabytes) in enumerate(steps):
        setting.progress(i / len(steps), f"{megabytes} MB a rank, {protocol}")
        checkpoint_row, restart_row, size_row = (
            rows.row(f"{RANKS} × {megabytes} MB: {what}", unit)
            for what, unit in (("checkpoint", "s"), ("restart", "s"), ("images", "MB"))
        )
        job = setting.fresh("sizes")
        words: list[str | Path] = [*STANDING, setting.program("steps"), str(megabytes), SECONDS]
        program = setting.launched(protocol, RANKS, job, *words)

        def one_size() -> None:
            with stepping(setting, program, job) as running:
                for number in range(rounds):
                    time.sleep(moments.uniform(0, 0.05))
                    seconds, checkpoint = _checkpoint(setting, job, last=number == rounds - 1)
                    put(checkpoint_row, protocol, number, seconds)
                    put(size_row, protocol, number, sum(image.stat().st_size for image in images_of(checkpoint)) / 1e6)
                    setting.run([setting.tools.manapy, "prune", job, "--keep", "1"])
                running.wait()
            for number in range(rounds):
                put(restart_row, protocol, number, first_step(setting, job, setting.restarted(RANKS, job)))

        _guarded(one_size, checkpoint_row, protocol)
        for image in job.glob("*/rank-*.img"):
            image.unlink()
    return rows.all()


def put(row: Row, variant: str, number: int, value: float) -> None:
    """Add the sample of round `number`."""
    row.samples.setdefault(variant, {})[number] = value


def _guarded(measure: Callable[[], T], row: Row, variant: str = CLOCK) -> T | None:
    """Returns the result. If a command fails, the row reports it."""
    try:
        return measure()
    except BenchError as error:
        row.failures[variant] = str(error)
        return None


def _checkpoint(setting: Setting, job: Path, last: bool) -> tuple[float, Path]:
    then = "exit" if last else "continue"
    seconds = setting.timed([setting.tools.manapy, "checkpoint", job, "--then", then])
    return seconds, (job / "latest").resolve()


def _logged(job: Path) -> tuple[float, float]:
    """Times of the last checkpoint in the coordinator's log: seconds to the publication and to the safe state."""
    found = PUBLISHED.findall((job / "coordinator.log").read_text())
    return float(found[-1][0]), float(found[-1][1])


def _writing(checkpoint: Path) -> float:
    """Seconds of the slowest rank."""
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    return max(float(entry["seconds"]) for entry in manifest["ranks"])


def images_of(checkpoint: Path) -> list[Path]:
    """Return the images of a job on one host."""
    return sorted(checkpoint.glob("rank-*.img"))


def _start(setting: Setting, data: str) -> float:
    return first_step(setting, None, setting.native(RANKS, setting.program("steps"), data, SECONDS))


def first_step(setting: Setting, job: Path | None, command: Command) -> float:
    """Seconds from a command to the first step of the program."""
    with stepping(setting, command, job) as running:
        return running.started


def copied(setting: Setting, files: Sequence[Path]) -> float:
    """Seconds that dd takes to copy files at the same time, with fsync."""
    copies = [setting.work / f"{number}.copy" for number in range(len(files))]
    pairs = zip(files, copies, strict=True)
    try:
        return setting.together([["dd", f"if={old}", f"of={new}", "bs=8M", "conv=fsync"] for old, new in pairs])
    finally:
        for copy in copies:
            copy.unlink(missing_ok=True)


def _forget(checkpoint: Path) -> None:
    """Drop the images from the page cache: the pages are clean, because the images were synced."""
    for image in images_of(checkpoint):
        fd = os.open(image, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
