"""The recommended strategy, and the reason that is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manapy.fcdp import advice
from manapy.fcdp.advice import Job, Option
from manapy.fcdp.costs import PRECISIONS, Links

# 10 Gbit/s between nodes; inside a node so fast that its time is negligible
SLOW = Links(inter=1.25e9, intra=200e9, host=200e9)
LORA = Job(nodes=4, gpus=8, trainable=15e6, frozen=30e9, precision=PRECISIONS["mixed"], links=SLOW)
FULL = replace(LORA, trainable=30e9, frozen=0)


def options(job: Job) -> dict[str, Option]:
    return {option.strategy: option for option in advice.assess(job)}


def said(job: Job) -> tuple[str | None, str]:
    found = advice.advise(job, advice.assess(job))
    return found.strategy, found.reason


def test_of_what_is_as_fast_what_needs_least_memory() -> None:
    """90 GB at 1.25 GB/s take 72 s. In the node 7 times 60 GB are sent three times, and 210 GB go from and to the host;
    at 8 times 200 GB/s this takes 0.92 s. zero3: 139.5 s and 0.76 s."""
    strategy, reason = said(FULL)
    assert strategy == "fcdp"
    assert reason.startswith(
        "fcdp: 72.9 s a step, 1.92 times as fast as zero3, since a node sends 90.0 GB instead of 174.4 GB"
    )
    assert reason.endswith("; mics is as fast but needs 60.0 GB on a device instead of 15.0 GB")


def test_a_slow_link_to_the_host_is_no_bargain() -> None:
    """MiCS sends the same bytes over the network and needs no host memory. manapy's own strategy isn't preferred."""
    strategy, reason = said(replace(FULL, links=replace(SLOW, host=2e9)))
    assert (
        strategy == "mics" and "; fcdp takes 85.9 s " in reason and "15.0 GB on a device instead of 60.0 GB" in reason
    )


def test_what_would_be_faster_but_does_not_fit() -> None:
    strategy, reason = said(replace(FULL, device=48e9, links=replace(SLOW, host=2e9)))
    assert strategy == "fcdp" and "; mics would take 72.8 s but needs 60.0 GB on a device with 48.0 GB" in reason


def test_a_host_too_small_for_the_cache() -> None:
    job = replace(FULL, device=48e9, host=48e9)
    assert options(job)["fcdp"].lacks == "60.0 GB on a host with 48.0 GB" and options(job)["zero3"].lacks == ""
    strategy, reason = said(job)
    assert strategy == "hpz" and "; fcdp would take 72.9 s but needs 60.0 GB on a host with 48.0 GB" in reason
    # the sum of gradients
    assert options(replace(job, micro_batches=2))["fcdp"].lacks == "120.0 GB on a host with 48.0 GB"


def test_on_one_node_nothing_is_faster_than_zero3() -> None:
    assert said(replace(FULL, nodes=1)) == (
        "zero3",
        "zero3: 0.787 s a step; hpz is as fast but needs 67.5 GB on a device instead of 60.0 GB",
    )
    assert said(replace(FULL, nodes=1, device=64e9)) == (
        "zero3",
        "zero3: 0.787 s a step, and nothing that fits is faster",
    )


def test_nothing_fits() -> None:
    """15 GB of states on the devices of each of 4 nodes. With 4 GB of activations 11 GB of 15 are left: 60 / 11
    nodes."""
    strategy, reason = said(replace(FULL, device=15e9, activations=4e9))
    assert (
        strategy is None
        and reason == "nothing fits: even zero3 needs 19.0 GB on a device with 15.0 GB; on 6 nodes it would fit"
    )
    assert said(replace(FULL, nodes=6, device=15e9, activations=4e9))[0] is not None
    assert said(replace(FULL, nodes=5, device=15e9, activations=4e9))[0] is None
    assert said(replace(FULL, device=4e9, activations=4e9))[1].endswith(", and 4.0 GB of that on any number of nodes")


def test_tau() -> None:
    job = replace(LORA, device=48e9, unit=30e9 / 40, activations=1e9, batch=4)
    assert options(job)["fcdp"].kept == 0
    kept = options(replace(job, tau=0.5))
    assert 0 < kept["fcdp"].kept < 1 and kept["zero3"].kept == kept["mics"].kept == 0
    assert kept["fcdp"].step < options(job)["fcdp"].step
    assert kept["fcdp"].device == pytest.approx(options(job)["fcdp"].device + kept["fcdp"].kept * 2 * 30.015e9)
    assert kept["fcdp"].largest_tau == pytest.approx(1 - (4e9 + 2 * 4.5e9) / 48e9)
    everything = options(replace(job, tau=1.0))["fcdp"]
    assert everything.kept > kept["fcdp"].kept and everything.device <= 48e9 and everything.lacks == "", (
        "what doesn't fit isn't kept"
    )
    assert options(replace(job, unit=0))["fcdp"].largest_tau is None and kept["zero3"].largest_tau is None


def test_the_first_step_of_lora() -> None:
    found = options(LORA)
    assert found["fcdp"].first == pytest.approx(0.75 * (30e9 * 2 + 15e6 * 4))
    assert options(replace(LORA, local_weights=True))["fcdp"].first == found["fcdp"].phases.total.inter
    assert (
        options(replace(LORA, local_weights=True))["fcdp_comm"].first
        == found["fcdp_comm"].first
        > found["fcdp_comm"].phases.total.inter
    )


def test_errors() -> None:
    for job, text in (
        (replace(FULL, tau=1.5), "tau is between 0 and 1"),
        (replace(FULL, tau=0.5), "device's memory, which is not given"),
        (replace(FULL, collective="x"), "no collective 'x'"),
    ):
        with pytest.raises(ValueError, match=text):
            advice.assess(job)
