"""manapy keeps MPI jobs alive: transparent checkpoint and restart of unmodified MPI programs.

Programs need none of this: `manapy checkpoint` works from outside. A program can call:

    manapy.checkpoint()      collective: every rank calls it; returns when the checkpoint is published
    manapy.is_restart()      does this process continue from a checkpoint?
    manapy.before_checkpoint, after_checkpoint, after_restart, remove_callback, poll, callbacks_anywhere
                             functions of the program that are called at checkpoints
    manapy.clock.table()     the collective clock: SEQ and TARGET of every communicator
    manapy.dmtcp             DMTCP's application API, for programs that know it

Outside manapy these functions do nothing. checkpoint, is_restart and clock.table issue a RuntimeWarning.

manapy.get_include() is the folder of manapy.h, for C programs.
"""

from __future__ import annotations

import importlib

from .core.records import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from .callbacks import (
        after_checkpoint,
        after_restart,
        before_checkpoint,
        callbacks_anywhere,
        poll,
        remove_callback,
    )

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "__version__",
    "after_checkpoint",
    "after_restart",
    "before_checkpoint",
    "callbacks_anywhere",
    "checkpoint",
    "clock",
    "dmtcp",
    "get_include",
    "is_restart",
    "poll",
    "remove_callback",
]

_POLL_SECONDS = 0.002
_OF_CALLBACKS = (
    "after_checkpoint",
    "after_restart",
    "before_checkpoint",
    "callbacks_anywhere",
    "poll",
    "remove_callback",
)


def checkpoint() -> Path | None:
    """Take a checkpoint now; collective over all ranks of the job.

    Returns the path of the published checkpoint, also in a process that was restarted from it (see is_restart). Outside
    manapy: None, with a RuntimeWarning. Raises manapy.CheckpointError if the checkpoint failed; the program can
    continue. Must not be called while another thread of the process holds a lock that a rank needs to make progress.
    """
    import time

    from .callbacks import poll
    from .core import boundary

    block = boundary.lower()
    if block is None:
        boundary.warn_not_launched("checkpoint() did nothing")
        return None
    generation = block.generation
    ticket = boundary.request_checkpoint(block)
    if ticket < 0:
        boundary.warn("checkpoint() did nothing: this job has no coordinator")
        return None
    while block.generation == generation:  # a restart replaces the block, and its tickets count from 0 again
        done = boundary.checkpoint_done(block)
        if abs(done) >= ticket:
            if -done == ticket:
                from .core.errors import CheckpointError

                raise CheckpointError("the checkpoint failed; see coordinator.log in the job directory")
            break
        poll()
        time.sleep(_POLL_SECONDS)
    return _latest(block)


def is_restart() -> bool:
    """Does this process continue from a checkpoint? Outside manapy: False, with a RuntimeWarning."""
    from .core import boundary

    block = boundary.lower()
    if block is None:
        boundary.warn_not_launched("is_restart() is False")
        return False
    return bool(block.generation > 0)


def get_include() -> str:
    """The folder of manapy.h: `cc -I"$(python -c 'import manapy; print(manapy.get_include())')"`."""
    import os

    return os.path.join(os.path.dirname(__file__), "include")


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
    if name in _OF_CALLBACKS:
        globals()[name] = getattr(importlib.import_module(".callbacks", __name__), name)  # the next look-up is quick
        return globals()[name]
    if name in ("clock", "dmtcp"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
