"""What calls cost: one rank in ns, and latency between two ranks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from commands import Setting, launched, native, records, run
from samples import Row

GOALS = {
    "Comm_rank": "≤ +3 ns",
    "Barrier, one rank": "≤ +35 ns",
    "Send to PROC_NULL": "≤ +45 ns",
    "Recv from PROC_NULL": "≤ +45 ns",
    "Isend+Irecv+Waitall, self": "≤ +120 ns",
    "Ibcast+Wait, one rank": "≤ +120 ns",
}


def one_rank(setting: Setting) -> list[Row]:
    """ns per call on one rank; the median and the minimum over the batches of each run."""
    return _compare("one rank", setting, 1, (setting.program("calls"), str(setting.batches)), minimum=True)


def two_ranks(setting: Setting) -> list[Row]:
    """ns per call between two ranks: 4 B, 1 KB, 1 MB."""
    return _compare("two ranks", setting, 2, (setting.program("latency"), str(max(setting.batches // 5, 2))), minimum=False)


def _compare(job: str, setting: Setting, ranks: int, program: Sequence[str | Path], minimum: bool) -> list[Row]:
    rows: dict[str, Row] = {}
    for _ in range(setting.pairs):
        directory = setting.fresh("calls")
        before = records(run(native(ranks, *program)))
        after = records(run(launched(ranks, directory, *program)))
        shutil.rmtree(directory, ignore_errors=True)  # its coordinator may be about to end
        for a, b in zip(before, after, strict=True):
            name = a["name"] + (f", {_size(a['bytes'])}" if ranks > 1 and a["bytes"] else "")
            for kind in ("median", "min") if minimum else ("median",):
                shown = name if kind == "median" else f"{name} (min)"
                row = rows.setdefault(shown, Row(job, shown, "ns", goal=GOALS.get(a["name"], "") if kind == "median" else ""))
                row.add(a[f"{kind}_ns"], b[f"{kind}_ns"])
    return list(rows.values())


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB" if count >= 1 << 10 else f"{count} B"
