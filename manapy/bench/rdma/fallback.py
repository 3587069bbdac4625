"""The duration of a fallback and of each of its steps, as SHIFT reports them (MANAPY_SHIFT_VERBOSE; shift_times_t of
lowerhalf/rdma/objects/objects.h).

One side sends messages, the other sends only a counter of consumed messages: the sender and receiver of SHIFT's
paper (manapy/rdma/guard.py). Usually the sender sees the error and the receiver is told. If the receiver was first, its
answer has already arrived (0 ms).
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from ..shared.commands import BenchError, Setting
from ..shared.samples import SHIFT, Row, Rows

COUNTS = {1: 24, 10: 12, 100: 6}  # queue pairs: failovers
PAPER = "SHIFT's paper, 5.1: 2.30 ± 0.34 ms, on RNICs"
TRAFFIC = ("--one-way", "--kinds", "send,imm,write", "--size", "4096", "--cq", "all", "--timeout", "14", "--retry", "6")
# as in the events, each measured from the end of the previous one
PHASES = ("fence", "drain", "copy", "answer", "replay")


def fallback(setting: Setting) -> list[Row]:
    """Milliseconds. One sample per failover: with several queue pairs their median; for the last rows, the time from
    the beginning of the first to the end of the last."""
    rows = Rows("fallback")
    counts = (
        {n: max(2, round(count * setting.scale)) for n, count in COUNTS.items()} if setting.scale >= 0.1 else {1: 2}
    )
    total, done = sum(counts.values()), 0
    for n, failovers in counts.items():
        try:
            with setting.guest.used() as vm:
                pair = _start(setting, vm, n)
                for number in range(failovers):
                    setting.progress(done / total, f"{n} queue pairs, failover {number + 1} of {failovers}")
                    _add(rows, n, number, *_failover(setting, vm, pair, n))
                    done += 1
        except BenchError as error:
            rows.fail(f"{_name(n)}: error to replayed", set(), SHIFT, str(error))
    return rows.all()


def _start(setting: Setting, vm: Any, n: int) -> Any:
    shift, pairs = setting.guest.part("shift"), setting.guest.part("pairs")
    options = ["-n", 10**9, "--progress", 10, "-q", n, *TRAFFIC, *(["--pause", 10] if n > 1 else [])]
    pair = pairs.Pair.start(vm, setting.guest.program("stamps"), *options, env=setting.guest.environment(SHIFT))
    shift.wait_event(pair, "protected", n, timeout=setting.limit)
    return pair


def _failover(
    setting: Setting, vm: Any, pair: Any, n: int
) -> tuple[float, list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """When rail 0 was cut, in ns of the machine's clock; the sender's and the receiver's fallbacks, and the sender's
    first completions. Everything is back to normal when it returns."""
    shift = setting.guest.part("shift")
    before = [shift.count(process, "fallback") for process in (pair.client, pair.server)]
    returns = max(shift.count(process, "return") for process in pair.both)
    flowing = shift.count(pair.client, "flowing")
    cut = vm.cut(0) * 1e9
    shift.wait_event(pair, "fallback", max(before) + n, timeout=setting.limit)
    _received_more(pair)
    vm.repair(0)
    shift.wait_event(pair, "return", returns + n, timeout=setting.limit)
    _received_more(pair)
    sender, receiver = (
        shift.events(process, "fallback")[start:]
        for process, start in zip((pair.client, pair.server), before, strict=True)
    )
    firsts = [event for event in shift.events(pair.client, "flowing")[flowing:] if event["device"] != "rxa0"]
    return cut, sender, receiver, firsts


def _received_more(pair: Any) -> None:
    target = pair.received()[0] + 20
    pair.server.wait_for(lambda _: pair.received()[0] >= target)
    time.sleep(0.1)


def _add(
    rows: Rows,
    n: int,
    number: int,
    cut: float,
    sender: list[dict[str, Any]],
    receiver: list[dict[str, Any]],
    firsts: list[dict[str, Any]],
) -> None:
    def row(what: str, ns: float, goal: str = "") -> None:
        rows.add(f"{_name(n)}: {what}", "ms", SHIFT, number, ns / 1e6, goal)

    middle = statistics.median
    begun = min(event["begun"] for event in sender)
    row("detect: failure to error", max(begun - cut, 0))
    for phase in PHASES:
        row(f"{phase}", middle(event["phases"][phase] for event in sender))
    row(
        "receiver: told to its answer",
        middle(sum(event["phases"][phase] for phase in PHASES[:3]) for event in receiver),
    )
    row("error to replayed", middle(sum(event["phases"].values()) for event in sender), PAPER)
    row("error to first completion", middle(event["after"] for event in firsts), PAPER)
    if n > 1:
        row(
            "first error to last replayed",
            max(event["begun"] + sum(event["phases"].values()) for event in sender) - begun,
        )


def _name(n: int) -> str:
    return f"{n} queue pair{'s' if n > 1 else ''}"
