"""A network card fails under a program of the field (perftest's ib_write_bw, from host a to host b), which does not
notice. tools/demo shows it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from . import shift
from .image import missing
from .machine import VM, GuestProcess
from .pairs import Pair

PROGRAM = "ib_write_bw"
PORT = 18515  # perftest's own
ENDLESS = ("-F", "-x", "1", "-D", "1", "--run_infinitely")


def lacking() -> str | None:
    """Why the failure cannot be shown here; None if it can."""
    if reason := missing():
        return reason
    if shutil.which(PROGRAM) is None:
        return f"no {PROGRAM} (apt install perftest)"
    return None if shift.LIBRARY.exists() else "manapy was built without libibverbs-dev"


def fail_and_repair(vm: VM, manapy: Path = shift.MANAPY) -> Iterator[str]:
    """Yields a line for each step that was seen. Raises VMError if the program notices anything."""

    def start(device: str, *peer: str) -> GuestProcess:
        inside = shift.inside(job="card", manapy=manapy)
        return vm.start([*inside, PROGRAM, *ENDLESS, "-d", device, *peer], env={"MANAPY_SHIFT_VERBOSE": "1"})

    server = start("rxb0")
    vm.listening(PORT)
    pair = Pair(server, start("rxa0", "127.0.0.1"))
    shift.wait_event(pair, "protected")
    vm.cut(0)
    shift.wait_event(pair, "fallback")
    _wait_for_traffic(vm, "rxa1")
    yield "its switch fails: the traffic goes on over the second card (rxa0 -> rxa1)"
    vm.repair(0)
    shift.wait_event(pair, "return")
    _wait_for_traffic(vm, "rxa0")
    yield "its switch works again: the traffic is back on the first card"


def _wait_for_traffic(vm: VM, device: str) -> None:
    """Wait until the device has sent some more packets."""
    counter = f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts"
    enough = vm.counter(device, "sent_pkts") + 100
    vm.run(f"until [ $(cat {counter}) -gt {enough} ]; do sleep 0.1; done", check=True)
