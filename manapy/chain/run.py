"""Supervision without a scheduler, for `manapy run`: restart after each crash and each hang, until the program ends by
itself.

HYDRA_HOST_FILE gives the hosts to MPICH's mpirun. A host on which a rank died, or which is the cause of a hang, is left
out of the next attempts. It is used again if the others have too few places for the job's ranks; the host that failed
first is used first.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Sequence

from ..core.processes import heeded
from .attempt import AllocationState, Outcome
from .policy import FAILED, failures_in_a_row
from .record import Chain
from .supervisor import EXIT_STOPPED, Supervisor

BACK_OFF_FIRST, BACK_OFF_MAX = 1.0, 60.0  # seconds before the first and the later restarts
EXIT_INTERRUPTED = 130


class UserWatch:
    """The environment of `manapy run`: only the user or --time ends the run. ``asked``: the reason to leave after the
    last signal, or "". ``can_replace``: see attempt.Watch."""

    period = 3600.0

    def __init__(self, deadline: float | None = None, can_replace: Callable[[str], bool] = lambda host: False) -> None:
        self._deadline, self.can_replace = deadline, can_replace
        self.asked = ""

    def look(self, enough: Callable[[], bool] = lambda: False) -> AllocationState:
        """See attempt.Watch."""
        return AllocationState(self._deadline, what="the time of --time")

    def judge(self, outcome: Outcome) -> Outcome:
        """Return the outcome unchanged."""
        return outcome

    def end_remains(self) -> None:
        """Nothing to do: mpirun ends what runs on other hosts."""

    def on_signal(self, number: int) -> str:
        """Leave after any signal."""
        self.asked = _reason(number)
        return self.asked


def supervise(
    supervisor: Supervisor, hosts: Sequence[str], deadline: float | None, back_off: float, force: bool = False
) -> int:
    """Run the chain's command until it has ended. Returns the exit code. ``force``: run it once even beyond the
    limits."""
    bad: list[str] = []
    chain = supervisor.chain
    while True:
        if (why := supervisor.refusal()) and not force:
            again = f"{_again(chain)} --force"
            supervisor.stop(why, again)
            supervisor.say(f"giving up: {why}; one more attempt: {again}")
            return 1
        force = False
        chosen = _choose(hosts, bad, _ranks(chain))
        watch = UserWatch(deadline, lambda host: _is_out(host, _choose(hosts, [*bad, host], _ranks(chain)), hosts))
        outcome = supervisor.attempt("", chosen, watch, _environment(chain, chosen, supervisor.say))
        if outcome.how not in FAILED and not outcome.host:
            return _over(supervisor, outcome)
        if watch.asked:  # it failed while it was saved
            return _over(supervisor, outcome._replace(reason=f"{watch.asked}, and {outcome.reason}"))
        if outcome.host:
            bad = [*(name for name in bad if name != outcome.host), outcome.host]
        idle = failures_in_a_row(chain, enough=1)  # none: the attempt had come further
        pause = min(back_off * 2 ** (idle - 1), BACK_OFF_MAX) if idle else 0.0
        why = f"{outcome.reason}: " * (outcome.how == "crashed")  # the others' reason was said
        supervisor.say(f"{why}starting again{f' in {pause:.0f} s' if pause else ''}")
        if reason := _signal_within(pause):
            return _over(supervisor, Outcome("expired", reason=reason))


def _reason(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def _signal_within(seconds: float) -> str:
    """Wait. If a signal arrives, return the reason to end; else an empty string."""
    signals = heeded()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        got = signal.sigtimedwait(signals, seconds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _reason(got.si_signo) if got is not None else ""


def _over(supervisor: Supervisor, outcome: Outcome) -> int:
    if outcome.how == "finished":
        return supervisor.finish(outcome)
    again = _again(supervisor.chain)
    supervisor.stop(outcome.reason, again)
    if outcome.how == "stopped":
        supervisor.say(f"{outcome.reason}; continue: {again}")
        return EXIT_STOPPED
    state = "saved" if outcome.how in ("left", "yielded") else "the work since the last checkpoint is lost"
    supervisor.say(f"{outcome.reason}: {state}; continue: {again}")
    return EXIT_INTERRUPTED


def _again(chain: Chain) -> str:
    """The command that continues a chain."""
    return shlex.join(["manapy", "run", "--dir", str(chain.dir)])


def _ranks(chain: Chain) -> int:
    """The number of ranks of the largest job so far; at least 1."""
    return max((int(step["ranks"]) for step in chain.steps()), default=1)


def _choose(hosts: Sequence[str], bad: Sequence[str], ranks: int) -> list[str]:
    """The hosts without the bad ones. If the others have too few places for the ranks, bad ones come back, the one that
    failed first (the first in ``bad``) before the others. If all hosts together have too few, one good host is enough.
    A host may be given by its short name and call itself by the long one, or the reverse."""
    left_out = [name.partition(".")[0] for name in bad]
    needed = ranks if sum(map(_places, hosts)) >= ranks else 1
    while True:
        good = [host for host in hosts if host.partition(":")[0].partition(".")[0] not in left_out]
        if not left_out or sum(map(_places, good)) >= needed:
            return good
        del left_out[0]


def _is_out(name: str, chosen: Sequence[str], hosts: Sequence[str]) -> bool:
    """Is this one of the hosts, and not chosen?"""
    short = name.partition(".")[0]
    with_it, without = ([one.partition(":")[0].partition(".")[0] for one in some] for some in (hosts, chosen))
    return short in with_it and short not in without


def _places(host: str) -> int:
    """How many ranks mpirun starts on a host of --hosts without oversubscribing it."""
    number = host.partition(":")[2]
    return int(number) if number.isdigit() else 1


def _environment(chain: Chain, hosts: Sequence[str], say: Callable[[str], None]) -> dict[str, str]:
    env = dict(os.environ)
    if hosts:
        env["HYDRA_HOST_FILE"] = str(chain.place("hosts", "".join(f"{host}\n" for host in hosts), say))
    return env
