"""A process that has to wait for its processor, because others always compute there."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

# Each is in a session of its own, because sessions share a processor equally (sched(7), autogroup). So many, because
# other tests keep the processors of the other ranks busy.
NEIGHBOURS = 24


@contextlib.contextmanager
def starved(pid: int) -> Iterator[None]:
    """All threads of a process share one processor with endless loops."""
    processor = min(os.sched_getaffinity(pid))
    loop = ["taskset", "--cpu-list", str(processor), "sh", "-c", "while :; do :; done"]
    with contextlib.ExitStack() as neighbours:
        for _ in range(NEIGHBOURS):
            one = neighbours.enter_context(subprocess.Popen(loop, start_new_session=True))
            neighbours.callback(one.kill)
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            os.sched_setaffinity(thread, {processor})
        yield
