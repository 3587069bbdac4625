"""What a checkpoint costs more if each rank is a tree of four processes: a script, two helpers of it and the MPI
program, against the MPI program alone.

Both kinds of jobs alternate. In each run the first checkpoint is not measured: it is the one that finds everything for
the first time.
"""

from __future__ import annotations

import json
import shlex

from ..shared.commands import BenchError, Setting, stepping
from ..shared.samples import CLOCK, NATIVE, Row, Rows
from .images import RANKS, SECONDS, put

HELPERS = f"timeout {SECONDS} sleep {SECONDS}"  # two processes


def trees(setting: Setting) -> list[Row]:
    """The time of a checkpoint, as the user sees it, and how long the job is paused for it."""
    rows = Rows("trees")
    baseline = "one process"
    command, stands = (
        rows.row(f"four processes a rank: {what}", "ms", baseline=baseline, goal=goal)
        for what, goal in (("checkpoint, command to return", "≤ +30 ms"), ("the job stands", ""))
    )
    for number in range(setting.rounds):
        for i, variant in enumerate((NATIVE, CLOCK)):
            setting.progress((number + i / 2) / setting.rounds, f"checkpoints of {'a tree' if i else 'one process'}")
            try:
                seconds, stood = _measure(setting, tree=variant == CLOCK)
            except BenchError as error:
                command.failures[variant] = str(error)
                return rows.all()
            put(command, variant, number, 1e3 * seconds)
            put(stands, variant, number, 1e3 * stood)
    return rows.all()


def _measure(setting: Setting, *, tree: bool) -> tuple[float, float]:
    job, program = setting.fresh("trees"), [str(setting.program("steps")), "0", SECONDS]
    words = ["sh", "-c", f"{HELPERS} & {shlex.join(program)}; kill $!"] if tree else program
    with stepping(setting, setting.launched(CLOCK, RANKS, job, *words), job) as running:
        setting.run([setting.tools.manapy, "checkpoint", job])
        status = json.loads(setting.run([setting.tools.manapy, "status", job, "--json"]))
        found = [len(rank["processes"] or ()) for rank in status["ranks"]]
        if found != [4 * tree] * RANKS:
            raise BenchError(f"the ranks have {found} processes")
        seconds = setting.timed([setting.tools.manapy, "checkpoint", job])
        status = json.loads(setting.run([setting.tools.manapy, "status", job, "--json"]))
        setting.run([setting.tools.manapy, "checkpoint", job, "--then", "exit"])
        running.wait()
    return seconds, float(status["stood"])
