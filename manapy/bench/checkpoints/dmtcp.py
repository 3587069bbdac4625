"""Checkpoints of one process without MPI, by manapy and by DMTCP, with and without gzip.

Every installation of DMTCP on PATH is measured, because writing beside the program (--enable-forked-checkpointing) is
chosen when DMTCP is built. The program and the figures are those of ways.py. DMTCP does not fsync its files, manapy
does.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..shared.commands import BenchError, Command, LeftOutError, Setting, stepping
from ..shared.samples import CLOCK, Row, Rows
from ..shared.tools import compile_one
from . import ways
from .images import first_step, images_of, put


@dataclass(frozen=True)
class Case:
    """How the process is started, saved and restarted. job: of manapy, or None; files(): its images."""

    name: str
    launch: Command
    checkpoint: Command
    job: Path | None
    restart: Callable[[], Command]
    files: Callable[[], list[Path]]


def compare(setting: Setting) -> list[Row]:
    """Raises LeftOutError if there is no DMTCP."""
    places = [Path(place) for place in os.get_exec_path() if shutil.which("dmtcp_launch", path=place)]
    if not places:
        raise LeftOutError("dmtcp_launch is not on PATH")
    program = setting.work / "changes-alone"
    compile_one(setting.tools.sources / "checkpoints" / "changes.c", program, "-DALONE")
    rows = Rows("dmtcp")
    rounds = max(setting.rounds // 2, 1)
    makers: list[Callable[[Path, Command], Case]] = [partial(_ours, setting, way) for way in ("standing", "beside")]
    makers += [partial(_theirs, place, zipped) for place in places for zipped in (False, True)]
    for i, make in enumerate(makers):
        work = setting.fresh("dmtcp")
        report = setting.work / f"{work.name}.report"
        case = make(work, [program, str(setting.megabytes), ways.PERCENT, ways.FOREVER, report])
        setting.progress(i / len(makers), case.name)
        try:
            _measure(setting, rows, case, report, rounds)
        except BenchError as error:
            rows.row(f"{case.name}: stands", "ms").failures[CLOCK] = str(error)
        shutil.rmtree(work, ignore_errors=True)
    return rows.all()


def _ours(setting: Setting, way: str, job: Path, program: Command) -> Case:
    tools = setting.tools
    return Case(
        f"manapy, {way}",
        setting.launched(CLOCK, 1, job, *ways.WAYS[way], *program),
        [tools.manapy, "checkpoint", job],
        job,
        lambda: setting.restarted(1, job),
        lambda: images_of((job / "latest").resolve()),
    )


def _theirs(place: Path, zipped: bool, work: Path, program: Command) -> Case:
    work.mkdir()
    port = work / "port"
    coordinator: Command = ["--new-coordinator", "--coord-port", "0", "--port-file", port, "--ckptdir", work]

    def files() -> list[Path]:
        return sorted(work.glob("ckpt_*.dmtcp"))

    return Case(
        f"{place.parent.name}, {'gzip' if zipped else 'no gzip'}",
        [place / "dmtcp_launch", *coordinator, "--gzip" if zipped else "--no-gzip", *program],
        ["sh", "-c", 'exec "$0" --coord-port "$(cat "$1")" --bcheckpoint', place / "dmtcp_command", port],
        None,
        lambda: [place / "dmtcp_restart", *coordinator, *files()],
        files,
    )


def _measure(setting: Setting, rows: Rows, case: Case, report: Path, rounds: int) -> None:
    stands = rows.row(f"{case.name}: stands", "ms")
    written = rows.row(f"{case.name}: until written", "s")
    size = rows.row(f"{case.name}: written", "MB")
    restart = rows.row(f"{case.name}: restart to the first step", "s")
    with stepping(setting, case.launch, case.job):
        setting.run(case.checkpoint)
        for number in range(rounds):
            begin = time.perf_counter()
            _, longest = ways.during(setting, report, case.checkpoint)
            while list(case.files()[0].parent.glob("*.temp")):  # DMTCP writes on beside the program
                if time.perf_counter() - begin > setting.limit:
                    raise BenchError(f"{case.name}: the image is not complete after {setting.limit:.0f} s")
                time.sleep(0.005)
            put(written, CLOCK, number, time.perf_counter() - begin)
            put(stands, CLOCK, number, longest)
            put(size, CLOCK, number, sum(file.stat().st_size for file in case.files()) / 1e6)
    for number in range(rounds):
        put(restart, CLOCK, number, first_step(setting, case.job, case.restart()))
