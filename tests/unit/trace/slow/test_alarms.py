"""Which slow iterations raise an alarm, and which are explained by a rank's waits for its processor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from manapy.trace.host.runqueue import Delays
from manapy.trace.model.events import Trace
from manapy.trace.model.schedule import parse
from manapy.trace.model.verdict import Cause, Phase, State
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate
from manapy.trace.slow import alarms, slow

SCHEDULE = parse("tp=2,pp=4,dp=2,micro=8")
SHORT = Model(SCHEDULE, iterations=45, forward=0.0026, backward=0.0052, closing=0.0002, optimizer=0.0012)


def trace_of(*faults: Fault, model: Model = SHORT, seed: int = 4) -> Trace:
    trace = simulate(model, faults, seed).trace
    assert trace is not None
    return trace


def waits(trace: Trace, rank: int, since: float = 0.0, until: float = 1.0, share: float = 0.5) -> Delays:
    """Return samples of all ranks every 50 ms. One rank waits `share` of the time between two parts of the trace."""
    begin = int(trace.events["enter"].min()) - 10**9
    moments = np.arange(begin, trace.now + 10**8, 5 * 10**7)
    within = (moments - begin >= since * (trace.now - begin)) & (moments - begin < until * (trace.now - begin))
    return Delays({r: (moments, np.cumsum(within * int(5e7 * share) * (r == rank))) for r in trace.ranks})


def test_what_is_short_is_none_and_what_is_long_is_one_at_once() -> None:
    for seconds, state in ((0.1, State.HEALTHY), (1.0, State.SLOW)):
        trace = trace_of(Fault(Kind.COMPUTE, 5, 30, 3, Phase.BACKWARD, seconds=seconds))
        assert slow.verdicts(trace, SCHEDULE)[0].state is State.SLOW
        (found,) = alarms.verdicts(trace, SCHEDULE)
        assert found.state is state
    assert (found.rank, found.cause, found.iteration, found.micro) == (5, Cause.COMPUTE, 30, 3)


def test_many_that_hit_now_this_rank_and_now_that_are_none() -> None:
    faults = [Fault(Kind.COMPUTE, 7 * i % 16, i, 3, Phase.BACKWARD, seconds=0.04) for i in range(3, 45, 5)]
    trace = trace_of(*faults)
    assert len(slow.verdicts(trace, SCHEDULE)) > 8
    assert [v.state for v in alarms.verdicts(trace, SCHEDULE)] == [State.HEALTHY]


def test_a_rank_that_is_slow_all_the_time_is_one_though_each_iteration_loses_little() -> None:
    model = replace(SHORT, iterations=150)
    (found,) = alarms.verdicts(
        trace_of(*(Fault(Kind.COMPUTE, 5, i, 3, Phase.BACKWARD, seconds=0.06) for i in range(40, 150)), model=model),
        SCHEDULE,
    )
    assert (found.state, found.rank, found.cause) == (State.SLOW, 5, Cause.COMPUTE) and "of the last" in found.sentence
    assert found.share is not None and found.share > 0.1 and found.confidence > 0.9


def test_what_has_passed_is_none_any_more() -> None:
    faults = [Fault(Kind.COMPUTE, 5, i, 3, Phase.BACKWARD, seconds=0.06) for i in range(40, 60)]
    assert alarms.verdicts(trace_of(*faults, model=replace(SHORT, iterations=200)), SCHEDULE)[0].state is State.HEALTHY


def test_a_rank_that_had_to_wait_for_its_processor_is_not_slow_but_starved() -> None:
    trace = trace_of(Fault(Kind.COMPUTE, 5, 30, 3, Phase.BACKWARD, seconds=1.0))
    for judge in (slow.verdicts, alarms.verdicts):
        (found,) = judge(trace, SCHEDULE, delays=waits(trace, 5, share=0.9))
        assert (
            (found.cause, found.rank) == (Cause.STARVED, 5)
            and "waits for a processor" in found.sentence
            and not found.alternatives
        )
        (found,) = judge(trace, SCHEDULE, delays=waits(trace, 6, share=0.9))  # rank 5 has no such waits
        assert (found.cause, found.rank) == (Cause.COMPUTE, 5) and not found.alternatives
    (found,) = slow.verdicts(trace, SCHEDULE)
    assert found.alternatives == (slow.UNSAMPLED,)
    late = Delays({rank: (np.array([trace.now - 1, trace.now]), np.zeros(2, int)) for rank in range(16)})
    # the iteration was before the first sample
    assert alarms.verdicts(trace, SCHEDULE, delays=late)[0].state is State.HEALTHY


def test_a_link_whose_end_is_starved_is_not_the_networks_fault() -> None:
    trace = trace_of(Fault(Kind.LINK, 9, 30, factor=400))
    found = slow.verdicts(trace, SCHEDULE)[0]
    assert (found.cause, found.rank) == (Cause.NETWORK, 9) and found.peer is not None
    for end in (found.rank, found.peer):
        starved = slow.verdicts(trace, SCHEDULE, delays=waits(trace, end, share=0.95))[0]
        assert (starved.cause, starved.rank) == (Cause.STARVED, end)


def test_that_all_ranks_wait_for_processors_is_no_change_of_the_job() -> None:
    trace = trace_of(
        *(Fault(Kind.RANK, rank, 15, factor=3.0) for rank in range(16)), model=replace(SHORT, iterations=40)
    )
    assert alarms.verdicts(trace, SCHEDULE)[0].state is State.HEALTHY
    moments = np.arange(int(trace.events["enter"].min()) + int(15.2 * 0.136e9), trace.now + 10**8, 5 * 10**7)
    starved = Delays(
        {rank: (moments, np.arange(len(moments)) * int(5e7 * (0.8 if rank == 5 else 0.6))) for rank in range(16)}
    )
    (found,) = alarms.verdicts(trace, SCHEDULE, delays=starved)
    assert (found.cause, found.rank) == (Cause.STARVED, 5)
