"""Verdicts on slow iterations: rank, place and cost are compared with the simulator's truth. There is no verdict if no
rank is to blame."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from traces import Builder, calls_of

from manapy.trace.host.runqueue import Delays
from manapy.trace.model import stages
from manapy.trace.model.events import EVENT, NO_PEER, Communicator, Flag, Op, Rank, Trace
from manapy.trace.model.iterations import iterations
from manapy.trace.model.schedule import ScheduleError, parse
from manapy.trace.model.verdict import Cause, Phase, State, Verdict
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate
from manapy.trace.slow import slow, stragglers

SCHEDULE = parse("tp=2,pp=4,dp=2,micro=8")
MODEL = Model(SCHEDULE, iterations=12)


def judged(*faults: Fault, model: Model = MODEL, seed: int = 1, given: bool = True) -> list[Verdict]:
    trace = simulate(model, faults, seed).trace
    assert trace is not None
    return slow.verdicts(trace, model.schedule if given else None)


def saved(
    *faults: Fault, iteration: int, model: Model = MODEL, seed: int = 1, without: tuple[Fault, ...] = ()
) -> float:
    """Return the difference to a replay without the faults, ns."""
    return 1e9 * float(
        simulate(model, faults, seed, events=False).lengths[iteration]
        - simulate(model, without, seed, events=False).lengths[iteration]
    )


@pytest.mark.parametrize(
    "text",
    [
        "tp=2,pp=4,dp=2,micro=8",
        "tp=2,pp=4,dp=2,micro=8,kind=gpipe",
        "tp=2,pp=2,dp=2,micro=4,kind=interleaved",
        "tp=2,pp=3,dp=2,micro=4,order=tp-pp-dp",
    ],
)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(("phase", "backward"), [(Phase.FORWARD, False), (Phase.BACKWARD, True)])
def test_rank_stage_phase_and_micro_batch_of_extra_work(text: str, given: bool, phase: Phase, backward: bool) -> None:
    model = Model(parse(text), iterations=8)
    fault = Fault(Kind.COMPUTE, 5, 4, 2, phase, seconds=0.8, segment=1)
    (verdict,) = judged(fault, model=model, given=given)
    assert (verdict.state, verdict.cause, verdict.rank) == (State.SLOW, Cause.COMPUTE, 5)
    assert (verdict.phase, verdict.iteration, verdict.micro, verdict.stage) == (
        phase,
        4,
        2,
        int(model.schedule.places[5, 0]),
    )
    assert verdict.cost_ns == pytest.approx(saved(fault, iteration=4, model=model), rel=0.05)
    assert "rank 5" in verdict.sentence and "micro-batch 2" in verdict.sentence


@pytest.mark.parametrize("seed", range(20))
def test_the_counterfactual_is_that_of_a_replay(seed: int) -> None:
    rng, model = np.random.default_rng((77, seed)), replace(MODEL, synchronous=seed % 2 == 1)
    phase = (Phase.FORWARD, Phase.BACKWARD)[int(rng.integers(2))]
    fault = Fault(
        Kind.COMPUTE,
        int(rng.integers(16)),
        5,
        int(rng.integers(8)),
        phase,
        segment=int(rng.integers(4)),
        seconds=float(np.exp(rng.uniform(np.log(0.3), np.log(10)))),
    )
    cost = saved(fault, iteration=5, model=model, seed=seed)
    found = judged(fault, model=model, seed=seed)
    if cost < 0.12 * 1.39e9:
        pytest.skip("absorbed by a bubble")
    assert [v.rank for v in found] == [fault.rank]
    assert found[0].cost_ns == pytest.approx(cost, rel=0.01)


def test_what_was_paused_is_held_against_nobody() -> None:
    """A rank's calls are missing from the middle of one iteration to the middle of another. Labels, expectations and
    stragglers come from the other ranks and from what follows."""
    model = replace(MODEL, iterations=30)
    trace = simulate(model, (), 3).trace
    assert trace is not None
    first, last = (
        int(trace.events["enter"][0] + part * (trace.now - trace.events["enter"][0])) for part in (0.21, 0.48)
    )
    gone = (trace.events["rank"] == 5) & (trace.events["enter"] > first) & (trace.events["exit"] < last)
    known = replace(trace.ranks[5], pauses=((first, last),), first_ns=last)
    trace = replace(trace, events=trace.events[~gone], ranks={**trace.ranks, 5: known})
    assert gone.sum() > 500
    for schedule in (SCHEDULE, None):
        assert [verdict.state for verdict in slow.verdicts(trace, schedule)] == [State.HEALTHY]
    assert [verdict.state for verdict in stragglers.verdicts(trace)] == [State.HEALTHY]


def test_what_a_bubble_absorbs_is_held_against_nobody() -> None:
    # the last micro-batch on the last stage: the other stages make its backward passes later
    fault = Fault(Kind.COMPUTE, 12, 5, 7, Phase.BACKWARD, seconds=0.1)
    absorbed = Fault(Kind.COMPUTE, 0, 5, 3, Phase.FORWARD, seconds=0.1)  # before the first backward pass
    for one in (fault, absorbed):
        if saved(one, iteration=5) < 0.1 * 1.39e9:
            assert judged(one)[0].state is State.HEALTHY
            break
    else:
        pytest.fail("neither was absorbed")


def test_work_after_the_last_collective_is_part_of_the_transfer() -> None:
    (verdict,) = judged(Fault(Kind.COMPUTE, 9, 5, 3, Phase.TRANSFER, True, seconds=0.5))
    assert (verdict.rank, verdict.phase, verdict.micro) == (9, Phase.TRANSFER, 3)


def test_several_faults_at_once() -> None:
    """All faults are in one iteration: one on each of two replicas, and a second one on the first replica."""
    faults = (
        Fault(Kind.COMPUTE, 15, 5, 0, Phase.FORWARD, seconds=0.6),
        Fault(Kind.COMPUTE, 2, 5, 5, Phase.BACKWARD, seconds=0.6),
        Fault(Kind.COMPUTE, 8, 5, 7, Phase.BACKWARD, seconds=0.5),
    )
    assert {(v.rank, v.micro) for v in judged(*faults)} == {(15, 0), (2, 5), (8, 7)}


def test_a_throttled_node_is_one_verdict_and_hides_nothing() -> None:
    node, block = Fault(Kind.NODE, 9, 6, factor=1.5), Fault(Kind.COMPUTE, 2, 8, 5, Phase.BACKWARD, seconds=0.6)
    first, second = judged(node, block)
    assert first.rank in range(8, 16) and "8 ranks of node01" in first.sentence and first.iteration == 6
    assert first.cost_ns == pytest.approx(saved(node, iteration=6), rel=0.05)
    assert (second.rank, second.iteration) == (2, 8)


def test_a_node_that_was_slow_from_the_first_iteration_on() -> None:
    """The MegaTrace paper's second case: 256 ranks, one host with too few processors."""
    model = Model(parse("tp=2,pp=4,dp=32,micro=8"), iterations=14)
    verdict = judged(Fault(Kind.NODE, 24 * 8, factor=1.6), model=model)[0]
    assert "node24" in verdict.sentence and verdict.rank in range(192, 200) and verdict.cause is Cause.COMPUTE


