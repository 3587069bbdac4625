"""Healthy jobs that look as if something was wrong with them, under `manapy run`: none may be ended.

They write files with fsync; one rank is four times as slow as the others; one computes for longer than the patience
while the others wait; there are four times as many ranks as processors.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from ...chain import record
from ...chain.record import Event
from ..shared.commands import BenchError, Setting, end
from ..shared.samples import MANAPY, Row, Rows

PATIENCE = 3.0  # seconds
BURST = 5.0  # seconds for which one rank computes
FOR_EVER = 10**8  # steps
RANKS = 3
KINDS = {"solver": RANKS, "training": RANKS, "io": RANKS, "imbalanced": RANKS, "bursty": RANKS, "oversubscribed": 0}


def untouched(setting: Setting) -> list[Row]:
    """Each kind for its share of setting.minutes."""
    rows = Rows("untouched")
    seconds = max(60 * setting.minutes / len(KINDS), PATIENCE + 1)
    for number, (kind, ranks) in enumerate(KINDS.items()):
        setting.progress(number / len(KINDS), kind)
        try:
            events = _watched(setting, kind, ranks or 4 * (os.cpu_count() or 1), seconds)
        except BenchError as error:
            rows.row(kind, "").failures[MANAPY] = str(error)
            continue
        count = {name: sum(event["event"] == name for event in events) for name in ("verdict", "withdrawn", "hung")}
        rows.add(f"{kind}: minutes watched", "min", MANAPY, 0, seconds / 60)
        rows.add(f"{kind}: ended because of a verdict", "", MANAPY, 0, count["hung"], "0")
        rows.add(f"{kind}: verdicts said", "", MANAPY, 0, count["verdict"])
        rows.add(f"{kind}: of these withdrawn", "", MANAPY, 0, count["withdrawn"])
    return rows.all()


def _watched(setting: Setting, kind: str, ranks: int, seconds: float) -> list[Event]:
    """The history of a chain that was watched for so long. Raises BenchError if the job did not run until then."""
    chain = setting.fresh("untouched")
    program = setting.tools.sources / "loop" / "work.py"
    work = [setting.tools.python, program, "solver" if kind == "oversubscribed" else kind, "--steps", str(FOR_EVER)]
    command = [
        *(setting.tools.manapy, "run", "--dir", chain, "--patience", f"{PATIENCE}s", "--interval", "20s", "--"),
        *(setting.tools.mpirun, "-n", str(ranks), setting.tools.launch, *work, "--burst", str(BURST)),
    ]
    log = Path(f"{chain}.log")
    with log.open("wb") as stream:
        running = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=setting.work,
            text=True,
        )
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            if running.poll() is not None:
                raise BenchError(f"it ended with {running.returncode}: {log.read_text(errors='replace')[-300:]!r}")
            time.sleep(0.2)
    finally:
        end(running)
    return record.read(chain).events()
