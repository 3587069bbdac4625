"""Decides whether a chain goes on, from its history alone, before each attempt and after each crash."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ..ckpt.store import levels, publish
from . import steps
from .record import Chain, Event

# events that only a running attempt records
SIGNS = ("attempt", "step", "checkpoint", "failed", "skipped", "verdict", "withdrawn", "hung", "slow", "ending")

FAILED = ("crashed", "hung")  # ends of attempts that may come again at once

# An attempt with so many checkpoints has passed the place of the last crash: a program that crashes at a fixed place
# can take the last checkpoint before this place at most once more.
RECOVERED = 2


@dataclass(frozen=True)
class Limits:
    """When a chain gives up.

    ``restarts``: attempts after the first, None: no limit; ``budget``: seconds of all attempts together; ``crashes``:
    crashes in a row (RECOVERED); ``stuck``: attempts in a row without progress, if not all of them crashed.
    """

    restarts: int | None = None
    budget: float | None = None
    crashes: int = 3
    stuck: int = 2


def used(chain: Chain, now: float | None = None) -> float:
    """Seconds of all attempts so far."""
    total = 0.0
    for number in range(1, chain.attempts() + 1):
        begin, end = span(chain, number, now)
        total += end - begin
    return total


def span(chain: Chain, attempt: int, now: float | None = None) -> tuple[float, float]:
    """Begin and end of an attempt. Without a recorded end, it is the last sign of life; for the running attempt,
    now."""
    events = chain.events(attempt=attempt)
    begin = float(events[0]["time"])
    end = next((event for event in events if event["event"] == "end"), None)
    if end is not None and end["how"] != "lost" and not end.get("late"):
        return begin, float(end["time"])
    if end is None and attempt == chain.attempts():
        return begin, time.time() if now is None else now
    return begin, float([event for event in events if event["event"] in SIGNS][-1]["time"])


def lost(chain: Chain) -> Event | None:
    """If the last attempt has ended without a record (killed at its limit, its node lost), record that. If it was being
    ended early, it was taken, and did not get its time."""
    last = chain.attempts()
    if last == 0 or chain.events("end", last):
        return None
    how, reason = "lost", "it ended without a record: it was killed at its limit, or its first node was lost"
    for ending in chain.events("ending", last):
        how, reason = "taken", f"{ending['reason']}, and it was killed before it was saved"
    return chain.append("end", last, how=how, code=0, reason=reason, late=True)


def _taken(chain: Chain, attempt: int) -> int:
    """How many checkpoints an attempt took: by the chain, --interval of manapy-launch, the program or the user. Those
    of the chain count even after they were pruned."""
    return max(len(chain.events("checkpoint", attempt)), len(_there(chain, attempt)))


def _there(chain: Chain, attempt: int) -> list[publish.Checkpoint]:
    """The checkpoints of an attempt that exist."""
    begin, end = span(chain, attempt)
    found = [each for step in chain.steps(attempt) for each in publish.checkpoints(Path(step["dir"]))]
    return [each for each in found if begin <= each.manifest.time <= end]


def _only_local(chain: Chain, attempt: int) -> bool:
    """Has none of an attempt's checkpoints reached the job directory, although they are to be copied there? Others may
    continue the same program on its nodes, but perhaps the next attempt has other nodes."""
    there = _there(chain, attempt)
    return bool(there) and all(levels.awaits_copy(each.manifest.record) for each in there)


def came_further(chain: Chain, attempt: int) -> bool:
    """Has an attempt made progress: a new checkpoint, or a finished step?

    Also true if the attempt did not get the time that it was promised, or was stopped by the user.
    """
    if any(end["how"] in ("yielded", "taken", "stopped") for end in chain.events("end", attempt)):
        return True
    if _taken(chain, attempt) and not _only_local(chain, attempt):
        return True
    return any(step["verdict"] != "done" and steps.fate_of(chain, step).kind == "done" for step in chain.steps(attempt))


def unfinished(chain: Chain, attempt: int) -> str:
    """A step that began in an earlier attempt and has not ended by itself since; empty if there is none.

    If the script fails then, the cause is outside (for example a node that does not answer).
    """
    for step in chain.steps():
        if step["attempt"] < attempt and steps.fate_of(chain, step).kind != "done":
            return f"step {step['step']}"
    return ""


def hangs_again(chain: Chain) -> str:
    """If the last two attempts hung at the same place of the program, the verdict, with its evidence; else empty."""
    ran = chain.attempts()
    last = [chain.events("hung", number)[-1:] for number in (ran - 1, ran)]
    if not all(last) or not last[0][0]["place"] or last[0][0]["place"] != last[1][0]["place"]:
        return ""
    return f"{last[1][0]['sentence']} (evidence: {last[0][0]['evidence']} and {last[1][0]['evidence']})"


def failures_in_a_row(chain: Chain, enough: int = RECOVERED) -> int:
    """How many attempts, up to the last one, failed before they had that many checkpoints."""
    ends = chain.events("end")
    number = 0
    while (
        number < len(ends)
        and ends[-1 - number]["how"] in FAILED
        and _taken(chain, ends[-1 - number]["attempt"]) < enough
    ):
        number += 1
    return number


def refusal(chain: Chain, limits: Limits) -> str:
    """Why no further attempt is allowed; empty if one is. Call this before the attempt's event is recorded."""
    ran = chain.attempts()
    if limits.restarts is not None and ran > limits.restarts:
        return f"it was restarted {ran - 1} times, the maximum (--max-restarts {limits.restarts})"
    if limits.budget is not None and used(chain) >= limits.budget:
        return f"its attempts took {used(chain):.0f} s together, the whole budget (--budget)"
    ends = chain.events("end")
    in_a_row = failures_in_a_row(chain)
    if in_a_row >= limits.crashes:
        hung = any(end["how"] == "hung" for end in ends[-in_a_row:])
        return (
            f"it crashed {'or hung ' * hung}{in_a_row} times in a row (--max-crashes {limits.crashes}); last reason: "
            f"{ends[-1]['reason']}"
        )
    if place := hangs_again(chain):
        return f"it hung twice at the same place of the program: {place}"
    last = range(max(ran - limits.stuck, 0) + 1, ran + 1)
    failed = all(end["how"] in FAILED for end in ends[-limits.stuck :])  # limited by ``crashes``
    if ran >= limits.stuck and not failed and not any(came_further(chain, number) for number in last):
        why = ends[-1]["reason"] if ends else ""
        taken = any(_taken(chain, number) for number in last)
        return (
            f"no progress in {limits.stuck} attempts in a row: no checkpoint was "
            f"{'copied to the job directory' if taken else 'taken'} and no step ended{f' ({why})' if why else ''}"
        )
    return ""
