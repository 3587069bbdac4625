"""What can be measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import apps, images, imb, latency, messages, verbs
from .commands import BenchError, LeftOutError, Setting
from .samples import CLOCK, Row


@dataclass(frozen=True)
class Job:
    """title: for people; seconds: about how long it takes with the default settings on two processors."""

    title: str
    seconds: float
    measure: Callable[[Setting], list[Row]]


JOBS: dict[str, Job] = {
    "calls": Job("one call on one rank, where nothing is waited for", 12, latency.calls),
    "p2p": Job("point-to-point latency", 10, latency.p2p),
    "blocking": Job("latency of blocking collectives (Figure 5 a)", 40, latency.blocking),
    "nonblocking": Job("latency of nonblocking collectives (Figure 5 b)", 25, latency.nonblocking),
    "overlap": Job("overlap of communication and computation (Figure 6)", 45, latency.overlap),
    "python": Job("latency with mpi4py", 70, latency.python),
    "apps": Job("whole programs: rates of calls, run time (Table 1, Figure 7)", 110, apps.rates),
    "scaling": Job("run time over the number of ranks (Figure 8)", 40, apps.scaling),
    "startup": Job("start of a job", 10, apps.startup),
    "small": Job("checkpoint and restart of a small program", 15, images.small),
    "large": Job("checkpoint and restart of a large program, against dd", 70, images.large),
    "sizes": Job("checkpoint and restart time over image size (Figure 9)", 100, images.by_size),
    "messages": Job("messages and rounds of a checkpoint over the number of ranks, in the model", 20, messages.messages),
    "verbs": Job("one data verb through libmanapy_shift.so, over a provider that does nothing", 30, verbs.verbs),
    "imb": Job("the Intel MPI Benchmarks, as Intel built them", 60, imb.imb),
}


def measure(name: str, setting: Setting, left_out: dict[str, str]) -> list[Row]:
    """The rows of one job. If it can't be done here, left_out[name] says why; if it fails as a whole, its one row does."""
    try:
        return JOBS[name].measure(setting)
    except LeftOutError as error:
        left_out[name] = str(error)
        return []
    except BenchError as error:
        return [Row(name, JOBS[name].title, "", failures={CLOCK: str(error)})]