def test_a_throttled_link_is_the_networks_fault() -> None:
    (verdict,) = judged(Fault(Kind.LINK, 9, 5, factor=40))
    assert (verdict.cause, verdict.rank, verdict.phase) == (Cause.NETWORK, 9, Phase.TRANSFER)
    assert "network" in verdict.sentence


@pytest.mark.parametrize(
    "text",
    [
        "pp=2,micro=8",
        "pp=3,dp=2,micro=4,order=tp-pp-dp",
        "tp=2,pp=4,dp=2,micro=8,kind=gpipe",
        "tp=2,pp=2,dp=2,micro=4,kind=interleaved",
    ],
)
@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_a_throttled_link_whose_messages_follow_each_other(text: str, noise: float) -> None:
    """Messages are shorter than blocks, but each one also delays the sender's next message. The whole length of an
    iteration is explained, even if the work varies."""
    model = Model(parse(text), iterations=24, noise=noise, synchronous=True)
    fault = Fault(Kind.LINK, 1, 20, factor=100, until=21)
    (verdict,) = judged(fault, model=model)
    assert (verdict.cause, verdict.iteration) == (Cause.NETWORK, 20) and 1 in (verdict.rank, verdict.peer), (
        verdict.sentence
    )
    assert verdict.cost_ns == pytest.approx(saved(fault, iteration=20, model=model), rel=0.02)


