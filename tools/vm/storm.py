"""Random failures and repairs of rails, from a seed, under traffic that must continue.

    storm = Storm(vm, seed=7, rails=(0, 1))
    storm.rage(pair, failures=200)

Invariants
 1. Traffic determines the times: after each failure and each repair the next step waits until both sides have received
    more messages. Only a short random delay is timed, so that failures also occur after more than the first message.
 2. At most one of the rails is cut at a time (`together`: at most so many), so one always remains.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from .machine import VM, Cut, VMDied, VMError
from .pairs import Pair

log = logging.getLogger(__name__)


@dataclass
class Storm:
    """`messages`: at most so many between two steps. `delay`: at most so many seconds after them. `hows`: ways of
    failing. on_step: called with the number of failures so far, and the step. steps: the steps so far, one line
    each."""

    vm: VM
    seed: int
    rails: Sequence[int] = (0, 1)
    hows: Sequence[Cut] = get_args(Cut)
    messages: int = 50
    delay: float = 0.3
    together: int = 1
    on_step: Callable[[int, str], None] = lambda made, text: None
    steps: list[str] = field(default_factory=list)

    def rage(self, pair: Pair, failures: int) -> None:
        """Cut and repair until there have been so many failures. At the end all rails work. Raises VMError, with the
        steps so far, if the traffic stops."""
        if self.together >= len(self.rails):
            raise ValueError("one rail must remain")
        dice = random.Random(self.seed)
        cut: list[int] = []
        made = 0
        while made < failures or cut:
            if cut and (made == failures or len(cut) == self.together or dice.random() < 0.5):
                rail = cut.pop(dice.randrange(len(cut)))
                self._step(made, f"repair {rail}")
                self.vm.repair(rail)
            else:
                rail = dice.choice([r for r in self.rails if r not in cut])
                how, host = dice.choice(self.hows), dice.choice(["a", "b", None])
                cut.append(rail)
                made += 1
                self._step(made, f"failure {made}: {how} of rail {rail}, host {host or 'a and b'}")
                self.vm.cut(rail, host, how=how)
            try:
                pair.wait_received(dice.randint(1, self.messages), since=pair.received())
            except VMDied:
                raise
            except VMError as error:
                raise VMError("\n".join([f"seed {self.seed}", *self.steps[-20:], str(error)])) from None
            time.sleep(dice.uniform(0, self.delay))

    def _step(self, made: int, text: str) -> None:
        log.info("%s", text)
        self.on_step(made, text)
        self.steps.append(text)
