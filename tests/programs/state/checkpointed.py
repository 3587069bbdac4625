"""Frame of the programs state_*.py: each state is a generator that sets it up, yields, and then checks it.

    STATE_GO=FILE python state_KIND.py [NAME...]

All states of a program are set up in one process. It prints "ready" and waits until FILE exists. Meanwhile it is
checkpointed, killed and restarted, or not. Then every state is checked. The last line is "ok", or the failures are
printed before it.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

GO = os.environ["STATE_GO"]


def wait_until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for the action of another thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing has happened"
        time.sleep(0.005)


def main(names: dict[str, Any]) -> None:
    """Run the states of a program: its functions state_NAME."""
    states: dict[str, Callable[[], Iterator[None]]] = {
        name[6:]: f for name, f in names.items() if name.startswith("state_")
    }
    chosen = sys.argv[1:] or list(states)
    running = {name: states[name]() for name in chosen}
    for generator in running.values():
        next(generator)
    print("ready", flush=True)
    while not os.path.exists(GO):
        time.sleep(0.01)
    failed = 0
    for name, generator in running.items():
        try:
            next(generator, None)
        except BaseException:
            failed += 1
            print(f"FAILED {name}:\n{traceback.format_exc()}", flush=True)
    print("ok" if not failed else f"{failed} failed", flush=True)
    sys.exit(failed != 0)