def test_a_wait_that_was_over_before_the_message_was_taken_is_no_edge() -> None:
    """An example is the wait of an Isend whose message was sent eagerly."""
    model = Model(parse("pp=2,micro=4,kind=gpipe"), iterations=3, synchronous=True)
    trace = simulate(model, [Fault(Kind.COMPUTE, 1, 1, 0, Phase.FORWARD, seconds=1.0)], 1).trace
    assert trace is not None
    events, releases = trace.events, []
    waits = np.flatnonzero((events["rank"] == 0) & (events["op"] == Op.WAIT))
    longest = waits[np.argmax((events["exit"] - events["enter"])[waits])]
    for _ in range(2):
        _, slow_one, _ = iterations(stages.label(trace, model.schedule))
        assert slow_one.timing.release is not None
        releases.append(slow_one.timing.release)
        events["exit"][longest] = events["enter"][longest] + 1000
    waited, eager = (release[releases[0] != releases[1]] for release in releases)
    assert waited == pytest.approx([0], abs=1e-8) and eager.tolist() == [-np.inf]


@pytest.mark.parametrize("text", ["tp=2,pp=2,micro=4", "pp=2,dp=2,micro=4"])
def test_of_two_peers_the_one_that_has_always_been_slow(text: str) -> None:
    """Both are equally far from their median. The change from one iteration to the next shows the variation of each."""
    model = Model(parse(text), iterations=20, layers=2)
    slower, healthy = (
        slow.verdicts(simulate(model, faults, 1).trace, model.schedule)
        for faults in ([Fault(Kind.RANK, 1, factor=1.15)], [])
    )
    assert [(v.state, v.rank) for v in slower] == [(State.SLOW, 1)] and healthy[0].state is State.HEALTHY, slower


def test_little_but_always() -> None:
    model = Model(SCHEDULE, iterations=40)
    verdict = judged(Fault(Kind.RANK, 3, factor=1.03), model=model)[0]
    assert (verdict.state, verdict.rank, verdict.cause) == (State.SLOW, 3, Cause.COMPUTE)
    assert verdict.cost_ns is not None and 0.003 * 1.39e9 < verdict.cost_ns < 0.03 * 1.39e9


@pytest.mark.parametrize("given", [True, False])
def test_healthy_iterations_are_found_healthy(given: bool) -> None:
    for seed in range(3):
        assert [v.state for v in judged(model=Model(SCHEDULE, iterations=40), seed=seed, given=given)] == [
            State.HEALTHY
        ]


def test_nobody_is_accused_when_all_are_slower() -> None:
    """A possible reason is that sequences become longer from one iteration on."""
    faults = [Fault(Kind.RANK, rank, 6, factor=1.5) for rank in range(16)]
    (verdict,) = judged(*faults)
    assert verdict.state is State.HEALTHY and any("all ranks" in line for line in verdict.evidence)


def test_a_change_is_learnt_and_faults_after_it_are_found() -> None:
    faults = [Fault(Kind.RANK, rank, 4, factor=1.5) for rank in range(16)]
    (verdict,) = judged(*faults, Fault(Kind.COMPUTE, 9, 10, 3, Phase.BACKWARD, seconds=1.0))
    assert (verdict.rank, verdict.iteration) == (9, 10)


def test_a_checkpoint_in_an_iteration_is_no_slowness() -> None:
    trace = simulate(MODEL, [Fault(Kind.COMPUTE, rank, 5, 3, Phase.BACKWARD, seconds=3.0) for rank in (2, 9)], 1).trace
    assert trace is not None
    number = stages.label(trace, SCHEDULE).iteration
    trace.events["flags"][np.flatnonzero(number == 5)[7]] |= Flag.STOPPED
    assert [v.state for v in slow.verdicts(trace, SCHEDULE)] == [State.HEALTHY]


def test_too_uncertain_clocks_excuse_the_network() -> None:
    trace = simulate(replace(MODEL, uncertainty=10.0), [Fault(Kind.LINK, 9, 5, factor=40)], 1).trace
    assert trace is not None
    assert State.SLOW not in [v.state for v in slow.verdicts(trace, SCHEDULE)]


def test_too_few_iterations() -> None:
    assert judged(model=Model(SCHEDULE, iterations=3))[0].state is State.UNKNOWN


