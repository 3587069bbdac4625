"""The results of runs of cases: kept in a file, and printed as a table.

results.json is replaced by rename after each case, so a reader always sees a complete file.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from testlist import Case
from verdict import Outcome, Shown, differs

WAYS = {
    "native": "natively",
    "manapy": "under manapy",
    "restart": "through a checkpoint, SIGKILL and a restart",
}

Found = dict[str, Shown]  # what one case has shown in each way


def restartable(case: Case, found: Found) -> bool:
    """Is a restart useful? Not for programs that end with an error, on purpose or not."""
    passed = all(way in found and found[way].outcome is Outcome.PASSED for way in ("native", "manapy"))
    return passed and not case.result


def complete(case: Case, found: Found, ways: tuple[str, ...]) -> bool:
    """Has the case been run in all ways?"""
    if "native" in found and found["native"].outcome in (Outcome.NOT_BUILT, Outcome.SKIPPED):
        return True
    return {"native", *ways} <= {*found, *(() if restartable(case, found) else ("restart",))}


class Results:
    """The results by case, and the file that keeps them."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        self.found: dict[str, Found] = {}
        if file.exists():
            for name, ways in json.loads(file.read_text()).items():
                self.found[name] = {
                    way: Shown(Outcome(s["outcome"]), s["seconds"], s["detail"]) for way, s in ways.items()
                }

    def add(self, case: Case, found: Found) -> None:
        """Keep the results of a case."""
        with self._lock:
            self.found[case.name] = found
            data = {
                name: {way: dataclasses.asdict(shown) for way, shown in ways.items()}
                for name, ways in self.found.items()
            }
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps(data, indent=1))
            part.rename(self._file)


def differing(cases: list[Case], results: Results) -> Iterator[tuple[Case, str]]:
    """Cases, and the ways in which they differ from the native run."""
    for case in cases:
        found = results.found[case.name]
        for way, shown in found.items():
            if differs(found["native"], shown):
                yield case, way


def not_built(cases: list[Case], results: Results) -> Iterator[str]:
    """A line for each reason, with the programs."""
    natively = [(case.path, results.found[case.name]["native"]) for case in cases]
    failed = [(shown.detail, path) for path, shown in natively if shown.outcome is Outcome.NOT_BUILT]
    for why in dict.fromkeys(detail for detail, _ in failed):
        paths = list(dict.fromkeys(path for detail, path in failed if detail == why))
        yield f"{len(paths)} not built, {why}: {', '.join(paths)}"


def report(cases: list[Case], results: Results, exceptions: Mapping[str, str]) -> tuple[str, bool]:
    """The table and totals; and whether anything differs that `exceptions` (by path) don't explain."""
    lines, unexplained = [], False
    different = list(differing(cases, results))
    if different:
        width = max(len(case.name) for case, _ in different)
        lines.append(f"{'program, ranks, arguments':<{width}}  {'way':<7}  {'native':<8}  shows")
    for case, way in different:
        found = results.found[case.name]
        known = exceptions.get(case.path)
        unexplained |= known is None
        because = f"known: {known}" if known else found[way].detail
        lines.append(f"{case.name:<{width}}  {way:<7}  {found['native'].outcome:<8}  {found[way].outcome}: {because}")
    for way, what in WAYS.items():
        shown = [found[way] for found in (results.found[case.name] for case in cases) if way in found]
        count = collections.Counter(one.outcome for one in shown)
        others = ", ".join(f"{n} {outcome}" for outcome, n in sorted(count.items()) if outcome is not Outcome.PASSED)
        if shown:
            lines.append(f"{count[Outcome.PASSED]} of {len(shown)} pass {what}" + (f" ({others})" if others else ""))
        reasons = collections.Counter(one.detail for one in shown if one.outcome is Outcome.REFUSED)
        lines += [f"{times} checkpoints refused: {reason}" for reason, times in reasons.most_common()]
    lines += list(not_built(cases, results))
    lines.append("they differ" if unexplained else "equal" + (", but for known exceptions" if different else ""))
    return "\n".join(lines), unexplained
