"""Checkpoint and restart: times as the user sees them, and image size.

A checkpoint's time is that of the command `manapy checkpoint`. A restart's is the time from the command to the first step of the
program, against the same program's native time from mpirun to its first step: the difference is what a restart costs beyond
mpirun's own start. Large images are compared with dd of the same bytes to the same file system, with fsync, one file after the
other and both at once, as the two ranks write.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from commands import BIN, Setting, launched, native, run, stepping, timed, together
from samples import Row

RANKS = 2
SECONDS = "3600"  # the job is stopped long before
PUBLISHED = re.compile(r"after ([0-9.]+) s \(([0-9.]+) s to a safe moment\)")


def small(setting: Setting) -> list[Row]:
    """A program without data of its own."""
    rows = {
        "whole": Row("small program", "checkpoint, command to return", "s", goal="≤ 0.1 s"),
        "safe": Row("small program", "  of it: to a safe state", "s"),
        "write": Row("small program", "  of it: writing (slowest rank)", "s"),
        "publish": Row("small program", "  of it: stop, drain, publish", "s"),
        "command": Row("small program", "  of it: command, connection, resume", "s"),
        "restart": Row("small program", "restart (mpirun manapy-restart)", "s", baseline="native start", goal="≤ +0.3 s"),
        "restart command": Row("small program", "restart (manapy restart)", "s", baseline="native start"),
    }
    job = setting.fresh("small")
    with stepping(launched(RANKS, job, setting.program("steps"), "0", SECONDS), setting.work, job) as running:
        for pair in range(setting.pairs):
            seconds, checkpoint = _checkpoint(job, last=pair == setting.pairs - 1)
            whole, safe = _logged(job)
            write = max(entry["seconds"] for entry in _manifest(checkpoint)["ranks"])
            rows["whole"].add(None, seconds)
            rows["safe"].add(None, safe)
            rows["write"].add(None, write)
            rows["publish"].add(None, whole - safe - write)
            rows["command"].add(None, seconds - whole)
        running.wait()
    for _ in range(setting.pairs):
        before = _start(setting, "0")
        rows["restart"].add(before, _restart(setting, job, native(RANKS, BIN / "manapy-restart", checkpoint)))
        rows["restart command"].add(before, _restart(setting, job, [BIN / "manapy", "restart", checkpoint]))
    return list(rows.values())


def large(setting: Setting) -> list[Row]:
    """Ranks full of random bytes."""
    title = f"{RANKS} × {setting.megabytes} MB"
    parallel = Row(title, "checkpoint : dd, both files at once", "s", baseline="dd, fsync", goal="≤ 1.11 ×")
    serial = Row(title, "checkpoint : dd, one after the other", "s", baseline="dd, fsync", goal="≤ 1.11 ×")
    write = Row(title, "  of it: writing (slowest rank)", "s")
    size = Row(title, "image size : data", "MB", baseline="data")
    cached = Row(title, "restart, images in the page cache", "s", baseline="native start")
    cold = Row(title, "restart, images not in the page cache : native start + dd reading", "s", baseline="start + dd", goal="≤ 1.11 ×")
    job = setting.fresh("large")
    pairs = max(setting.pairs // 2, 2)
    data = str(setting.megabytes)
    with stepping(launched(RANKS, job, setting.program("steps"), data, SECONDS), setting.work, job) as running:
        for pair in range(pairs):
            seconds, checkpoint = _checkpoint(job, last=pair == pairs - 1)
            copies = [[f"if={image}", f"of={setting.work / image.name}.copy", "bs=8M", "conv=fsync"] for image in _images(checkpoint)]
            parallel.add(_dd_together(setting, copies), seconds)
            serial.add(sum(_dd_together(setting, [copy]) for copy in copies), seconds)
            write.add(None, max(entry["seconds"] for entry in _manifest(checkpoint)["ranks"]))
            size.add(RANKS * setting.megabytes, sum(image.stat().st_size for image in _images(checkpoint)) / 1e6)
            if pair < pairs - 1:
                run([BIN / "manapy", "prune", job, "--keep", "1"])
        running.wait()
    for _ in range(pairs):
        command = native(RANKS, BIN / "manapy-restart", checkpoint)
        before = _start(setting, "0")
        cached.add(before, _restart(setting, job, command))
        _forget(checkpoint)
        reading = together([["dd", f"if={image}", "of=/dev/null", "bs=8M"] for image in _images(checkpoint)])
        _forget(checkpoint)
        cold.add(before + reading, _restart(setting, job, command))
    return [parallel, serial, write, size, cached, cold]


def _checkpoint(job: Path, last: bool) -> tuple[float, Path]:
    then = "exit" if last else "continue"
    seconds = timed([BIN / "manapy", "checkpoint", job, "--then", then])
    return seconds, (job / "latest").resolve()


def _logged(job: Path) -> tuple[float, float]:
    """What the coordinator says of the last checkpoint: seconds to the publication and to the safe state."""
    found = PUBLISHED.findall((job / "coordinator.log").read_text())
    return float(found[-1][0]), float(found[-1][1])


def _manifest(checkpoint: Path) -> dict[str, list[dict[str, float]]]:
    return dict(json.loads((checkpoint / "manifest.json").read_bytes()))


def _images(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.glob("rank-*.img"))


def _start(setting: Setting, data: str) -> float:
    with stepping(native(RANKS, setting.program("steps"), data, SECONDS), setting.work, None) as running:
        return running.started


def _restart(setting: Setting, job: Path, command: list[str | Path]) -> float:
    with stepping(command, setting.work, job) as running:
        return running.started


def _dd_together(setting: Setting, copies: list[list[str]]) -> float:
    seconds = together([["dd", *copy] for copy in copies])
    for copy in setting.work.glob("*.copy"):
        copy.unlink()
    return seconds


def _forget(checkpoint: Path) -> None:
    """Out of the page cache: the pages are clean, since the images were synced."""
    for image in _images(checkpoint):
        fd = os.open(image, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