def test_a_schedule_of_another_job_is_refused() -> None:
    trace = simulate(MODEL, (), 1).trace
    assert trace is not None
    with pytest.raises(ScheduleError, match="doesn't fit"):
        slow.verdicts(trace, parse("tp=2,pp=4,dp=2,micro=7"))


def test_one_iteration_of_4096_ranks() -> None:
    """Recorded calls become iterations without a Python call for each of them."""
    schedule = parse("tp=2,pp=4,dp=512,micro=8")
    trace = simulate(Model(schedule, iterations=1), (), 1).trace
    assert trace is not None
    found: list[object] = []
    assert calls_of(lambda: found.extend(iterations(stages.label(trace, schedule)))) < len(trace.events) / 2
    assert len(found) == 1


# ---- without a schedule ----


def program(work: np.ndarray) -> Trace:
    """Return a trace of ranks that do work[collective, rank] seconds of work and then an Allreduce of all ranks, which
    takes 10 us."""
    count, size = work.shape
    events = np.zeros((size, count), EVENT)
    exit_ = np.zeros(size)
    for i in range(count):
        enter = exit_ + work[i]
        exit_ = np.full(size, enter.max() + 10e-6)
        events["enter"][:, i], events["exit"][:, i] = enter * 1e9 + 1e9, exit_ * 1e9 + 1e9
    events["rank"], events["seq"], events["context"] = (
        np.arange(size)[:, None],
        np.arange(1, count + 1),
        np.arange(1, count + 1),
    )
    events["op"], events["peer"] = Op.ALLREDUCE, NO_PEER
    return Trace(
        events.ravel(),
        [Communicator(1, 1, np.arange(size))],
        size,
        {rank: Rank(rank, f"node{rank // 2}") for rank in range(size)},
        int(exit_.max() * 1e9) + 1,
    )


def test_the_straggler_of_an_ordinary_program() -> None:
    work = np.random.default_rng(1).uniform(0.009, 0.011, (50, 6))
    assert [v.state for v in slow.verdicts(program(work))] == [State.HEALTHY]
    work[:, 4] *= 1.5
    (verdict,) = slow.verdicts(program(work))
    assert (verdict.state, verdict.rank) == (State.SLOW, 4) and "rank 4 (node2)" in verdict.sentence
    assert verdict.cost_ns == pytest.approx(50 * 0.0045e9, rel=0.2)


def test_one_event_is_no_habit() -> None:
    """Rank 2 reads a file for 20 s once. It is slightly late at many other collectives."""
    work = np.random.default_rng(1).uniform(0.009, 0.011, (140, 4))
    work[1::3, 2] += 0.002
    work[70, 2] += 20.0
    (verdict,) = slow.verdicts(program(work))
    assert (verdict.state, verdict.rank) == (State.SLOW, 2)
    assert (
        "kept the others waiting for once, 20.0 s of 21.5 s: in or before MPI_Allreduce (its call 71), because it spent"
        " more time outside MPI" in verdict.sentence
    ), verdict.sentence


def test_ever_different_ranks_are_the_last() -> None:
    (verdict,) = slow.verdicts(program(np.random.default_rng(1).lognormal(-4, 0.6, (60, 4))))
    assert verdict.state is State.HEALTHY and any("lost to unequal work" in said for said in verdict.evidence)


def test_a_wait_for_a_processor_explains_what_it_was_sampled_for() -> None:
    """Rank 1 works 5 ms longer each time. It had to wait for a processor for as long, or no longer than the other
    ranks, or this is known of one collective only."""
    work = np.full((60, 4), 0.01)
    work[:, 1] += 0.005
    trace = program(work)
    begin, end = int(trace.events["enter"].min()) - 10**9, int(trace.events["exit"].max())
    moments = np.arange(begin, end + 10**9, 10**6)

    def cause(own: float, others: float, since: int = begin, every: int = 1) -> Cause:
        known = moments[moments >= since][::every]
        delays = Delays(
            {rank: (known, ((known - known[0]) * (own if rank == 1 else others)).astype(np.int64)) for rank in range(4)}
        )
        (verdict,) = stragglers.verdicts(trace, delays=delays)
        assert verdict.rank == 1 and verdict.share == pytest.approx(1 / 3, rel=0.01)
        assert (verdict.confidence >= 0.9) == (verdict.cause is Cause.STARVED), "it may have more work"
        return verdict.cause

    assert cause(0.3, 0.0) is Cause.STARVED
    assert cause(0.3, 0.3) is Cause.COMPUTE
    for every in (100, 500):  # samples are further apart than collectives
        assert cause(0.5, 0.1, every=every) is Cause.STARVED
        assert cause(0.3, 0.3, every=every) is cause(0.5, 0.5, every=every) is Cause.COMPUTE
        assert cause(0.9, 0.6, every=every) is Cause.STARVED, "the others are busy, too, but far less"
    assert cause(0.9, 0.0, end - 20_000_000) is Cause.COMPUTE


