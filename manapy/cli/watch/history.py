"""Show what a chain has done so far: a table of its attempts, and a picture with a timeline."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ...core.units import ago, size
from ..shared import naming
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "chain",
        nargs="?",
        metavar="CHAIN",
        help=f"{naming.CHAIN} (default: the newest chain in this directory)",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help="write the picture to FILE (default: history.png in the chain's directory)",
    )
    parser.add_argument("--no-plot", action="store_true", help="print only the table")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Table, then picture."""
    from ...chain import view

    chain = naming.chain(options.chain)
    rows = view.attempts(chain)
    out.data({**view.summary(chain), "history": [row._asdict() for row in rows]})
    out.line(f"{chain.dir}: {view.state(chain)}")
    table = []
    for row in rows:
        resumed = ", ".join(Path(path).name for path in row.resumed)
        taken = f"{len(row.checkpoints)}" + (f" (+{len(row.failed)} failed)" if row.failed else "")
        last = size(row.checkpoints[-1]["bytes"]) if row.checkpoints else ""
        begin = time.strftime("%m-%d %H:%M:%S", time.localtime(row.begin))
        table.append(
            (
                row.number,
                row.id,
                ",".join(row.nodes),
                begin,
                ago(row.end - row.begin),
                resumed,
                f"{sum(row.recovery.values()):.1f} s" if row.recovery else "",
                taken,
                last,
                row.how,
                row.reason,
            )
        )
    out.table(
        ("attempt", "job", "nodes", "begin", "length", "from", "recovery", "checkpoints", "size", "end", "because"),
        table,
    )
    if not (options.no_plot or options.json or not rows):
        path = options.plot or chain.dir / "history.png"
        try:
            view.draw(chain, path)
        except view.NoMatplotlib as error:
            if options.plot is not None:
                raise
            out.note(f"manapy: {error}")
        else:
            out.line(str(path))
    return 0
