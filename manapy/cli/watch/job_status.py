"""The status of a job as `manapy status` prints it."""

from __future__ import annotations

import time
from typing import Any

from ...core.units import ago, size
from ..shared.output import Output


def show(status: dict[str, Any], out: Output) -> None:
    """Print the status."""
    protocol = "" if status["protocol"] == "cc" else f", protocol {status['protocol']}"
    out.line(f"job {status['id']} in {status['dir']}: {status['state']}, {status['size']} ranks{protocol}")
    rows = [
        (r["rank"], r["host"], r["pid"], r["state"], r.get("waits_for") or "", r.get("program") or "")
        for r in status["ranks"]
    ]
    out.table(("rank", "host", "pid", "state", "waits for", "program"), rows)
    for text in status.get("waiting", []):
        out.line(text)
    if status["checkpoint_dir"] != status["dir"]:
        out.line(f"checkpoints go to {status['checkpoint_dir']}")
    if last := status.get("last_checkpoint"):
        out.line(f"last checkpoint {last['path']}, {ago(time.time() - last['time'])} ago, {size(last['bytes'])}")
    else:
        out.line("no checkpoint yet")