def test_the_share_of_a_straggler_is_that_of_the_newest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was slow in the first half."""
    work = np.full((60, 4), 0.01)
    work[:30, 1] += 0.005
    (verdict,) = stragglers.verdicts(program(work))
    assert verdict.rank == 1 and verdict.share == pytest.approx(0.2, rel=0.05)
    monkeypatch.setattr(stragglers, "NEWEST", 200_000_000)
    (verdict,) = stragglers.verdicts(program(work))
    assert verdict.rank == 1 and verdict.share == 0.0


def test_who_waits_elsewhere_is_not_the_straggler() -> None:
    """Rank 3 comes late to every collective because it waits in a receive before it."""
    trace = program(np.random.default_rng(2).uniform(0.009, 0.011, (30, 4)))
    own = trace.events[trace.events["rank"] == 3]
    receives = own.copy()
    receives["op"], receives["peer"], receives["comm"] = Op.RECV, 0, 0
    receives["exit"] = own["enter"] - 1000
    receives["enter"] = np.r_[int(1e9), own["exit"][:-1]] + 1000
    both = np.stack([receives, own], axis=1).ravel()
    trace.events = np.concatenate([trace.events[trace.events["rank"] != 3], both])
    trace.events["enter"][-1] += 0
    assert [v.state for v in stragglers.verdicts(trace)] == [State.HEALTHY]


def exchanged(work: np.ndarray, op: Op) -> Trace:
    """Return a trace of ranks that do work[round, rank] ns of work. Then each rank receives from its left neighbour,
    which sends when its work is done, and all meet in an Allreduce."""
    builder = Builder(work.shape[1])
    moment = 1000
    for round_ in work.tolist():
        ends = [moment + work for work in round_]
        all_sent = max(ends) + 300
        for rank, end in enumerate(ends):
            builder.call(rank, Op.SEND, end, end + 100, peer=(rank + 1) % builder.size, tag=1)
            came = max(end + 100, ends[rank - 1]) + 100
            builder.call(
                rank, op, came - 50 if op is Op.TEST else end + 150, came, peer=(rank - 1) % builder.size, tag=1
            )
            builder.call(rank, Op.ALLREDUCE, came + 50, all_sent)
        moment = all_sent
    return builder.trace(moment)


@pytest.mark.parametrize("op", [Op.RECV, Op.TEST])
def test_the_straggler_that_is_waited_for_in_messages(op: Op) -> None:
    """Its neighbour comes to the collective equally late, because it waits in the receive before, or between its
    polls."""
    work = np.random.default_rng(4).integers(900_000, 1_000_000, (20, 3))
    assert [v.state for v in slow.verdicts(exchanged(work, op))] == [State.HEALTHY]
    work[:, 1] *= 3
    (verdict,) = slow.verdicts(exchanged(work, op))
    assert (verdict.state, verdict.rank) == (State.SLOW, 1)
    assert verdict.cost_ns == pytest.approx(20 * 1.9e6, rel=0.1)


def test_who_works_while_it_is_waited_for_and_waits_as_long_is_not_the_straggler() -> None:
    """Rank 0 works for 1 ms, then rank 1 for 2 ms. Each of them waits in a receive while the other one works."""
    builder = Builder(2)
    for moment in range(0, 40_000_000, 4_000_000):
        builder.call(0, Op.SEND, moment + 1_000_000, moment + 1_000_100, peer=1, tag=1)
        builder.call(0, Op.RECV, moment + 1_000_200, moment + 3_000_200, peer=1, tag=2)
        builder.call(1, Op.RECV, moment + 100, moment + 1_000_100, peer=0, tag=1)
        builder.call(1, Op.SEND, moment + 3_000_100, moment + 3_000_200, peer=0, tag=2)
        for rank in (0, 1):
            builder.call(rank, Op.ALLREDUCE, moment + 3_000_300, moment + 3_000_400)
    assert [v.state for v in stragglers.verdicts(builder.trace(40_000_000))] == [State.HEALTHY]


def test_too_few_collectives_say_nothing() -> None:
    assert slow.verdicts(program(np.full((3, 4), 0.01)))[0].state is State.UNKNOWN


@pytest.mark.parametrize("text", ["tp=2,pp=2,micro=4", "tp=2,pp=4,dp=2,micro=8"])
def test_a_noisy_machine(text: str) -> None:
    """If all work varies by 20 %, no rank is accused of that, and much larger delays are found."""
    model = Model(parse(text), iterations=30, noise=0.2)
    for seed in range(3):
        assert State.SLOW not in [v.state for v in judged(model=model, seed=seed)]
    verdict = judged(Fault(Kind.COMPUTE, 1, 20, 2, Phase.BACKWARD, seconds=1.0), model=model)[0]
    assert (verdict.state, verdict.rank, verdict.iteration, verdict.micro) == (State.SLOW, 1, 20, 2)


def test_a_change_of_all_ranks_hides_no_fault() -> None:
    faults = [Fault(Kind.RANK, rank, 6, factor=1.4, until=7) for rank in range(16)]
    (verdict,) = judged(*faults, Fault(Kind.COMPUTE, 9, 6, 3, Phase.BACKWARD, seconds=2.0))
    assert (verdict.rank, verdict.iteration, verdict.micro) == (9, 6, 3)


@pytest.mark.parametrize("text", ["tp=4,micro=4", "dp=4,micro=4", "tp=2,micro=4", "dp=2,micro=4"])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("factor", [1.0, 1.3, 3.0])
def test_tp_alone_and_dp_alone(text: str, given: bool, factor: float) -> None:
    """No call marks their iterations. The cost of a slow rank in all of them is the difference to a replay."""
    model = Model(parse(text), iterations=20)
    fault = Fault(Kind.RANK, 1, factor=factor)
    (verdict,) = judged(fault, model=model, given=given)
    if factor == 1.0:
        assert verdict.state is State.HEALTHY
        return
    assert (verdict.state, verdict.cause, verdict.rank) == (State.SLOW, Cause.COMPUTE, 1)
    assert verdict.cost_ns == pytest.approx(sum(saved(fault, iteration=i, model=model) for i in range(20)), rel=0.1)


@pytest.mark.parametrize("text", ["tp=4,micro=4", "dp=4,micro=4"])
def test_tp_alone_and_dp_alone_of_another_size(text: str) -> None:
    trace = simulate(Model(parse("tp=2,dp=1,micro=4"), iterations=4)).trace
    assert trace is not None
    with pytest.raises(ScheduleError, match="is for 4 ranks, but the trace has 2"):
        slow.verdicts(trace, parse(text))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("factor", [1.3, 3.0])
def test_of_two_stages_with_a_rank_each_one_that_becomes_slow(rank: int, factor: float) -> None:
    """The slow rank doesn't count as a change of all ranks' work, although it is half of them."""
    model = Model(parse("pp=2,micro=4"), iterations=20)
    fault = Fault(Kind.RANK, rank, 8, factor=factor)
    (verdict,) = judged(fault, model=model)
    assert (verdict.state, verdict.rank, verdict.iteration) == (
        State.SLOW,
        rank,
        8,
    ) and "in 12 iterations from 8 on" in verdict.sentence
    assert verdict.cost_ns == pytest.approx(
        np.mean([saved(fault, iteration=i, model=model) for i in range(8, 20)]), rel=0.05
    )


def test_of_two_stages_with_a_rank_each_one_that_has_always_been_slow_is_not_claimed() -> None:
    """Without peers, and without a time in which it was faster, it may simply have more work."""
    (verdict,) = judged(Fault(Kind.RANK, 1, factor=3.0), model=Model(parse("pp=2,micro=4"), iterations=20))
    assert (verdict.cause, verdict.rank) == (Cause.UNEQUAL, None) and any(
        "can't be told from a larger stage" in said for said in verdict.evidence
    )


# ---- several faults at once ----


@pytest.mark.parametrize("text", ["tp=2,pp=2,dp=1,micro=4", "tp=2,pp=4,dp=2,micro=8"])
def test_two_that_wait_for_each_other_do_not_hide_each_other(text: str) -> None:
    """They are in one TP group, on two hosts. Repairing only one of them would gain nothing."""
    model = Model(parse(text), iterations=24, hosts=1)
    faults = [Fault(Kind.RANK, rank, 6, factor=1.8) for rank in (2, 3)]
    (verdict,) = judged(*faults, model=model)
    assert (
        verdict.state is State.SLOW
        and "2 ranks (node02, node03) are slow in 18 iterations from 6 on" in verdict.sentence
    ), verdict.sentence
    assert verdict.cost_ns == pytest.approx(
        np.mean([saved(*faults, iteration=i, model=model) for i in range(6, 24)]), rel=0.05
    )


def test_two_that_have_always_been_slow_together() -> None:
    model = Model(SCHEDULE, iterations=24, hosts=1)
    faults = [Fault(Kind.RANK, rank, factor=1.8) for rank in (2, 3)]
    (verdict,) = judged(*faults, model=model)
    assert "2 ranks (node02, node03) are slow in 23 iterations up to 23" in verdict.sentence, verdict.sentence
    assert verdict.cost_ns == pytest.approx(saved(*faults, iteration=9, model=model), rel=0.1)
    assert not any("healthy ones" in said for said in verdict.evidence)


def test_extra_work_on_all_ranks_of_a_group() -> None:
    faults = [Fault(Kind.COMPUTE, rank, 5, 3, Phase.BACKWARD, seconds=0.8) for rank in (8, 9)]
    (verdict,) = judged(*faults)
    assert (verdict.iteration, verdict.micro, verdict.phase) == (5, 3, Phase.BACKWARD) and verdict.rank in (8, 9)


def test_who_is_much_slower_is_not_slow_alike_with_who_is_a_little() -> None:
    model = Model(parse("tp=4,pp=2,dp=2,micro=8"), iterations=20)
    first, second = judged(
        Fault(Kind.RANK, 1, 8, factor=2.6), *[Fault(Kind.RANK, rank, 8, factor=1.15) for rank in (4, 5, 6)], model=model
    )
    assert first.rank == 1 and first.sentence.startswith("rank 1 (node00) is slow in 12 iterations"), first.sentence
    assert second.sentence.startswith("3 ranks of node00 are slow") and any(
        "ranks 4, 5, 6" in said for said in second.evidence
    )


def test_longer_iterations_that_no_rank_explains_are_not_healthy() -> None:
    """All ranks are slower for two iterations, which are too few for a change of the job. In one case this is a large
    part of the time, in the other it isn't."""
    for factor, state in ((4.0, State.UNKNOWN), (1.3, State.HEALTHY)):
        slower = [(rank, number) for rank in range(16) for number in (5, 8)]
        faults = [Fault(Kind.RANK, rank, number, factor=factor, until=number + 1) for rank, number in slower]
        (verdict,) = judged(*faults)
        assert verdict.state is state, verdict.sentence


