"""Interleaved runs of one program: natively, with two-phase commit, with the collective clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...core.units import message_size
from .commands import BenchError, Command, Setting, records
from .samples import Rows

Sample = tuple[str, str, float]  # name, unit, value
Part = tuple[int, int]  # this comparison is the i-th of n of its job


def compare(
    rows: Rows,
    setting: Setting,
    variants: Sequence[str],
    ranks: int,
    program: Command,
    *,
    group: str,
    run: Callable[[str], str] | None = None,
    read: Callable[[str], Iterable[Sample]] | None = None,
    rounds: int | None = None,
    part: Part = (0, 1),
    goals: dict[str, str] | None = None,
) -> None:
    """Run every variant once per round, in alternating order, and add what `read` finds in the output (default: the
    program's JSON lines). `run` returns the output of one variant, if this isn't a program under mpirun.

    A variant that fails is left out of the remaining rounds: its rows give the reason. If the native variant fails,
    there is nothing to compare with, but the others continue.
    """
    count = setting.rounds if rounds is None else rounds
    parse = read or json_lines
    output = run or (lambda variant: setting.variant(variant, ranks, program))
    names: set[str] = set()
    failed: dict[str, str] = {}
    for number in range(count):
        order = variants if number % 2 == 0 else list(reversed(variants))
        for turn, variant in enumerate(order):
            done = (number + turn / len(variants)) / count
            setting.progress((part[0] + done) / part[1], f"{group}, {variant}, {number + 1} of {count}")
            if variant in failed:
                continue
            try:
                for name, unit, value in parse(output(variant)):
                    names.add(name)
                    rows.add(name, unit, variant, number, value, (goals or {}).get(name, ""))
            except BenchError as error:
                failed[variant] = str(error)
    for variant, why in failed.items():
        rows.fail(group, names, variant, why)


def json_lines(output: str, minimum: bool = False) -> Iterable[Sample]:
    """Names with sizes. With `minimum`, each one appears a second time with its smallest batch."""
    for record in records(output):
        name = record["name"] + (f", {message_size(record['bytes'])}" if record["bytes"] else "")
        yield name, record["unit"], record["value"]
        if minimum:
            yield f"{name} (min)", record["unit"], record["min"]
