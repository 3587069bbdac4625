"""The common part of `manapy run` and `manapy slurm`: it runs attempts one after the other, if the limits allow it, and
records them.

Invariants
 1. One supervisor works on a chain at a time; it holds a lock on it.
 2. The history has the begin and the end of each attempt. A missing end is recorded as lost before the next attempt
    begins. The next attempt does not begin while a job of the lost one runs.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from ..core.errors import ManapyError, why
from . import policy, steps
from .attempt import Attempt, Outcome, Policy, Watch
from .lock import BusyError, Lock
from .record import SUPERVISOR_LOCK, Chain

EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h; programs rarely use it
FORCED = "--force: one more attempt in any case"  # in the history
LOCK_WAIT = 40.0  # seconds until a killed supervisor has ended
BEGIN_SECONDS = 60.0  # to record the begin of an attempt, if the disk is full or a server does not answer
ORPHAN_WAIT = 5.0  # seconds until jobs have ended whose attempt has no recorded end


class Supervisor:
    """The supervisor of one chain. ``say`` shows a line to the user. Raises BusyError if another one works on it;
    ``at_once`` False: only take() does."""

    def __init__(
        self, chain: Chain, how: Policy, limits: policy.Limits, say: Callable[[str], None], at_once: bool = True
    ) -> None:
        self.chain = chain
        self.how = how
        self.limits = limits
        self.say = say
        self._lock = Lock(chain.dir / SUPERVISOR_LOCK)
        self._patience, self._taken = LOCK_WAIT, False
        if at_once:
            self.take()

    def take(self) -> None:
        """Take the lock, if this supervisor has not got it yet. After the first BusyError no call waits for another one
        to end. Raises BusyError if it does not; ManapyError, OSError."""
        if self._taken:
            return
        try:
            self._lock.acquire(self._patience)
        except BusyError:
            self._patience = 0.0
            raise
        self._taken = True

    def refusal(self) -> str:
        """Why no further attempt is allowed; empty if one is.

        Raises BusyError if an attempt still runs that has lost its supervisor; ManapyError if the lock was lost.
        """
        if self._lock.lost:
            raise ManapyError(
                f"{self.chain.dir}: another manapy has taken over this chain, because this one was stopped for too long"
            )
        self._await_orphans()
        if (end := policy.lost(self.chain)) is not None:
            self.say(f"the previous attempt: {end['reason']}")
        return policy.refusal(self.chain, self.limits)

    def _await_orphans(self) -> None:
        """Wait for jobs of a supervisor that was killed. Its script and their jobs still run, and must not run
        twice."""
        number = self.chain.attempts()
        if self.chain.events("end", number):
            return
        deadline = time.monotonic() + ORPHAN_WAIT
        while live := [
            run.dir for step in self.chain.steps(number) if (run := steps.current(step)) is not None and run.is_live()
        ]:
            if time.monotonic() > deadline:
                raise BusyError(
                    f"{self.chain.dir}: {live[0]} still runs although its manapy has ended:"
                    f" wait until it ends, or run manapy stop {live[0]}, then continue"
                )
            time.sleep(0.2)

    def attempt(self, identity: str, nodes: Sequence[str], watch: Watch, env: Mapping[str, str]) -> Outcome:
        """Run the chain's command once. ``identity``: of the Slurm job, or empty. Raises ManapyError if its begin
        cannot be recorded: no manapy-launch would start then."""
        number = self.chain.attempts() + 1
        look = watch.look()
        self.chain.append("attempt", number, id=identity, nodes=list(nodes), deadline=look.deadline, output=_output())
        self.chain.ensure(BEGIN_SECONDS)
        outcome = Attempt(self.chain, number, self.chain.record["command"], self.how, watch, self.say, env).run(look)
        if outcome.how == "finished" and outcome.code and (left := policy.unfinished(self.chain, number)):
            outcome = Outcome("crashed", outcome.code, f"exit code {outcome.code}, although {left} is not finished")
        outcome = watch.judge(outcome)
        self.chain.append(
            "end", number, how=outcome.how, code=outcome.code, reason=outcome.reason, noticed=outcome.noticed
        )
        return outcome

    def broken(self, identity: str, error: Exception) -> str:
        """An error that was not expected has ended an attempt, or prevented it. Record that as a crash: the limits hold
        for it, too. Returns a line for the user."""
        number = self.chain.attempts()
        if number == 0 or self.chain.events("end", number):
            number += 1
            self.chain.append("attempt", number, id=identity, nodes=[], deadline=None, output=_output())
        reason = str(error) if isinstance(error, ManapyError) else f"internal error: {error!r}"
        reason = why(error) if isinstance(error, OSError) else reason
        self.chain.append("end", number, how="crashed", code=1, reason=reason, noticed=round(time.time(), 3))
        return reason

    def finish(self, outcome: Outcome) -> int:
        """The chain has ended by itself. Returns its exit code."""
        self.chain.append("finished", self.chain.attempts(), code=outcome.code)
        if not self.chain.events("step"):
            self.say(
                "nothing was saved, because no program was started with manapy-launch:"
                " mpirun -n 4 manapy-launch PROGRAM"
            )
        return outcome.code

    def stop(self, reason: str, again: str) -> None:
        """The chain ends before its program has. ``again``: the command that continues it."""
        self.chain.append("stopped", self.chain.attempts(), reason=reason, again=again)


def _output() -> str:
    """The file of standard output, which the script inherits; empty if it is not a file."""
    with contextlib.suppress(OSError, ValueError):
        if stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode):
            return os.readlink(f"/proc/self/fd/{sys.stdout.fileno()}")
    return ""