# ---- sizes, and what is worth reporting ----


def test_a_larger_message_may_take_longer() -> None:
    """A message is twice as large and takes twice as long, and an iteration waits for it: neither a rank nor the
    network is at fault."""
    model = replace(MODEL, bandwidth=4e8)  # messages take as long as a block
    for larger in (True, False):
        trace = simulate(model, [Fault(Kind.LINK, 9, 5, factor=4, until=6)], 1).trace
        assert trace is not None
        if larger:
            trace.events["bytes"][(stages.label(trace, SCHEDULE).iteration == 5) & (trace.events["op"] == Op.SEND)] *= 4
        found = slow.verdicts(trace, SCHEDULE)
        assert any(verdict.cause is Cause.NETWORK for verdict in found) is not larger, found


def test_question_and_answer_of_two_ranks_are_no_pipeline() -> None:
    """The messages become larger. Their network isn't slow either."""
    job, moment = Builder(2), 1000
    for size in [1 << k for k in range(22)]:
        for _ in range(20):
            took = 2000 + size // 2
            job.call(0, Op.SEND, moment, moment + 500, peer=1, tag=1, bytes=size)
            job.call(1, Op.RECV, moment - 100, moment + took, peer=0, tag=1, bytes=size)
            job.call(1, Op.SEND, moment + took + 200, moment + took + 700, peer=0, tag=1, bytes=size)
            job.call(0, Op.RECV, moment + 600, moment + 2 * took + 200, peer=1, tag=1, bytes=size)
            moment += 2 * took + 1000
    trace = job.trace(moment)
    with pytest.raises(ScheduleError, match="no schedule can be seen"):
        stages.infer(trace)
    assert [verdict.state for verdict in slow.verdicts(trace)] == [State.UNKNOWN]


