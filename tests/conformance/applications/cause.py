"""Why a run has no result: one line out of a job's output."""

from __future__ import annotations

import re

from jobs import Job

NOISE = re.compile(
    r"\s*$|\[?-+\]?$|=+\s|\[(mpiexec|proxy)|.*(exited on signal|mpirun noticed|YOUR APPLICATION TERMINATED)"
    r"|.*(BAD TERMINATION|CLEANUP STRINGS|KILLED BY SIGNAL: 9|EXIT CODE: (9|13)\b)|\s+\S+\(.*\) \[0x"
)
WHY = re.compile(r"manapy(-launch|-restart)?: |.*(error|undefined symbol|cannot open|Abort\(|FATAL|SIG[A-Z]{3,4}\b)")
SHOWN = 240  # characters of a cause


def first_line(text: str) -> str:
    """The first line of a text, not too long."""
    return text.splitlines()[0][:SHOWN] if text else ""


def cause(job: Job) -> str:
    """The last line of manapy or of an error, else the last line of the program."""
    lines: list[str] = [line.strip() for line in job.output().splitlines() if not NOISE.match(line)] if job.runs else []
    told = [line for line in lines if WHY.match(line)]
    return (told or lines or ["no output"])[-1][:SHOWN]
