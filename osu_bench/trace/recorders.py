"""pipeline.py with another kind of recorder in it, to be compared with manapy's recorder. Each recorder implements only
the idea of a tool; none is that tool.

    mpirun -n 2 python recorders.py profiler --schedule pp=2,micro=8 --iterations 20

profiler    every call and return of a function of Python or C, with its time, kept in memory until the next
            iteration (PyTorch's profiler)
straggler   a barrier after every iteration; the ranks' times for the iteration are gathered; rank 0 prints the
            slowest rank (Megatron's --log-straggler)

textlog.c is a text log. The arguments after the recorder's name are those of pipeline.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from pipeline import Trainer, main

Step = Callable[[Trainer], None]


def profiler(step: Step) -> Step:
    """An iteration whose events are kept."""
    events: list[tuple[int, str, Any]] = []

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        events.append((time.perf_counter_ns(), event, argument if event.startswith("c_") else frame.f_code))

    def profiled(trainer: Trainer) -> None:
        events.clear()
        sys.setprofile(seen)
        try:
            step(trainer)
        finally:
            sys.setprofile(None)

    return profiled


def straggler(step: Step) -> Step:
    """An iteration, after which the ranks compare their times."""

    def compared(trainer: Trainer) -> None:
        began = time.perf_counter()
        step(trainer)
        took = time.perf_counter() - began
        trainer.world.Barrier()
        all_took = trainer.world.gather(took)
        if all_took is not None:
            print(
                f"straggler: rank {all_took.index(max(all_took))} took {max(all_took):.6f} s, the quickest "
                f"{min(all_took):.6f} s",
                flush=True,
            )

    return compared


RECORDERS = {"profiler": profiler, "straggler": straggler}

if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in RECORDERS:
        print(
            f"recorders.py: no recorder '{' '.join(sys.argv[1:2])}' (there are {', '.join(RECORDERS)})", file=sys.stderr
        )
        sys.exit(2)
    Trainer.run = RECORDERS[sys.argv.pop(1)](Trainer.run)  # type: ignore[method-assign]
    main()