def test_microseconds_are_no_finding() -> None:
    small = {name: getattr(MODEL, name) * 1e-6 for name in ("forward", "backward", "optimizer", "closing", "latency")}
    model = replace(MODEL, **small, activation=0, partial=0, gradient=0)
    (verdict,) = judged(Fault(Kind.COMPUTE, 5, 7, 2, Phase.FORWARD, seconds=1e-6), model=model)
    assert verdict.state is State.HEALTHY, verdict.sentence


# ---- unequal work ----


@pytest.mark.parametrize(
    "text", ["tp=2,pp=4,dp=2,micro=8", "pp=4,dp=2,micro=8", "tp=2,pp=2,dp=2,micro=4,kind=interleaved"]
)
def test_unequal_work_is_told_with_its_share(text: str) -> None:
    """The work of micro-batches (sequence lengths) and of stages is unequal. The share that is lost is the difference
    to a replay with the same work spread evenly."""
    even = Model(parse(text), iterations=24)
    for unequal, where in (
        (replace(even, sequences=0.5), "between micro-batches"),
        (replace(even, balance=(*(1.0,) * (even.schedule.pp - 1), 1.8)), "between stages"),
    ):
        (verdict,) = judged(model=unequal)
        assert (verdict.state, verdict.cause, verdict.rank) == (State.SLOW, Cause.UNEQUAL, None)
        average = np.mean(unequal.balance) if unequal.balance else 1.0
        ideal = replace(even, forward=even.forward * average, backward=even.backward * average)
        lost = (
            1
            - simulate(ideal, (), 1, events=False).lengths.mean()
            / simulate(unequal, (), 1, events=False).lengths.mean()
        )
        assert lost > 0.1 and int(verdict.sentence.split("%")[0]) == pytest.approx(100 * lost, abs=7), (
            lost,
            verdict.sentence,
        )
        assert where in verdict.evidence[0]


