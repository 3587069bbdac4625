"""manapy keeps MPI jobs alive: transparent checkpoint and restart of unmodified MPI programs.

Programs need none of this: `manapy checkpoint` works from outside. A program can call:

    manapy.checkpoint()      collective: every rank calls it; returns when the checkpoint is published
    manapy.is_restart()      does this process continue from a checkpoint?
    manapy.clock.table()     the collective clock: SEQ and TARGET of every communicator
    manapy.dmtcp             DMTCP's application API, for programs that know it

Outside manapy these functions do nothing and issue a RuntimeWarning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"
__all__ = ["CheckpointError", "__version__", "checkpoint", "clock", "dmtcp", "is_restart"]

_POLL_SECONDS = 0.002


def checkpoint() -> Path | None:
    """Take a checkpoint now; collective over all ranks of the job.

    Returns the path of the published checkpoint, also in a process that was restarted from it (see is_restart). Outside
    manapy: None, with a RuntimeWarning. Raises manapy.CheckpointError if the checkpoint failed; the program can
    continue. Must not be called while another thread of the process holds a lock that a rank needs to make progress.
    """
    import time

    from .core import boundary, warn

    block = boundary.lower()
    if block is None:
        warn.not_launched("checkpoint() did nothing")
        return None
    generation = block.generation
    ticket = boundary.request_checkpoint(block)
    if ticket < 0:
        warn.warn("checkpoint() did nothing: this job has no coordinator")
        return None
    while block.generation == generation:  # a restart replaces the block, and its tickets count from 0 again
        done = boundary.checkpoint_done(block)
        if abs(done) >= ticket:
            if -done == ticket:
                from .core.errors import CheckpointError

                raise CheckpointError("the checkpoint failed; see coordinator.log in the job directory")
            break
        time.sleep(_POLL_SECONDS)
    return _latest(block)


def is_restart() -> bool:
    """Does this process continue from a checkpoint? Outside manapy: False, with a RuntimeWarning."""
    from .core import boundary, warn

    block = boundary.lower()
    if block is None:
        warn.not_launched("is_restart() is False")
        return False
    return bool(block.generation > 0)


def _latest(block: Any) -> Path:
    import os
    from pathlib import Path

    latest = Path(os.fsdecode(block.job_dir)) / "latest"
    if latest.exists():
        return latest.resolve()
    return Path(os.fsdecode(block.checkpoint))


def __getattr__(name: str) -> Any:
    if name == "CheckpointError":
        from .core.errors import CheckpointError

        return CheckpointError
    if name in ("clock", "dmtcp"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
