"""A program and SIGTERM: its effect on the program and on its children, and the program's end.

    mpirun -n N python terminated.py [own]

Prints "ready", then "step K" now and then until STOP exists in the working directory, then "ok". Without `own` it does
not handle SIGTERM, and rank 0 sends it to itself at the end. With `own` it has a handler, which makes STOP.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from steps import WORLD, progress, run

OWN = len(sys.argv) > 1
STOP = Path("STOP")


def child_ends(start: str) -> None:
    """SIGTERM ends children of every kind."""
    if start == "fork":
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
    else:
        pid = subprocess.Popen(
            ["/bin/sleep", "60"], preexec_fn=(lambda: None) if start == "fork and exec" else None
        ).pid
    time.sleep(0.2)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM, start


def check_default() -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if WORLD.rank == 0:
        for start in ("fork", "fork and exec", "spawn"):
            child_ends(start)


def main() -> None:
    if OWN:
        signal.signal(signal.SIGTERM, lambda *_: STOP.touch())
    else:
        check_default()
    if WORLD.rank == 0:
        print("ready", flush=True)
    step, stop = 0, False
    while not stop:
        time.sleep(0.01)
        stop = WORLD.bcast(STOP.exists(), root=0)
        progress(step)
        step += 1
    if not OWN:
        check_default()
        assert signal.signal(signal.SIGTERM, signal.SIG_IGN) == signal.SIG_DFL
        assert signal.signal(signal.SIGTERM, signal.SIG_DFL) == signal.SIG_IGN
    WORLD.Barrier()
    if WORLD.rank == 0:
        print("ok", flush=True)
        if not OWN:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)


run(main)