@pytest.mark.parametrize("text", ["tp=2,pp=4,dp=2,micro=8", "pp=4,dp=2,micro=8", "pp=2,micro=4"])
def test_scatter_of_a_machine_is_no_unequal_work(text: str) -> None:
    for noise in (0.02, 0.3):
        assert not any(
            verdict.cause is Cause.UNEQUAL for verdict in judged(model=Model(parse(text), iterations=24, noise=noise))
        )


def test_blocks_between_which_no_call_is_are_told_together() -> None:
    """Without TP, a first stage's backward pass ends without a call, and the next forward pass begins without one."""
    model = Model(parse("pp=2,dp=2,micro=8"), iterations=12)
    (verdict,) = judged(Fault(Kind.COMPUTE, 0, 5, 3, Phase.BACKWARD, seconds=0.9), model=model)
    assert verdict.rank == 0 and "backward of micro-batch 3 or forward of micro-batch 5" in verdict.sentence, (
        verdict.sentence
    )


def test_what_is_waited_for_in_a_call_that_is_not_recorded_is_no_work() -> None:
    """Between its last block and the gradient reduction, each rank of the last stage waits for the slowest rank, in a
    call that is not in the trace."""
    model = Model(parse("pp=2,dp=3,micro=4"), iterations=14)
    fault = Fault(Kind.RANK, 1, factor=1.9)
    trace = simulate(model, [fault], 1).trace
    assert trace is not None
    labels, events = stages.label(trace, model.schedule), trace.events
    for number in range(model.iterations):
        mine = np.flatnonzero((labels.iteration == number) & (labels.item == stages.REDUCING) & (events["comm"] != 0))
        mine = mine[labels.stage[mine] == 1]
        events["enter"][mine] = np.maximum(events["enter"][mine], (events["exit"][mine - 1]).max() + 2_000_000)
    assert slow.verdicts(trace, model.schedule)[0].cost_ns == pytest.approx(
        saved(fault, iteration=9, model=model), rel=0.1
    )
